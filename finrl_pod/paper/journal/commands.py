"""Commands to the daemon, by way of the journal: they wait there until it reads them, also when it is down."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import select

from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store, moment


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
    """One wish."""

    id: int
    at: datetime
    name: CommandName
    arguments: Mapping[str, Any]


def ask(store: Store, name: CommandName, at: datetime, **arguments: Any) -> int:
    """Leave a command; returns its number."""
    return store.add(schema.commands, at, name=name.value, arguments=json.dumps(arguments, sort_keys=True))


def pending(store: Store) -> list[Command]:
    """Commands that nobody has answered, oldest first."""
    answered = select(schema.command_results.c.command_id)
    return [
        Command(row.id, moment(row.at), CommandName(row.name), json.loads(row.arguments))
        for row in store.rows(schema.commands, schema.commands.c.id.not_in(answered))
    ]


def answer(store: Store, command: Command, outcome: str, at: datetime) -> None:
    """Write what became of it."""
    store.add(schema.command_results, at, command_id=command.id, outcome=outcome)


def outcome(store: Store, command_id: int) -> str | None:
    """What became of it, None while it waits."""
    row = store.last(schema.command_results, schema.command_results.c.command_id == command_id)
    return None if row is None else str(row.outcome)
