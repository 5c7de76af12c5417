"""Deposits and withdrawals that the journal has recorded."""

from __future__ import annotations

from decimal import Decimal

from sqlalchemy import select

from finrl_pod.paper.domain.records import ActionKind
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store


def capital_flows(store: Store, run: str = "") -> list[tuple[str, Decimal]]:
    """Return time and amount of the flows of an account, or those of one of several strategies that share it."""
    amounts = schema.action_parts if run else schema.corporate_actions
    query = select(schema.corporate_actions.c.at, amounts.c.cash)
    if run:
        query = query.join_from(schema.action_parts, schema.corporate_actions).where(schema.action_parts.c.run == run)
    query = query.where(schema.corporate_actions.c.kind == ActionKind.TRANSFER)
    return [(row.at, Decimal(row.cash)) for row in store.query(query)]
