"""Backtest with the orders of the paper-trading daemon (execution="paper") instead of exact target weights.

A decision at bar t becomes orders at the closes of t (whole shares or nine decimals, a cash buffer, a minimum value).
These orders fill in the opening or closing auction of bar t + 1. A limit order does not fill if the auction price is
beyond its limit. What is missing then is ordered again at the next bars, if the strategy keeps its positions there.
Sliced orders fill during bar t + 1, on a straight line from its open to its close (`SlicedExecution`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
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
    WHOLE,
    PositionTarget,
    SizingRules,
    limit_price,
    missing_shares,
    orders_within_limits,
    target_positions,
)
from finrl_pod.market.slicing import SlicePlan, fill_on_path
from finrl_pod.native.threads import one_thread
from finrl_pod.protocols import Strategy
from finrl_pod.types import BacktestResult, Floats, MarketTensor, Panel, Positions

ZERO = Decimal(0)
PRICE_DECIMALS = 6  # of fills in prices as they stood on the day
Auction = Literal["open", "close"]


@dataclass(frozen=True)
class PaperOrder:
    """An order. bar: time of the decision. quantity, filled: signed shares. price: of the fill, None if unfilled."""

    bar: np.datetime64
    symbol: str
    quantity: Decimal
    filled: Decimal
    price: Decimal | None


@dataclass(frozen=True)
class SlicedExecution:
    """Orders in slices, all of even volume, in place of an auction.

    parts: of each bar, when its slices are sent and when the window ends, as parts (0 to 1) of its session. plan: sizes
    the slices of a bar, by their number. rests: what is left is a market order at the end of the window.
    """

    parts: Sequence[Sequence[float]]
    plan: Callable[[int], SlicePlan]
    rests: bool


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
        """Fill prices [T, N] as they stood. panel_fills, panel_close: [T, N], the panel's."""
        prices: Floats = np.round(panel_fills * (self.close * self.splits / panel_close), PRICE_DECIMALS)
        return prices


@dataclass(frozen=True, eq=False)
class PaperBacktest:
    """equity: [L], marked at the closes first..last. orders: in the order of decisions. result: with metrics."""

    equity: tuple[Decimal, ...]
    orders: tuple[PaperOrder, ...]
    result: BacktestResult


@one_thread()
def backtest_paper(
    strategy: Strategy, panel: Panel, market: MarketTensor, first: int, last: int, rules: SizingRules, cash: float,
    auction: Auction, traded_prices: TradedPrices | None = None, sliced: SlicedExecution | None = None,
) -> PaperBacktest:  # fmt: skip
    """Backtest one account from cash at bar `first` to the close of bar `last`, trading with whole orders.

    traded_prices: prices that orders are sized, filled and valued at; dividends are paid in cash. None for the panel's,
    with its dividends. The strategy sees the panel's prices either way. sliced: sends orders in slices; None for the
    auction.

    Symbols without a bar at the decision are not traded. Raises InputError if the panel lacks the auction's prices, and
    as `backtest` if the strategy fails or returns invalid weights.
    """
    if panel.members is not None:
        raise InputError(f"panel {panel.name!r} has a membership table, which the daemon's orders do not follow")
    fills: Floats | None = panel.open if auction == "open" else panel.close
    if fills is None:
        raise InputError(f"panel {panel.name!r} has no opening prices; use the closing auction")
    columns = feature_columns(strategy, market)
    closes = market.close.double().cpu().numpy()
    if traded_prices is None and panel.dividend is not None:
        traded_prices = TradedPrices(closes, np.ones_like(closes), np.nan_to_num(panel.dividend))
    path = None if sliced is None else _paths(panel, closes, traded_prices)
    if traded_prices is not None:
        fills, closes = traded_prices.fills(fills, closes), traded_prices.close
    funds, shares = Decimal(str(cash)), [ZERO] * len(panel.symbols)
    equity, weights, turnover, costs, orders = [funds], [np.zeros(len(shares))], [0.0], [0.0], []
    targets: Sequence[PositionTarget | None] | None = None
    decided = first
    for t in range(first, last):
        target = _target(strategy, panel, market, t, columns, funds, shares, closes[t])
        prices = [Decimal(repr(float(p))) for p in closes[t]]
        fixed = [not tradable for tradable in panel.tradable[t]]
        if target is not None:
            targets, decided = target_positions([float(w) for w in target], funds, shares, prices, fixed, rules), t
        elif t - decided > rules.target_sessions:
            targets = None
        cost = traded = ZERO
        if traded_prices is not None:
            funds += _paid(traded_prices.dividends[t + 1], shares)
        before = funds + _value(shares, fills[t + 1], closes[t])
        if targets is not None:
            missing = missing_shares(targets, funds, shares, prices, rules)
            if not any(missing):
                targets = None  # reached: later moves of prices do not reopen it
            quantities = orders_within_limits(missing, funds, shares, prices, fixed, rules)
            if sliced is None or path is None:
                at = fills[t + 1]
                executed = [(_fill(quantities, prices, at, panel.tradable[t + 1], funds, shares, rules), at)]
            else:
                ends = (path[0][t + 1], path[1][t + 1])
                executed = _fill_slices(
                    quantities, prices, ends, sliced, t + 1, panel.tradable[t + 1], funds, shares, rules
                )
            for n, symbol in enumerate(panel.symbols):
                if quantities[n]:
                    parts = [(shares_n[n], Decimal(repr(float(at[n])))) for shares_n, at in executed if shares_n[n]]
                    size, value = sum((q for q, _ in parts), ZERO), sum((q * p for q, p in parts), ZERO)
                    price = value / size if len(parts) > 1 else parts[0][1] if parts else None
                    orders.append(PaperOrder(panel.times[t], symbol, quantities[n], size, price))
                    fee = abs(value) * rules.cost_rate
                    funds -= value + fee
                    shares[n] += size
                    cost, traded = cost + fee, traded + abs(value)
        if traded_prices is not None:
            shares = _after_splits(traded_prices.splits[t + 1], shares)
        total = funds + _value(shares, closes[t + 1], closes[t + 1])
        equity.append(total)
        values = np.array([float(s) for s in shares]) * closes[t + 1]
        weights.append(values / float(total) if total > 0 else np.zeros(len(shares)))
        turnover.append(float(traded / before) if before > 0 else 0.0)
        costs.append(float(cost))
    marks, turned, paid = (np.array([float(x) for x in column]) for column in (equity, turnover, costs))
    result = BacktestResult(
        name=strategy.name,
        times=panel.times[first : last + 1].copy(),
        symbols=panel.symbols,
        equity=marks,
        weights=np.stack(weights),
        turnover=turned,
        costs=paid,
        metrics=summary(marks, turned, paid, bars_per_year(panel.times)),
    )
    return PaperBacktest(tuple(equity), tuple(orders), result)


def _paid(dividends: Floats, shares: list[Decimal]) -> Decimal:
    return sum((s * Decimal(repr(float(d))) for s, d in zip(shares, dividends, strict=True) if d), ZERO)


def _after_splits(ratios: Floats, shares: list[Decimal]) -> list[Decimal]:
    pairs = zip(shares, ratios.tolist(), strict=True)
    return [s if r == 1 else (s * Decimal(repr(r))).quantize(FRACTION, ROUND_DOWN) for s, r in pairs]


def _target(
    strategy: Strategy, panel: Panel, market: MarketTensor, t: int, columns: list[int] | None, cash: Decimal,
    shares: list[Decimal], close: Floats,
) -> Floats | None:  # fmt: skip
    features = features_at(market, t, columns, feature_lookback_of(strategy))
    values = np.array([float(s) for s in shares]) * close
    total = float(cash) + float(values.sum())
    held = Positions(weights=values / total, cash=float(cash) / total, equity=total)
    window = window_at(panel, t, lookback_of(strategy), features)
    target = target_weights_of(strategy, window, held, bar_date(market, t))
    if target is None:
        return None
    check_weights(market, t, torch.from_numpy(target).unsqueeze(0), ExecutionRules())
    return np.maximum(target, 0.0)  # rounding may leave small negative weights


def _fill(
    quantities: list[Decimal], prices: list[Decimal], at: Floats, tradable: np.ndarray, cash: Decimal,
    shares: list[Decimal], rules: SizingRules,
) -> list[Decimal]:  # fmt: skip
    """Signed shares filled in one auction: sales first, then the purchases that cash can pay for (`execute`)."""
    taking = [
        n for n, q in enumerate(quantities) if q and tradable[n] and _within_limit(q, prices[n], float(at[n]), rules)
    ]
    filled = [ZERO] * len(quantities)
    if not taking:
        return filled
    whole = all(quantities[n] == quantities[n].to_integral_value() for n in taking)
    held = torch.tensor([float(shares[n]) for n in taking], dtype=torch.float64)
    trades = torch.tensor([float(quantities[n]) for n in taking], dtype=torch.float64)
    execution = ExecutionRules(cost_rate=float(rules.cost_rate), whole_shares=whole)
    funds = torch.tensor(float(cash), dtype=torch.float64)
    after = execute(funds, held, trades, torch.from_numpy(at[taking].copy()), execution).shares
    for n, change in zip(taking, (after - held).tolist(), strict=True):
        size = min(Decimal(repr(abs(change))).quantize(FRACTION, ROUND_DOWN), abs(quantities[n]))
        if abs(quantities[n]) - size < Decimal("1e-6"):  # rounding: `execute` works in floats
            size = abs(quantities[n])
        filled[n] = size if quantities[n] > 0 else -size
    return filled


def _fill_slices(
    quantities: list[Decimal], prices: list[Decimal], path: tuple[Floats, Floats], sliced: SlicedExecution, bar: int,
    tradable: np.ndarray, cash: Decimal, shares: list[Decimal], rules: SizingRules,
) -> list[tuple[list[Decimal], Floats]]:  # fmt: skip
    """Signed shares filled by each slice of a bar, and their prices [N]. path: open and close of the bar, [N] each."""
    parts, held, funds = sliced.parts[bar], list(shares), cash
    steps, left, found = len(parts) - 1, [abs(q) for q in quantities], []
    plan = sliced.plan(steps)
    for k, part in enumerate(parts if sliced.rests else parts[:-1]):
        wanted, at = [ZERO] * len(quantities), np.full(len(quantities), np.nan)
        for n, quantity in enumerate(quantities):
            if not left[n]:
                continue
            unit = WHOLE if quantity % 1 == 0 else FRACTION
            size = plan.quantity(k, abs(quantity), left[n], unit) if k < steps else left[n]
            if size * prices[n] < rules.min_value:
                continue
            limit = limit_price(prices[n], quantity, rules.collar) if rules.collar and k < steps else None
            fill = fill_on_path(float(path[0][n]), float(path[1][n]), part, limit, buys=quantity > 0)
            if fill is not None and (k == steps or fill[0] < parts[k + 1]):
                wanted[n], at[n] = size.copy_sign(quantity), fill[1]
        market = dataclasses.replace(rules, collar=ZERO)  # the limits are checked above
        filled = _fill(wanted, prices, at, tradable, funds, held, market)
        for n, size in enumerate(filled):
            if size:
                price = Decimal(repr(float(at[n])))
                funds -= size * price + abs(size) * price * rules.cost_rate
                held[n] += size
                left[n] -= abs(size)
        found.append((filled, at))
    return found


def _paths(panel: Panel, closes: Floats, traded_prices: TradedPrices | None) -> tuple[Floats, Floats]:
    """Prices [T, N] at the open, or at the close before in a panel without opens, and at the close of each bar."""
    first = np.concatenate([closes[:1], closes[:-1]]) if panel.open is None else panel.open
    if traded_prices is None:
        return first, closes
    return traded_prices.fills(first, closes), traded_prices.fills(closes, closes)


def _within_limit(quantity: Decimal, price: Decimal, at: float, rules: SizingRules) -> bool:
    if not rules.collar:
        return True
    limit = limit_price(price, quantity, rules.collar)
    return Decimal(repr(at)) <= limit if quantity > 0 else Decimal(repr(at)) >= limit


def _value(shares: list[Decimal], prices: Floats, otherwise: Floats) -> Decimal:
    """Value of the holdings at `prices`, at `otherwise` where those are missing."""
    chosen = np.where(np.isfinite(prices), prices, otherwise)
    return sum((s * Decimal(repr(float(p))) for s, p in zip(shares, chosen, strict=True) if s), ZERO)
