"""Trades and equity of one strategy from a journal, and the backtest prices, for the attribution of differences."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from sqlalchemy import select

from finrl_pod.evaluate.paper_backtest import Auction, TradedPrices
from finrl_pod.paper.domain.intents import FLATTEN
from finrl_pod.paper.domain.records import SOLD_BY_OTHERS, Side
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store
from finrl_pod.types import Floats, Panel
from finrl_pod_app.paper.attribution import (
    AccountAction,
    AccountDecision,
    AccountFill,
    AccountHistory,
    AccountIntent,
    DailyTerms,
)

TAKEN = ("orders", "hold", "target")  # outcomes of decisions that were taken


def account_history(store: Store, run: str, *, has_strategies: bool) -> AccountHistory:
    """Read what a strategy decided, ordered and traded. several: whether it shares its account with others."""
    if has_strategies:
        marks = store.rows(schema.strategy_equity, schema.strategy_equity.c.run == run)
    else:
        marks = store.rows(schema.equity)
    times = [mark.at for mark in marks]
    return AccountHistory(
        [mark.session for mark in marks],
        [Decimal(mark.equity) for mark in marks],
        _fills(store, run, times),
        _intents(store, run),
        [_decision(row) for row in store.rows(schema.decisions, schema.decisions.c.run == run)],
        _actions(store, run, times, has_strategies=has_strategies),
    )


def daily_terms(panel: Panel, close: Floats, prices: TradedPrices | None, auction: Auction) -> DailyTerms:
    """Return prices and corporate actions of a backtest. close: the panel's, forward-filled."""
    fills = panel.close if auction == "close" or panel.open is None else panel.open
    if prices is None:
        prices = TradedPrices(close, np.ones_like(close), np.zeros_like(close))
        traded_prices = fills
    else:
        traded_prices = prices.fills(fills, close)
    days = [str(day) for day in panel.times.astype("datetime64[D]")]
    return DailyTerms(days, panel.symbols, prices.close, traded_prices, prices.splits, prices.dividends)


def _fills(store: Store, run: str, times: Sequence[str]) -> list[AccountFill]:
    fills = schema.fills.c
    orders = schema.orders.c
    intents = schema.intents.c
    query = (
        select(fills.at, fills.quantity, fills.price, fills.fee, intents.bar, intents.symbol, intents.side)
        .join(schema.orders, fills.order_id == orders.id)
        .join(schema.intents, orders.intent_id == intents.id)
        .where(intents.run == run)
        .order_by(fills.id)
    )
    with store.read() as connection:
        rows = connection.execute(query).all()
    return [
        AccountFill(
            bisect_left(times, row.at), row.symbol, Side(row.side).sign * float(row.quantity), float(row.price),
            float(row.fee), not row.bar.startswith(FLATTEN),
        )
        for row in rows
    ]  # fmt: skip


def _intents(store: Store, run: str) -> list[AccountIntent]:
    intents = store.rows(schema.intents, schema.intents.c.run == run, schema.intents.c.bar.not_like(f"{FLATTEN}%"))
    states = {row.intent_id: row.state for row in store.rows(schema.intent_events)}
    first = {row.intent_id: row.quantity for row in reversed(store.rows(schema.orders))}
    whole = {row.id: row.quantity for row in intents if row.id in first}  # of slices, sent one by one
    return [
        AccountIntent(
            row.bar, row.symbol, Side(row.side).sign * float(row.quantity),
            Side(row.side).sign * float((first if row.slicing is None else whole).get(row.id, 0)), states[row.id],
        )
        for row in intents
    ]  # fmt: skip


def _decision(row: Any) -> AccountDecision:
    taken = row.outcome in TAKEN
    weights = None if row.weights is None else json.loads(row.weights)
    return AccountDecision(row.bar, weights, not taken, json.loads(row.detail) if taken else {})


def _actions(store: Store, run: str, times: Sequence[str], *, has_strategies: bool) -> list[AccountAction]:
    rows = store.rows(schema.corporate_actions)
    if has_strategies:
        action_parts = store.rows(schema.action_parts, schema.action_parts.c.run == run)
        actions = {row.id: row for row in rows}
        rows_by_action = [(actions[share.action_id], share) for share in action_parts]
    else:
        rows_by_action = [(row, row) for row in rows]
    return [
        AccountAction(
            bisect_left(times, action.at), action.symbol, float(share.own_change), float(share.cash),
            action.kind == SOLD_BY_OTHERS,
        )
        for action, share in rows_by_action
    ]  # fmt: skip
