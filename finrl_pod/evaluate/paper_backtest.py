"""Backtest with the orders of the paper-trading daemon (execution="paper") instead of exact target weights.

Orders of bar t fill in the opening or closing auction of bar t + 1, unless the price is beyond their limit; what is
missing is ordered again at the next bars. In a market that never closes they fill on a straight line from open to close
of bar t + 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal
from typing import Literal

import numpy as np
import torch

from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import (
    bar_date,
    check_weights,
    feature_columns,
    feature_lookback_of,
    features_at,
    lookback_of,
    target_weights_of,
    window_at,
)
from finrl_pod.evaluate.metrics import bars_per_year, summary
from finrl_pod.market.execution import ExecutionRules, execute
from finrl_pod.market.orders import (
    FRACTION,
    PositionTarget,
    SizingRules,
    fill_on_path,
    limit_price,
    missing_shares,
    orders_within_limits,
    target_positions,
)
from finrl_pod.market.venue import cash_returns
from finrl_pod.native.device import one_thread
from finrl_pod.protocols import Strategy
from finrl_pod.types import BacktestResult, Floats, MarketTensor, Panel, Positions

ZERO = Decimal(0)
PRICE_DECIMALS = 6  # of fills in prices as they stood on the day
Auction = Literal["open", "close"]


@dataclass(frozen=True)
class PaperOrder:
    """An order. bar: time of the decision. quantity, filled: signed shares. price: fill price, None if unfilled."""

    bar: np.datetime64
    symbol: str
    quantity: Decimal
    filled: Decimal
    price: Decimal | None


@dataclass(frozen=True, eq=False)
class TradedPrices:
    """Prices as they stood on each day, for a panel whose history was adjusted for corporate actions since.

    close: [T, N] closes of bar t as the decision on it saw them, in shares of the next session; also of symbols without
    a bar. splits: [T, N] shares in the next session per share of bar t. dividends: [T, N] cash per share, of those
    whose ex-date is bar t, paid on the shares held before its fills.
    """

    close: Floats
    splits: Floats
    dividends: Floats

    def fills(self, panel_fills: Floats, panel_close: Floats) -> Floats:
        """Fill prices [T, N] as they stood. panel_fills, panel_close: [T, N], prices of the panel."""
        prices: Floats = np.round(panel_fills * (self.close * self.splits / panel_close), PRICE_DECIMALS)
        return prices


@dataclass(frozen=True, eq=False)
class PaperBacktest:
    """equity: [L], marked at the closes first..last. orders: ordered by decision. result: backtest with metrics."""

    equity: tuple[Decimal, ...]
    orders: tuple[PaperOrder, ...]
    result: BacktestResult


@one_thread()
def backtest_paper(
    strategy: Strategy, panel: Panel, market: MarketTensor, first: int, last: int, rules: SizingRules, cash: float,
    auction: Auction, traded_prices: TradedPrices | None = None, hours: tuple[float, float] | None = None,
) -> PaperBacktest:  # fmt: skip
    """Backtest one account from cash at bar `first` to the close of bar `last`, trading with whole orders.

    traded_prices: prices that orders are sized, filled and valued at; dividends are paid in cash. None for prices and
    dividends of the panel. The strategy sees prices of the panel either way. hours: fractions of a bar between which
    orders may fill; None for the auction.

    Symbols without a bar at the decision are not traded. Raises InputError if the panel lacks prices of the auction,
    and as `backtest` if the strategy fails or returns invalid weights.
    """
    if panel.members is not None:
        raise InputError(f"panel {panel.name!r} has a membership table, and orders of the daemon do not follow one")
    fills: Floats | None = panel.open if auction == "open" else panel.close
    if fills is None:
        raise InputError(f"panel {panel.name!r} has no opening prices; use the closing auction")
    columns = feature_columns(strategy, market)
    closes = market.close.double().cpu().numpy()
    if traded_prices is None and panel.dividend is not None:
        traded_prices = TradedPrices(closes, np.ones_like(closes), np.nan_to_num(panel.dividend))
    path = None if hours is None else _paths(panel, closes, traded_prices)
    if traded_prices is not None:
        fills = traded_prices.fills(fills, closes)
        closes = traded_prices.close
    funds = Decimal(str(cash))
    shares = [ZERO] * len(panel.symbols)
    equity = [funds]
    weights = [np.zeros(len(shares))]
    turnover = [0.0]
    costs = [0.0]
    orders = []
    targets: Sequence[PositionTarget | None] | None = None
    decision_bar = first
    for t in range(first, last):
        target = _target(strategy, panel, market, t, columns, funds, shares, closes[t])
        prices = [Decimal(repr(float(p))) for p in closes[t]]
        is_fixed = [not tradable for tradable in panel.tradable[t]]
        if target is not None:
            targets = target_positions([float(w) for w in target], funds, shares, prices, is_fixed, rules)
            decision_bar = t
        elif t - decision_bar > rules.target_sessions:
            targets = None
        cost = traded_value = ZERO
        if traded_prices is not None:
            dividends = traded_prices.dividends[t + 1].tolist()
            funds += sum((s * Decimal(repr(d)) for s, d in zip(shares, dividends, strict=True) if d), ZERO)
        equity_before = funds + _value(shares, fills[t + 1], closes[t])
        if targets is not None:
            missing = missing_shares(targets, funds, shares, prices, rules)
            if not any(missing):
                targets = None  # reached: later moves of prices do not reopen it
            quantities = orders_within_limits(missing, funds, shares, prices, is_fixed, rules)
            account = (panel.tradable[t + 1], funds, shares, rules)
            if hours is None or path is None:
                fill_prices = fills[t + 1]
                filled = _fill(quantities, prices, fill_prices, *account)
            else:
                ends = (path[0][t + 1], path[1][t + 1])
                filled, fill_prices = _fill_within_bar(quantities, prices, ends, hours, *account)
            for n, symbol in enumerate(panel.symbols):
                if quantities[n]:
                    size = filled[n]
                    price = Decimal(repr(float(fill_prices[n]))) if size else None
                    value = size * price if price is not None else ZERO
                    orders.append(PaperOrder(panel.times[t], symbol, quantities[n], size, price))
                    fee = abs(value) * rules.cost_rate
                    funds -= value + fee
                    shares[n] += size
                    cost = cost + fee
                    traded_value = traded_value + abs(value)
        if traded_prices is not None:
            ratios = [Decimal(repr(ratio)) for ratio in traded_prices.splits[t + 1].tolist()]
            shares = [
                s if r == 1 else (s * r).quantize(FRACTION, ROUND_DOWN) for s, r in zip(shares, ratios, strict=True)
            ]
            if targets is not None:
                targets = [
                    p and dataclasses.replace(p, shares=p.shares * r) for p, r in zip(targets, ratios, strict=True)
                ]
        total = funds + _value(shares, closes[t + 1], closes[t + 1])
        equity.append(total)
        values = np.array([float(s) for s in shares]) * closes[t + 1]
        weights.append(values / float(total) if total > 0 else np.zeros(len(shares)))
        turnover.append(float(traded_value / equity_before) if equity_before > 0 else 0.0)
        costs.append(float(cost))
    marks, turnover_column, cost_column = (np.array([float(x) for x in column]) for column in (equity, turnover, costs))
    returns = cash_returns(panel.times, panel.cash_rates)
    risk_free = None if returns is None else returns[first:last]
    result = BacktestResult(
        name=strategy.name,
        times=panel.times[first : last + 1].copy(),
        symbols=panel.symbols,
        equity=marks,
        weights=np.stack(weights),
        turnover=turnover_column,
        costs=cost_column,
        metrics=summary(marks, turnover_column, cost_column, bars_per_year(panel.times), risk_free),
        risk_free=risk_free,
    )
    return PaperBacktest(tuple(equity), tuple(orders), result)


def _target(
    strategy: Strategy, panel: Panel, market: MarketTensor, t: int, columns: list[int] | None, cash: Decimal,
    shares: list[Decimal], close: Floats,
) -> Floats | None:  # fmt: skip
    features = features_at(market, t, columns, feature_lookback_of(strategy))
    values = np.array([float(s) for s in shares]) * close
    total = float(cash) + float(values.sum())
    positions = Positions(weights=values / total, cash=float(cash) / total, equity=total)
    window = window_at(panel, t, lookback_of(strategy), features)
    target = target_weights_of(strategy, window, positions, bar_date(market, t))
    if target is None:
        return None
    check_weights(market, t, torch.from_numpy(target).unsqueeze(0), ExecutionRules())
    return np.maximum(target, 0.0)  # rounding may leave small negative weights


def _fill(
    quantities: list[Decimal], prices: list[Decimal], auction_prices: Floats, tradable: np.ndarray, cash: Decimal,
    shares: list[Decimal], rules: SizingRules,
) -> list[Decimal]:  # fmt: skip
    """Signed shares filled in one auction: sales first, then the purchases that cash can pay for (`execute`)."""
    taking = []
    for n, quantity in enumerate(quantities):
        if quantity and tradable[n]:
            limit = limit_price(prices[n], quantity, rules.collar) if rules.collar else None
            price = Decimal(repr(float(auction_prices[n])))
            if limit is None or (price <= limit if quantity > 0 else price >= limit):
                taking.append(n)
    filled = [ZERO] * len(quantities)
    if not taking:
        return filled
    has_whole_shares = all(quantities[n] == quantities[n].to_integral_value() for n in taking)
    holdings = torch.tensor([float(shares[n]) for n in taking], dtype=torch.float64)
    trades = torch.tensor([float(quantities[n]) for n in taking], dtype=torch.float64)
    execution = ExecutionRules(cost_rate=float(rules.cost_rate), whole_shares=has_whole_shares)
    funds = torch.tensor(float(cash), dtype=torch.float64)
    new_holdings = execute(funds, holdings, trades, torch.from_numpy(auction_prices[taking].copy()), execution).shares
    for n, change in zip(taking, (new_holdings - holdings).tolist(), strict=True):
        size = min(Decimal(repr(abs(change))).quantize(FRACTION, ROUND_DOWN), abs(quantities[n]))
        if abs(quantities[n]) - size < Decimal("1e-6"):  # rounding: `execute` works in floats
            size = abs(quantities[n])
        filled[n] = size if quantities[n] > 0 else -size
    return filled


def _fill_within_bar(
    quantities: list[Decimal], prices: list[Decimal], path: tuple[Floats, Floats], hours: tuple[float, float],
    tradable: np.ndarray, cash: Decimal, shares: list[Decimal], rules: SizingRules,
) -> tuple[list[Decimal], Floats]:  # fmt: skip
    """Signed shares filled within a bar, and their prices [N]. path: open and close of the bar, [N] each."""
    fill_prices = np.full(len(quantities), np.nan)
    filling = [ZERO] * len(quantities)
    for n, quantity in enumerate(quantities):
        limit = limit_price(prices[n], quantity, rules.collar) if rules.collar else None
        fill = fill_on_path(float(path[0][n]), float(path[1][n]), hours[0], limit, buys=quantity > 0)
        if quantity and fill is not None and fill[0] < hours[1]:
            filling[n] = quantity
            fill_prices[n] = fill[1]
    market = dataclasses.replace(rules, collar=ZERO)  # the limits are checked above
    return _fill(filling, prices, fill_prices, tradable, cash, shares, market), fill_prices


def _paths(panel: Panel, closes: Floats, traded_prices: TradedPrices | None) -> tuple[Floats, Floats]:
    """Prices [T, N] at the open, or at the close before in a panel without opens, and at the close of each bar."""
    first = np.concatenate([closes[:1], closes[:-1]]) if panel.open is None else panel.open
    if traded_prices is None:
        return first, closes
    return traded_prices.fills(first, closes), traded_prices.fills(closes, closes)


def _value(shares: list[Decimal], prices: Floats, otherwise: Floats) -> Decimal:
    """Value of the holdings at `prices`, at `otherwise` where those are missing."""
    known_prices = np.where(np.isfinite(prices), prices, otherwise)
    return sum((s * Decimal(repr(float(p))) for s, p in zip(shares, known_prices, strict=True) if s), ZERO)
