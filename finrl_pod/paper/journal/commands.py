"""Operator commands to the daemon, queued in the journal until the daemon executes them, also while it is down."""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import Connection, select

from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store, add, moment


class RiskState(StrEnum):
    """Orders that may be sent. ACTIVE: all within limits. REDUCING: only those that reduce a position. HALTED: none."""

    ACTIVE = "active"
    REDUCING = "reducing"
    HALTED = "halted"


def read_risk_state(store: Store) -> RiskState:
    """Return the current risk state of a journal; ACTIVE in a new one."""
    row = store.last(schema.risk_states)
    return RiskState.ACTIVE if row is None else RiskState(row.state)


def tighten_risk_state(store: Store, state: RiskState, reason: str, now: datetime) -> bool:
    """Write a stricter risk state to a journal. Returns False if the current one is at least as strict."""
    order = list(RiskState)
    if order.index(state) <= order.index(read_risk_state(store)):
        return False
    store.add(schema.risk_states, now, state=state.value, reason=reason)
    return True


LOCAL_ADDRESS = "this machine"


class CommandName(StrEnum):
    """halt: send no more orders and cancel own live ones. resume: trade again.

    reconcile: compare the journal with the broker now. acknowledge: accept the account as it is.
    flatten: sell all own shares. stop: cancel own orders and exit.
    """

    HALT = "halt"
    RESUME = "resume"
    RECONCILE = "reconcile"
    ACKNOWLEDGE = "acknowledge"
    FLATTEN = "flatten"
    STOP = "stop"


@dataclass(frozen=True)
class Command:
    """A queued command. user, address: who submitted it and from where; empty if unknown."""

    id: int
    at: datetime
    name: CommandName
    user: str = ""
    address: str = ""


class CommandResult(NamedTuple):
    """Outcome of a command. refused: it was not executed, only in part, or its check failed."""

    message: str
    refused: bool = False


def submit_command(store: Store, name: CommandName, *, user: str, address: str = LOCAL_ADDRESS) -> int:
    """Queue a command now and return its number. A halt takes effect immediately, even while no daemon runs."""
    now = datetime.now(UTC)
    if name is CommandName.HALT:
        tighten_risk_state(store, RiskState.HALTED, "by command", now)
    return enqueue(store, name, now, user=user, address=address)


def enqueue(store: Store, name: CommandName, now: datetime, *, user: str = "", address: str = "") -> int:
    """Write a command to the journal and return its number."""
    source = {"user": user or None, "address": address or None}
    return store.add(schema.commands, now, name=name.value, arguments="{}", **source)


def pending_commands(store: Store) -> list[Command]:
    """Return the commands without a result, oldest first."""
    with_result = select(schema.command_results.c.command_id)
    return [
        Command(row.id, moment(row.at), CommandName(row.name), row.user or "", row.address or "")
        for row in store.rows(schema.commands, schema.commands.c.id.not_in(with_result))
    ]


def record_result(store: Store, command: Command, result: CommandResult, now: datetime) -> None:
    """Write the result of a command in a separate transaction."""
    with store.write() as connection:
        add_result(connection, command, result, now)


def add_result(connection: Connection, command: Command, result: CommandResult, now: datetime) -> None:
    """Write the result of a command inside the transaction of the caller, together with its effects."""
    values = {"outcome": result.message, "refused": int(result.refused)}
    add(connection, schema.command_results, now, command_id=command.id, **values)


def read_result(store: Store, command_id: int) -> CommandResult | None:
    """Return the result of a command, or None while it is pending."""
    row = store.last(schema.command_results, schema.command_results.c.command_id == command_id)
    return None if row is None else CommandResult(str(row.outcome), bool(row.refused))


def current_user() -> str:
    """Return the name of the user running this process, or "user UID" if there is none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"user {os.getuid()}"
