"""Where an account's profit came from: by asset and by year, exact to the last cent of its backtest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from finrl_pod.errors import InputError
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.market.venue import Venue
from finrl_pod.types import BacktestResult, Floats, MarketTensor


@dataclass(frozen=True, eq=False)
class Attribution:
    """Profit of a backtest in currency, before costs, by bar and asset; all columns on the result's T bars.

    profits: [T, N], change of an asset's value between two marks and its dividends, less what was paid for it at fill
    prices. costs: [T]. carry: [T], interest less borrow fees. `profits.sum(1) - costs + carry` is the change of equity.
    """

    result: BacktestResult
    profits: Floats
    costs: Floats
    carry: Floats

    def by_asset(self) -> dict[str, float]:
        """Profit of each symbol that was held, the largest first."""
        total = self.profits.sum(0)
        held = (self.profits != 0).any(0)
        order = sorted(np.flatnonzero(held), key=lambda i: -total[i])
        return {self.result.symbols[i]: float(total[i]) for i in order}

    def by_year(self) -> list[dict[str, float]]:
        """For each calendar year: year, profit before costs, costs, carry, and return on the equity it began with."""
        years = self.result.times.astype("datetime64[Y]").astype(int) + 1970
        equity, rows = self.result.equity, []
        for year in np.unique(years[1:]):
            bars = np.flatnonzero(years == year)
            begin = max(bars[0] - 1, 0)
            own = bars[bars > 0]
            rows.append(
                {
                    "year": int(year),
                    "profit": float(self.profits[own].sum()),
                    "costs": float(self.costs[own].sum()),
                    "carry": float(self.carry[own].sum()),
                    "return": float(equity[bars[-1]] / equity[begin] - 1),
                }
            )
        return rows

    def plain(self) -> dict[str, object]:
        """The profit by asset and by year, for JSON."""
        return {"by_asset": self.by_asset(), "by_year": self.by_year()}

    def table(self) -> dict[str, list[object]]:
        """Columns year, symbol, profit: one row per symbol held in a year, and rows "costs" and "carry"."""
        years = self.result.times.astype("datetime64[Y]").astype(int) + 1970
        columns: dict[str, list[object]] = {"year": [], "symbol": [], "profit": []}

        def add(year: int, symbol: str, profit: float) -> None:
            for name, value in zip(columns, (year, symbol, profit), strict=True):
                columns[name].append(value)

        for year in np.unique(years[1:]):
            own = np.flatnonzero((years == year) & (np.arange(len(years)) > 0))
            for i in np.flatnonzero((self.profits[own] != 0).any(0)):
                add(int(year), self.result.symbols[i], float(self.profits[own, i].sum()))
            add(int(year), "costs", -float(self.costs[own].sum()))
            if self.carry[own].any():
                add(int(year), "carry", float(self.carry[own].sum()))
        return columns


def bars_of(result: BacktestResult, market: MarketTensor) -> slice:
    """Bars of the market on which a backtest ran. Raises InputError if the market has other symbols or bars."""
    first = int(np.searchsorted(market.times, result.times[0]))
    bars = slice(first, first + len(result.times))
    if market.symbols != result.symbols or not np.array_equal(market.times[bars], result.times):
        raise InputError("the result is from another market: their symbols or bars differ; use the market it ran on")
    return bars


def attribution(result: BacktestResult, market: MarketTensor, rules: ExecutionRules) -> Attribution:
    """Attribute a backtest's profit. market, rules: those that it was run with.

    Raises InputError if the market does not have the result's symbols and bars.
    """
    bars = bars_of(result, market)
    venue = Venue(market, rules, torch.float64)
    close, fill = (x[bars].double().cpu().numpy() for x in (market.close, venue.fill))
    values = result.weights * result.equity[:, None]
    shares = values / close
    before = np.vstack([np.zeros_like(shares[:1]), shares[:-1]])
    traded = shares - before
    # The decision of bar t fills in bar t + 1 or at its own close; a bar's trades are its change of holdings.
    paid_at = fill if market.fill_rule == "same_close" else np.vstack([fill[:1], fill[:-1]])
    paid = np.where(traded != 0, traded * np.where(np.isfinite(paid_at), paid_at, close), 0.0)
    if result.paid is not None:
        paid = result.paid
    profits = values - np.vstack([np.zeros_like(values[:1]), values[:-1]]) - paid
    if market.dividends is not None:
        paid_out = market.dividends[bars].double().cpu().numpy()
        profits[1:] += shares[:-1] * paid_out[:-1]
    costs = result.costs
    carry = np.zeros(len(costs))
    carry[1:] = np.diff(result.equity) - profits[1:].sum(1) + costs[1:]
    # What is left over without interest or fees is rounding.
    return Attribution(result, profits, costs, carry if result.carry else np.zeros_like(carry))
