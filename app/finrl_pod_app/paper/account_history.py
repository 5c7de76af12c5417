"""Trades and equity of one strategy from a journal, and the backtest prices, for the attribution of differences."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from finrl_pod.evaluate.paper_backtest import Auction, TradedPrices
from finrl_pod.paper.domain.intents import FLATTEN
from finrl_pod.paper.domain.records import SOLD_BY_OTHERS, ActionKind, Side
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.decision_state import TAKEN, decode_weights, skip_reasons
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


def account_history(store: Store, run: str, *, has_strategies: bool) -> AccountHistory:
    """Read what a strategy decided, ordered and traded. has_strategies: it shares its account with others."""
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
    """Return prices and corporate actions of a backtest. close: panel closes, forward-filled."""
    fills = panel.close if auction == "close" or panel.open is None else panel.open
    if prices is None:
        prices = TradedPrices(close, np.ones_like(close), np.zeros_like(close))
        traded_prices = fills
    else:
        traded_prices = prices.fills(fills, close)
    days = [str(day) for day in panel.times.astype("datetime64[D]")]
    return DailyTerms(days, panel.symbols, prices.close, traded_prices, prices.splits, prices.dividends)


def _fills(store: Store, run: str, times: Sequence[str]) -> list[AccountFill]:
    return [
        AccountFill(
            bisect_left(times, row.at), row.symbol, Side(row.side).sign * float(row.quantity), float(row.price),
            float(row.fee), not row.bar.startswith(FLATTEN),
        )
        for row in store.query(schema.fills_with_intents.where(schema.intents.c.run == run))
    ]  # fmt: skip


def _intents(store: Store, run: str) -> list[AccountIntent]:
    intents = store.rows(schema.intents, schema.intents.c.run == run, schema.intents.c.bar.not_like(f"{FLATTEN}%"))
    states = {row.intent_id: row.state for row in store.rows(schema.intent_events)}
    sent_quantities = {row.intent_id: row.quantity for row in reversed(store.rows(schema.orders))}
    return [
        AccountIntent(
            bar=row.bar,
            symbol=row.symbol,
            quantity=Side(row.side).sign * float(row.quantity),
            sent_quantity=Side(row.side).sign * float(sent_quantities.get(row.id, 0)),
            state=states[row.id],
        )
        for row in intents
    ]


def _decision(row: Any) -> AccountDecision:
    weights = None if row.weights is None else decode_weights(row.weights)
    return AccountDecision(row.bar, weights, row.outcome not in TAKEN, skip_reasons(row.outcome, row.detail))


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


SPLITS = (ActionKind.SPLIT, ActionKind.STOCK_DIVIDEND)
LARGE_JUMP = 0.2  # of the scale between two sessions; taken for a split even if the journal has none
ROUNDED_SPLIT = 0.02  # largest relative difference between a jump and the split it is taken for
LARGEST_PART = 50  # of a split ratio such as 3:2
CENT = 0.011  # smaller dividends cannot be distinguished from the rounding of adjusted prices
SAME = 1e-9
ANNOUNCED = timedelta(days=14)  # between an ex-date and the session in which the journal records it


def traded_prices(store: Store, panel: Panel, close: Floats) -> TradedPrices | None:
    """Return the closes that the journal decisions saw, and the corporate actions that follow from their scale.

    Decisions see closes that are adjusted for the splits of the next session, but for no dividends.

    close: [T, N], the panel closes, forward-filled. None if the panel has the same, so that nothing was adjusted since.
    """
    seen_closes = _seen_closes(store, panel)
    scale = _filled(seen_closes / close)
    if not len(scale) or np.allclose(scale, 1.0, rtol=SAME, atol=0):
        return None
    traded_closes = np.where(np.isfinite(seen_closes), seen_closes, close * scale)
    splits = np.ones_like(close)
    dividends = np.zeros_like(close)
    actions = [row for row in store.rows(schema.corporate_actions) if row.kind in SPLITS]
    days = panel.times.astype("datetime64[D]").astype(object)
    jumps = scale[1:] / scale[:-1]
    for row, n in zip(*np.nonzero(np.abs(jumps - 1) > SAME), strict=True):
        t = int(row) + 1
        jump = float(jumps[row, n])
        ratio = _split_ratio(jump, actions, panel.symbols[n], days[t])
        dividend = float(traded_closes[row, n]) * (1 - jump * ratio)
        splits[t, n] = ratio
        dividends[t, n] = round(dividend, 4) if dividend > CENT else 0.0
    return TradedPrices(traded_closes, splits, dividends)


def _seen_closes(store: Store, panel: Panel) -> Floats:
    """[T, N], the close that the decision on each session saw; NaN where the journal has none."""
    days = {str(day): t for t, day in enumerate(panel.times.astype("datetime64[D]"))}
    columns = {symbol: n for n, symbol in enumerate(panel.symbols)}
    seen_closes = np.full((len(days), len(columns)), np.nan)
    for row in store.rows(schema.closes):
        cell = (days.get(row.session, -1), columns.get(row.symbol, -1))
        if min(cell) >= 0 and np.isnan(seen_closes[cell]):  # a later row is the same close after a split
            seen_closes[cell] = float(row.price)
    return seen_closes


def _filled(scale: Floats) -> Floats:
    """[T, N], with the last known value at bars without one, the first one before that, and 1 for unknown symbols."""
    filled = scale.copy()
    for n in range(scale.shape[1]):
        known_rows = np.flatnonzero(np.isfinite(scale[:, n]))
        if not len(known_rows):
            filled[:, n] = 1.0
            continue
        last_rows = np.searchsorted(known_rows, np.arange(len(scale)), side="right") - 1
        filled[:, n] = scale[known_rows[np.maximum(last_rows, 0)], n]
    return filled


def _split_ratio(jump: float, actions: Sequence[Any], symbol: str, day: date) -> float:
    """Shares after per share before, of an action after the close of `day`; 1 if it was a dividend."""
    period = (day + timedelta(days=1) - ANNOUNCED, day + ANNOUNCED)
    is_recorded = any(a.symbol == symbol and period[0] <= date.fromisoformat(a.ex_date) <= period[1] for a in actions)
    if not is_recorded and abs(jump - 1) < LARGE_JUMP:
        return 1.0
    ratio = Fraction(1 / jump).limit_denominator(LARGEST_PART)
    return float(ratio) if ratio and abs(float(ratio) * jump - 1) < ROUNDED_SPLIT else 1.0
