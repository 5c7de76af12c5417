"""Positions, open intents, orders and fills of the paper account. Cached frames are shared; do not modify them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pandas as pd

from finrl_pod.paper.domain.records import SOLD_BY_OTHERS, SUMMARY, ActionKind
from finrl_pod_app.dashboard.queries.paper_journal import CACHED_JOURNALS, Journal
from finrl_pod_app.dashboard.theme import money, signed_money

SHARE_DIGITS = 9  # decimals of the smallest fraction that a broker accepts; sums of floats are rounded to them


@lru_cache(maxsize=CACHED_JOURNALS)
def positions(journal: Journal) -> pd.DataFrame:
    """Positions of the strategy, largest first, including closed ones with a realised gain.

    Columns: symbol, shares, cost, average (cost per share), price (at the last decision), value, weight and target
    (shares of equity), distance (weight less target), gain (unrealised), gain_share (gain over cost), realised (gains
    at average cost, plus dividends, less fees).
    """
    accounts_by_symbol: dict[str, list[float]] = {}  # shares, cost, realised
    for event in _booked_events(journal):
        shares, cost, realised = accounts_by_symbol.setdefault(event.symbol, [0.0, 0.0, 0.0])
        shares_after = round(shares + event.change, SHARE_DIGITS)
        if event.kind == "action":  # a split changes shares and no cost; a dividend is income
            accounts_by_symbol[event.symbol] = [shares_after, cost, realised + event.cash]
            continue
        if shares * event.change < 0:  # a partial or full close
            closed_share = min(abs(event.change), abs(shares)) / abs(shares)
            sign = 1 if shares > 0 else -1
            realised += sign * (closed_share * abs(shares)) * event.price - closed_share * cost
            cost *= 1 - closed_share
            if shares_after * shares < 0:  # a reversal: the rest opens the other side
                cost = shares_after * event.price
        else:
            cost += event.change * event.price
        accounts_by_symbol[event.symbol] = [shares_after, cost if shares_after else 0.0, realised - event.fee]
    rows = [
        {"symbol": symbol, "shares": shares, "cost": cost, "realised": realised}
        for symbol, (shares, cost, realised) in accounts_by_symbol.items()
        if shares or realised
    ]
    frame = pd.DataFrame(rows, columns=["symbol", "shares", "cost", "realised"])
    frame["price"] = frame.symbol.map(journal.closes).astype(float)
    frame["average"] = (frame.cost / frame.shares).where(frame.shares != 0)
    frame["value"] = (frame.shares * frame.price).fillna(0.0)
    frame["gain"] = (frame.value - frame.cost).where(frame.shares != 0)
    equity = journal.cash + float(frame.value.sum())
    frame["weight"] = frame.value / equity if equity > 0 else float("nan")
    frame["target"] = frame.symbol.map(journal.targets).astype(float)
    frame["distance"] = frame.weight - frame.target
    frame["gain_share"] = (frame.gain / frame.cost.abs()).where(frame.cost != 0)
    return frame.sort_values(["value", "symbol"], ascending=[False, True], ignore_index=True)


def totals(journal: Journal) -> str:
    """Number and value of the positions, their gains, and cash, in one sentence."""
    account_positions = positions(journal)
    open_ones = account_positions[account_positions.shares != 0]
    gain = float(open_ones.gain.sum())
    value = float(open_ones.value.sum())
    cost = float((open_ones.average * open_ones.shares).abs().sum())
    share = f" ({gain / cost:+.1%} of cost)" if cost > 0 else ""
    return (
        f"Total of {len(open_ones):,} positions: {money(value)}, unrealised {signed_money(gain)}{share}, realised "
        f"{signed_money(float(account_positions.realised.sum()))}. Cash: {money(journal.cash)}."
    )


def external_holdings(journal: Journal) -> pd.DataFrame:
    """Shares on the account that the strategy does not own: symbol, shares."""
    total = journal.external.groupby("symbol").quantity.sum().round(SHARE_DIGITS)
    return total[total != 0].rename("shares").reset_index()


def open_intents(journal: Journal) -> pd.DataFrame:
    """Intents neither filled nor abandoned: symbol, side, intended and filled (shares), order (its state)."""
    orders = journal.orders[journal.orders.intent_id.isin(journal.intents.id)]
    filled = orders.groupby("intent_id").filled.sum()
    state = orders.groupby("intent_id").state.last()
    return journal.intents.assign(
        intended=journal.intents.quantity,
        filled=journal.intents.id.map(filled).fillna(0.0),
        order=journal.intents.id.map(state).fillna("not submitted"),
    )


@lru_cache(maxsize=CACHED_JOURNALS)
def orders(journal: Journal) -> pd.DataFrame:
    """All orders, newest first, with their average fill price."""
    frame = journal.orders.iloc[::-1].reset_index(drop=True)
    frame["average"] = (frame.value / frame.filled).where(frame.filled > 0)
    return frame


@lru_cache(maxsize=CACHED_JOURNALS)
def fills(journal: Journal) -> pd.DataFrame:
    """All fills, newest first, with slippage in basis points against the price at the decision."""
    frame = journal.fills.iloc[::-1].reset_index(drop=True)
    sign = frame.side.map({"buy": 1.0, "sell": -1.0}).astype(float)
    frame["value"] = frame.quantity * frame.price
    frame["slippage"] = sign * (frame.price / frame.reference_price - 1) * 10_000
    frame.loc[frame.bar.str.startswith("flatten"), "slippage"] = float("nan")  # a flatten has no decision price
    return frame


def day_summaries(journal: Journal) -> dict[str, str]:
    """Summaries of the daemon by session, latest first; those that the journal still lists."""
    summaries = journal.alerts[journal.alerts.kind == SUMMARY].iloc[::-1]
    return {message.partition(":")[0]: message for message in summaries.message}


def _booked_events(journal: Journal) -> list[Any]:
    """Fills and corporate actions in booking order. Shares taken by others count as sold."""
    fills = journal.fills
    sign = fills.side.map({"buy": 1.0, "sell": -1.0}).astype(float)
    fill_events = pd.DataFrame(
        {
            "at": fills["at"],
            "kind": "fill",
            "symbol": fills.symbol,
            "change": sign * fills.quantity,
            "price": fills.price,
            "fee": fills.fee,
            "cash": 0.0,
        }
    )
    actions = journal.actions[journal.actions.kind != ActionKind.TRANSFER]
    is_sale_by_others = actions.kind == SOLD_BY_OTHERS
    action_events = pd.DataFrame(
        {
            "at": actions["at"],
            "kind": is_sale_by_others.map({True: "fill", False: "action"}),
            "symbol": actions.symbol,
            "change": actions.own_change,
            "price": (actions.cash / -actions.own_change).where(is_sale_by_others, 0.0),
            "fee": 0.0,
            "cash": actions.cash,
        }
    )
    event_frames = [frame for frame in (fill_events, action_events) if len(frame)]
    if not event_frames:
        return []
    return list(pd.concat(event_frames).sort_values("at", kind="stable").itertuples(index=False))
