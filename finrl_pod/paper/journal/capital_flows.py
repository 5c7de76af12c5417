"""Deposits and withdrawals of an account, and changes of its allocated capital: none of them is a profit or a loss."""

from __future__ import annotations

from decimal import Decimal

from sqlalchemy import select

from finrl_pod.paper.domain.flows import (
    Amounts,
    capital_changes,
    flow_adjusted,
    recorded_capital,
    starting_capital,
)
from finrl_pod.paper.domain.records import ActionKind
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.settings import PaperConfig


def capital_flows(store: Store, run: str = "") -> list[tuple[str, Decimal]]:
    """Return time and amount of the flows of an account, or those of one of several strategies that share it."""
    amounts = schema.action_parts if run else schema.corporate_actions
    query = select(schema.corporate_actions.c.at, amounts.c.cash)
    if run:
        query = query.join_from(schema.action_parts, schema.corporate_actions).where(schema.action_parts.c.run == run)
    query = query.where(schema.corporate_actions.c.kind == ActionKind.TRANSFER)
    transfers = [(row.at, Decimal(row.cash)) for row in store.query(query)]
    return [*transfers, *capital_changes(_recorded_capital(store, run))]


def adjusted_equity(store: Store, config: PaperConfig, marks: Amounts) -> list[Decimal]:
    """Return the capital at the start and the equity of all marks of an account, each scaled by later flows."""
    return flow_adjusted(starting_capital(_recorded_capital(store), config.capital), marks, capital_flows(store))


def _recorded_capital(store: Store, run: str = "") -> list[tuple[str, Decimal]]:
    return recorded_capital(((row.at, row.content) for row in store.rows(schema.settings)), run)
