"""The risk state of a journal: active, reducing or halted."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store


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
