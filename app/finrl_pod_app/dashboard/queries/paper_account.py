"""Books of the strategies, positions, open intents, orders and fills of the paper account.

Equity, cash, positions and targets belong to one moment: now, at the last known closes. Cached frames are shared; do
not modify them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any

import pandas as pd

from finrl_pod.errors import count_text
from finrl_pod.paper.domain.order_state import OrderState
from finrl_pod.paper.domain.records import SOLD_BY_OTHERS, SUMMARY, ActionKind
from finrl_pod.paper.settings import allocations
from finrl_pod_app.dashboard.queries.paper_journal import CACHED_JOURNALS, Journal, strategy_name
from finrl_pod_app.dashboard.theme import EXCHANGE_ZONE, money, signed_money

CENT = 0.005
SHARE_DIGITS = 9  # decimals of the smallest fraction that a broker accepts; sums of floats are rounded to them


@lru_cache(maxsize=CACHED_JOURNALS)
def books(journal: Journal) -> pd.DataFrame:
    """One row per strategy: strategy, definition (what decides), share of equity, equity, cash, value (of its shares).

    Strategies that are no longer in the config keep their row while they hold shares or cash. Capital that no strategy
    has is a row without a name. The rows add up to the account.
    """
    capital_by_strategy = _capital_by_strategy(journal)
    events = booked_changes(journal)
    flows = (events.cash - events.fee).groupby(events.strategy).sum()
    shares = events.groupby(["strategy", "symbol"]).shares.sum().round(SHARE_DIGITS).reset_index()
    values = (shares.shares * shares.symbol.map(journal.closes).fillna(0.0)).groupby(shares.strategy).sum()
    definitions = journal.strategies.groupby("strategy")["name"].last()
    names = list(dict.fromkeys([*capital_by_strategy, *sorted(flows.index)]))
    capital = pd.Series([capital_by_strategy.get(name, 0.0) for name in names], index=names)
    frame = pd.DataFrame({"strategy": names, "definition": [str(definitions.get(name, "")) for name in names]})
    frame["cash"] = (capital + flows.reindex(names, fill_value=0.0)).to_numpy()
    frame["value"] = values.reindex(names, fill_value=0.0).to_numpy()
    remaining_cash = journal.cash - float(frame.cash.sum())
    if abs(remaining_cash) >= CENT:
        rest = pd.DataFrame({"strategy": [""], "definition": [""], "cash": [remaining_cash], "value": [0.0]})
        frame = pd.concat([frame, rest], ignore_index=True)
    frame["equity"] = frame.cash + frame.value
    frame = frame[frame.strategy.isin(list(capital_by_strategy)) | (frame.cash.abs() + frame.value.abs() >= CENT)]
    total = float(frame.equity.sum())
    frame["share"] = frame.equity / total if total > 0 else float("nan")
    return frame.reset_index(drop=True)


def _capital_by_strategy(journal: Journal) -> dict[str, float]:
    """Capital of each strategy in the config; without a config, the capital of the only one that traded."""
    if journal.config is None:
        names = set(journal.fills.strategy)
        return {names.pop() if len(names) == 1 else "": journal.allocated}
    parts = allocations(journal.config)
    return {strategy_name(journal.config, part.name): part.capital for part in parts}


def strategies_of(journal: Journal) -> list[str]:
    """Names of the strategies in the config."""
    return list(_capital_by_strategy(journal)) if journal.config is not None else []


def target_weights(journal: Journal) -> dict[str, float]:
    """Target weights of the last decision of each strategy, summed as shares of the account equity, by symbol."""
    shares = dict(zip(books(journal).strategy, books(journal).share, strict=True))
    targets: dict[str, float] = {}
    for strategy in _capital_by_strategy(journal):
        for symbol, weight in journal.weights.get(strategy, {}).items():
            targets[symbol] = targets.get(symbol, 0.0) + shares[strategy] * weight
    return targets


def booked_changes(journal: Journal) -> pd.DataFrame:
    """Fills and corporate actions in booking order, one row for each strategy that one concerns.

    Columns: at, kind ("fill" or a kind of action), strategy, symbol (empty for a transfer), shares and cash (signed
    changes, cash without fees), price (of a fill or a sale by others), fee.
    """
    fills = journal.fills
    sign = fills.side.map({"buy": 1.0, "sell": -1.0}).astype(float)
    fill_rows = fills[["at", "strategy", "symbol", "price", "fee"]].assign(
        kind="fill", shares=sign * fills.quantity, cash=-sign * fills.quantity * fills.price
    )
    actions = journal.actions
    is_sale = (actions.kind == SOLD_BY_OTHERS) & (actions.own_change != 0)
    action_rows = actions[["at", "kind", "strategy", "symbol", "cash"]].assign(
        shares=actions.own_change, price=(actions.cash / -actions.own_change.where(is_sale)).fillna(0.0), fee=0.0
    )
    frames = [frame for frame in (fill_rows, action_rows) if len(frame)] or [fill_rows]
    return pd.concat(frames).sort_values("at", kind="stable", ignore_index=True)


@lru_cache(maxsize=CACHED_JOURNALS)
def positions(journal: Journal) -> pd.DataFrame:
    """Positions of the account, largest first, with closed ones that have a realised gain or a target.

    Columns: symbol, shares, cost, average (cost per share), price (at the last decision), value, weight and target
    (shares of equity), distance (weight less target), gain (unrealised), gain_share (gain over cost), realised (gains
    at average cost, plus dividends, less fees).
    """
    accounts_by_symbol: dict[str, list[float]] = {}  # shares, cost, realised
    events: list[Any] = list(booked_changes(journal).itertuples(index=False))
    for event in events:
        if event.kind == ActionKind.TRANSFER:
            continue
        shares, cost, realised = accounts_by_symbol.setdefault(event.symbol, [0.0, 0.0, 0.0])
        shares_after = round(shares + event.shares, SHARE_DIGITS)
        if event.kind not in ("fill", SOLD_BY_OTHERS):  # a split changes shares and no cost; a dividend is income
            accounts_by_symbol[event.symbol] = [shares_after, cost, realised + event.cash]
            continue
        if shares * event.shares < 0:  # a partial or full close
            closed_share = min(abs(event.shares), abs(shares)) / abs(shares)
            sign = 1 if shares > 0 else -1
            realised += sign * (closed_share * abs(shares)) * event.price - closed_share * cost
            cost *= 1 - closed_share
            if shares_after * shares < 0:  # a reversal: the rest opens the other side
                cost = shares_after * event.price
        else:
            cost += event.shares * event.price
        accounts_by_symbol[event.symbol] = [shares_after, cost if shares_after else 0.0, realised - event.fee]
    targets = target_weights(journal)
    accounts_by_symbol |= {
        s: [0.0, 0.0, 0.0] for s, weight in targets.items() if weight and s not in accounts_by_symbol
    }
    rows = [
        {"symbol": symbol, "shares": shares, "cost": cost, "realised": realised}
        for symbol, (shares, cost, realised) in accounts_by_symbol.items()
        if shares or realised or targets.get(symbol)
    ]
    frame = pd.DataFrame(rows, columns=["symbol", "shares", "cost", "realised"])
    frame["price"] = frame.symbol.map(journal.closes).astype(float)
    frame["average"] = (frame.cost / frame.shares).where(frame.shares != 0)
    frame["value"] = (frame.shares * frame.price).fillna(0.0)
    frame["gain"] = (frame.value - frame.cost).where(frame.shares != 0)
    equity = journal.cash + float(frame.value.sum())
    frame["weight"] = frame.value / equity if equity > 0 else float("nan")
    frame["target"] = frame.symbol.map(targets).astype(float)
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
        f"Total of {count_text(len(open_ones), 'position')}: {money(value)}, unrealised {signed_money(gain)}{share}, "
        f"realised {signed_money(float(account_positions.realised.sum()))}. Cash: {money(journal.cash)}. Equity: "
        f"{money(journal.cash + value)}."
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
    """All orders, newest first, with their average fill price.

    state: last known status at the broker; of orders that it does not know, the state of the daemon.
    """
    frame = journal.orders.iloc[::-1].reset_index(drop=True)
    is_known = frame.state.isin([OrderState.WORKING, OrderState.ENDED])
    frame["state"] = frame.status.where(is_known, frame.state).str.replace("_", " ")
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


@dataclass(frozen=True)
class OrderFilter:
    """Which orders and fills are shown; empty fields select all. first, last: days at the exchange."""

    first: date | None = None
    last: date | None = None
    strategies: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    states: tuple[str, ...] = ()

    def select(self, frame: pd.DataFrame, time: str) -> pd.DataFrame:
        """The rows of a frame of intents, orders or fills. time: name of its column with the time."""
        days = frame[time].dt.tz_convert(EXCHANGE_ZONE).dt.date
        mask = pd.Series(True, index=frame.index)
        if self.first is not None:
            mask &= days >= self.first
        if self.last is not None:
            mask &= days <= self.last
        for column, values in (("strategy", self.strategies), ("symbol", self.symbols), ("state", self.states)):
            if values and column in frame.columns:
                mask &= frame[column].isin(values)
        return frame[mask]


def day_summaries(journal: Journal) -> dict[str, str]:
    """Summaries of the daemon by session, latest first; those that the journal still lists."""
    summaries = journal.alerts[journal.alerts.kind == SUMMARY].iloc[::-1]
    return {message.partition(":")[0]: message for message in summaries.message}
