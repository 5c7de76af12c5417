"""Equity without the effect of deposits and withdrawals.

Returns are time-weighted: a flow scales the equity before it as a split scales the prices before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise

from sqlalchemy import select

from finrl_pod.paper.domain.records import ActionKind
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store

NOW = "9"  # after every time in a journal
Amounts = Sequence[tuple[str, Decimal]]  # (ISO 8601 time in UTC, currency)


def flow_adjusted(capital: float, marks: Amounts, flows: Amounts) -> list[Decimal]:
    """Return the capital at the start and the equity of all marks, each scaled by later flows.

    A flow counts as part of the first mark from its time on.
    """
    rows = [("", Decimal(str(capital))), *marks]
    adjusted = [rows[-1][1]]
    factor = Decimal(1)
    for (earlier, value), (at, equity) in reversed(list(pairwise(rows))):
        flow = sum((amount for time, amount in flows if earlier < time <= at), Decimal(0))
        if flow and equity > max(flow, Decimal(0)):
            factor *= equity / (equity - flow)
        adjusted.append(value * factor)
    return adjusted[::-1]


def capital_flows(store: Store, run: str = "") -> list[tuple[str, Decimal]]:
    """Return time and amount of the flows of an account, or those of one of several strategies that share it."""
    amounts = schema.action_parts if run else schema.corporate_actions
    query = select(schema.corporate_actions.c.at, amounts.c.cash)
    if run:
        query = query.join_from(schema.action_parts, schema.corporate_actions).where(schema.action_parts.c.run == run)
    query = query.where(schema.corporate_actions.c.kind == ActionKind.TRANSFER)
    return [(row.at, Decimal(row.cash)) for row in store.query(query)]
