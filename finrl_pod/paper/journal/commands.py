"""Commands to the daemon, by way of the journal: they wait there until it reads them, also when it is down."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store, add, moment


class CommandName(StrEnum):
    """halt: no more orders, cancel own live ones. resume: trade again. acknowledge: accept the account as it is.

    reconcile: compare with the broker now. flatten: sell all own shares. stop: cancel own orders and end.
    """

    HALT = "halt"
    RESUME = "resume"
    RECONCILE = "reconcile"
    ACKNOWLEDGE = "acknowledge"
    FLATTEN = "flatten"
    STOP = "stop"


@dataclass(frozen=True)
class Command:
    """One wish. user, address: who gave it and from where, empty where that is not known."""

    id: int
    at: datetime
    name: CommandName
    arguments: Mapping[str, Any]
    user: str = ""
    address: str = ""


def ask(store: Store, name: CommandName, at: datetime, *, user: str = "", address: str = "", **arguments: Any) -> int:
    """Leave a command; returns its number. user: a person's name; address: the machine it was given from."""
    values = {"name": name.value, "arguments": json.dumps(arguments, sort_keys=True)}
    return store.add(schema.commands, at, **values, user=user or None, address=address or None)


def pending(store: Store) -> list[Command]:
    """Commands that nobody has answered, oldest first."""
    answered = select(schema.command_results.c.command_id)
    return [
        Command(
            row.id, moment(row.at), CommandName(row.name), json.loads(row.arguments), row.user or "", row.address or ""
        )
        for row in store.rows(schema.commands, schema.commands.c.id.not_in(answered))
    ]


class Answer(NamedTuple):
    """What became of a command, in words. refused: it was not done, or not wholly, or what it asks for is not so."""

    words: str
    refused: bool = False


def answer(store: Store, command: Command, given: Answer, at: datetime) -> None:
    """Write what became of it."""
    with store.write() as connection:
        answer_in(connection, command, given, at)


def answer_in(connection: Connection, command: Command, given: Answer, at: datetime) -> None:
    """The same inside a transaction, together with what the command does."""
    values = {"outcome": given.words, "refused": int(given.refused)}
    add(connection, schema.command_results, at, command_id=command.id, **values)


def answered(store: Store, command_id: int) -> Answer | None:
    """What became of it, None while it waits."""
    row = store.last(schema.command_results, schema.command_results.c.command_id == command_id)
    return None if row is None else Answer(str(row.outcome), bool(row.refused))
