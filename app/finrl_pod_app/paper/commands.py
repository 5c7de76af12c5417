"""Leaves a command in a journal, with who gave it and from where: the one way of the command line and the dashboard."""

from __future__ import annotations

import getpass
import os
from datetime import UTC, datetime

from finrl_pod.paper.execution.risk import RiskState, tighten
from finrl_pod.paper.journal.commands import CommandName, ask
from finrl_pod.paper.journal.store import Store

HERE = "this machine"


def give(store: Store, name: CommandName, *, user: str, address: str = HERE) -> int:
    """Write a command; returns its number. A halt holds from now on, also while no daemon runs."""
    now = datetime.now(UTC)
    if name is CommandName.HALT:
        tighten(store, RiskState.HALTED, "by command", now)
    return ask(store, name, now, user=user, address=address)


def own_name() -> str:
    """Who runs this process, by the operating system's name for them, or by number where they have no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"user {os.getuid()}"
