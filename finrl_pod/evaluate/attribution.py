"""Profit of a backtest by asset, by year and by trade, exact to the last cent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from finrl_pod.errors import InputError
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.market.venue import Venue
from finrl_pod.types import BacktestResult, Floats, MarketTensor

COLUMNS = ("time", "symbol", "side", "shares", "price", "value", "cost", "profit", "weight")
MIN_TRADE = 1e-9  # of equity; smaller changes are rounding errors
ROUND_TRIP = "round trip"


@dataclass(frozen=True, eq=False)
class Attribution:
    """Profit of a backtest in currency, before costs, by bar and asset; all columns on the T bars of the result.

    profits: [T, N], change of the value of an asset between two marks and its dividends, minus its cost at fill
    prices. costs: [T]. carry: [T], interest less borrow fees. `profits.sum(1) - costs + carry` is the change of the
    balance, less what was paid in.
    """

    result: BacktestResult
    profits: Floats
    costs: Floats
    carry: Floats

    def by_asset(self) -> dict[str, float]:
        """Profit of each symbol that was held, the largest first."""
        total = self.profits.sum(0)
        has_profit = (self.profits != 0).any(0)
        order = sorted(np.flatnonzero(has_profit), key=lambda i: -total[i])
        return {self.result.symbols[i]: float(total[i]) for i in order}

    def by_year(self) -> list[dict[str, float]]:
        """For each calendar year: year, profit before costs, costs, carry, and return on the equity it began with."""
        equity = self.result.equity
        return [
            {
                "year": year,
                "profit": float(self.profits[bars].sum()),
                "costs": float(self.costs[bars].sum()),
                "carry": float(self.carry[bars].sum()),
                "return": float(equity[bars[-1]] / equity[bars[0] - 1] - 1),
            }
            for year, bars in self._bars_by_year()
        ]

    def table(self) -> dict[str, list[object]]:
        """Columns year, symbol, profit: one row per symbol held in a year, and rows "costs" and "carry"."""
        rows: list[tuple[int, str, float]] = []
        for year, bars in self._bars_by_year():
            for i in np.flatnonzero((self.profits[bars] != 0).any(0)):
                rows.append((year, self.result.symbols[i], float(self.profits[bars, i].sum())))
            rows.append((year, "costs", -float(self.costs[bars].sum())))
            if self.carry[bars].any():
                rows.append((year, "carry", float(self.carry[bars].sum())))
        return {name: [row[i] for row in rows] for i, name in enumerate(("year", "symbol", "profit"))}

    def _bars_by_year(self) -> list[tuple[int, NDArray[np.intp]]]:
        """The bars after the first by calendar year."""
        years = self.result.times[1:].astype("datetime64[Y]").astype(int) + 1970
        return [(int(year), 1 + np.flatnonzero(years == year)) for year in np.unique(years)]


def bars_of(result: BacktestResult, market: MarketTensor) -> slice:
    """Bars of the market on which a backtest ran. Raises InputError if the market has other symbols or bars."""
    first = int(np.searchsorted(market.times, result.times[0]))
    bars = slice(first, first + len(result.times))
    if market.symbols != result.symbols or not np.array_equal(market.times[bars], result.times):
        raise InputError("the result is from another market: their symbols or bars differ; use the market it ran on")
    return bars


def attribution(result: BacktestResult, market: MarketTensor, rules: ExecutionRules) -> Attribution:
    """Attribute the profit of a backtest. market, rules: market and rules of the backtest.

    Raises InputError if the market lacks symbols or bars of the result.
    """
    bars = bars_of(result, market)
    venue = Venue(market, rules, torch.float64)
    close, fill = (x[bars].double().cpu().numpy() for x in (market.close, venue.fill))
    balance = result.balance
    values = result.weights * balance[:, None]
    shares = _shares_held(result, close, rules)
    previous_shares = np.vstack([np.zeros_like(shares[:1]), shares[:-1]])
    trades = shares - previous_shares
    # The decision of bar t fills in bar t + 1 or at its own close; trades of a bar are its change of holdings.
    paid_at = fill if market.fill_rule == "same_close" else np.vstack([fill[:1], fill[:-1]])
    amounts = np.where(trades != 0, trades * np.where(np.isfinite(paid_at), paid_at, close), 0.0)
    if result.paid is not None:
        amounts = result.paid
    profits = values - np.vstack([np.zeros_like(values[:1]), values[:-1]]) - amounts
    if market.dividends is not None:
        paid_out = market.dividends[bars].double().cpu().numpy()
        profits[1:] += shares[:-1] * paid_out[:-1]
    costs = result.costs
    carry = np.zeros(len(costs))
    carry[1:] = np.diff(balance) - profits[1:].sum(1) + costs[1:]
    if result.flows is not None:
        carry -= result.flows
    # What is left over without interest or fees is rounding.
    return Attribution(result, profits, costs, carry if result.carry else np.zeros_like(carry))


def _shares_held(result: BacktestResult, close: Floats, rules: ExecutionRules) -> Floats:
    """Shares [T, N] after the fills of each bar, from their weights: whole ones without rounding errors."""
    shares: Floats = result.weights * result.balance[:, None] / close
    return np.rint(shares) if rules.whole_shares else shares


# ---------------------------------------------------------------------- trades


def trades_table(result: BacktestResult, market: MarketTensor, rules: ExecutionRules) -> pd.DataFrame:
    """One row per trade, in order of time. market, rules: market and rules of the backtest.

    time: bar in which it filled. side: "buy", "sell", or "round trip" for shares that orders within bars bought and
    sold in one bar. price: fill price, NaN for a round trip. value, cost: currency. profit: currency, for the part that
    reduces a position: the difference of its price and the average entry price, times the shares, minus the cost of the
    trade; NaN for trades that open or enlarge one. Dividends and interest are in no trade. weight: after the trade, of
    equity. Raises InputError if the market lacks symbols or bars of the result.
    """
    bars = bars_of(result, market)
    venue = Venue(market, rules, torch.float64)
    close, fill = (x[bars].double().cpu().numpy() for x in (market.close, venue.fill))
    balance = result.balance[:, None]
    shares_held = _shares_held(result, close, rules)
    change = np.diff(shares_held, axis=0, prepend=0.0)
    # Orders fill at the same close, or in the bar after the decision.
    price = fill if venue.same_close else np.concatenate([close[:1], fill[:-1]])
    noise = MIN_TRADE * np.abs(balance)
    has_traded = np.abs(change * price) > noise
    amounts = np.where(has_traded, change * price, 0.0) if result.paid is None else result.paid
    has_traded |= np.abs(amounts) > noise
    with np.errstate(divide="ignore", invalid="ignore"):
        price = np.where(has_traded & (np.abs(change * price) > noise), amounts / change, np.nan)
    costs = _costs(venue, result, change, price, bars.start)
    rows = []
    entry = np.zeros(len(result.symbols))
    position = np.zeros(len(result.symbols))
    for t, n in np.argwhere(has_traded):
        change_of_shares = float(change[t, n])
        amount = float(amounts[t, n])
        fill_price = float(price[t, n])
        cost = float(costs[t, n])
        trade = (ROUND_TRIP, 0.0, fill_price, 0.0, cost, -amount - cost)
        if math.isfinite(fill_price):
            profit = _profit(entry, position, n, change_of_shares, fill_price, cost)
            side = "buy" if change_of_shares > 0 else "sell"
            trade = (side, abs(change_of_shares), fill_price, abs(amount), cost, profit)
        rows.append((result.times[t], result.symbols[n], *trade, float(result.weights[t, n])))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _profit(entry: Floats, position: Floats, n: int, amount: float, price: float, cost: float) -> float:
    """Profit of a trade; updates the average entry price and the position of asset n."""
    shares_before = position[n]
    shares_after = position[n] + amount
    if abs(shares_after) < MIN_TRADE * abs(amount):
        shares_after = 0.0
    closed_shares = min(abs(amount), abs(shares_before)) if shares_before * amount < 0 else 0.0
    profit = closed_shares * (price - entry[n]) * np.sign(shares_before) - cost if closed_shares else math.nan
    if shares_before * shares_after <= 0:  # closed, or turned to the other side
        entry[n] = price
    elif abs(shares_after) > abs(shares_before):
        entry[n] = (entry[n] * shares_before + price * amount) / shares_after
    position[n] = shares_after
    return float(profit)


def _costs(venue: Venue, result: BacktestResult, change: Floats, price: Floats, first: int) -> Floats:
    """Cost [T, N] of each trade in currency, in total the costs of the bar; round trips share the remainder."""
    decision_bars = np.arange(first, first + len(change)) - (0 if venue.same_close else 1)
    bars = torch.from_numpy(np.clip(decision_bars, 0, None))
    known_prices = np.where(np.isfinite(price), price, 0.0)
    amounts, prices = (
        torch.from_numpy(x).unsqueeze(1) for x in (np.where(np.isfinite(price), change, 0.0), known_prices)
    )
    costs: Floats = venue.asset_costs(bars, amounts, prices).squeeze(1).cpu().numpy()
    left = result.costs - costs.sum(1)
    trips = np.zeros(change.shape) if result.paid is None else ~np.isfinite(price) & (result.paid != 0)
    count = trips.sum(1)
    return costs + trips * np.where(count > 0, left / np.maximum(count, 1), 0.0)[:, None]
