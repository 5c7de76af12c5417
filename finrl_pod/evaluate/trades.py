"""The trades of a backtest, each with its costs and what it earned, by the average cost of the position."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import torch

from finrl_pod.evaluate.attribution import bars_of
from finrl_pod.market.costs import HalfSpread
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.market.venue import Venue, costs_by_asset
from finrl_pod.types import BacktestResult, Floats, MarketTensor

COLUMNS = ("time", "symbol", "side", "shares", "price", "value", "cost", "profit", "weight")
MIN_TRADE = 1e-9  # of equity; smaller changes are rounding errors
ROUND_TRIP = "round trip"


def trades_table(result: BacktestResult, market: MarketTensor, rules: ExecutionRules) -> pd.DataFrame:
    """One row per trade, in order of time. market, rules: those of the backtest.

    time: of the bar in which it filled. side: "buy", "sell", or "round trip" for what orders within bars bought and
    sold in one bar. price: of the fill, NaN for a round trip. value, cost: currency. profit: of the part that reduces a
    position, in currency: the difference of its price and the position's average entry price, times the shares, less
    the trade's cost; NaN for trades that open or enlarge one. Dividends and interest are in no trade. weight: after the
    trade, of equity. Raises InputError if the market does not have the result's symbols and bars.
    """
    bars = bars_of(result, market)
    venue = Venue(market, rules, torch.float64)
    close, fill = (x[bars].double().cpu().numpy() for x in (market.close, venue.fill))
    held = result.weights * result.equity[:, None] / close
    change = np.diff(held, axis=0, prepend=0.0)
    same = venue.same_close
    price = fill if same else np.concatenate([close[:1], fill[:-1]])  # else orders fill in the bar after the decision
    noise = MIN_TRADE * np.abs(result.equity[:, None])
    traded = np.abs(change * price) > noise
    paid = np.where(traded, change * price, 0.0) if result.paid is None else result.paid
    traded |= np.abs(paid) > noise
    with np.errstate(divide="ignore", invalid="ignore"):
        price = np.where(traded & (np.abs(change * price) > noise), paid / change, np.nan)
    costs = _costs(venue, result, change, price, bars.start)
    rows = []
    entry, position = np.zeros(len(result.symbols)), np.zeros(len(result.symbols))
    for t, n in np.argwhere(traded):
        amount, at, cost = float(change[t, n]), float(price[t, n]), float(costs[t, n])
        profit = _profit(entry, position, n, amount, at, cost) if math.isfinite(at) else -float(paid[t, n]) - cost
        side = ("buy" if amount > 0 else "sell") if math.isfinite(at) else ROUND_TRIP
        shares, value = (abs(amount), abs(float(paid[t, n]))) if math.isfinite(at) else (0.0, 0.0)
        row = (result.times[t], result.symbols[n], side, shares, at, value, cost, profit, float(result.weights[t, n]))
        rows.append(row)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _profit(entry: Floats, position: Floats, n: int, amount: float, price: float, cost: float) -> float:
    """Profit of a trade; updates the average entry price and the position of asset n."""
    before, after = position[n], position[n] + amount
    if abs(after) < MIN_TRADE * abs(amount):
        after = 0.0
    closed = min(abs(amount), abs(before)) if before * amount < 0 else 0.0
    profit = closed * (price - entry[n]) * np.sign(before) - cost if closed else math.nan
    if before * after <= 0:  # closed, or turned to the other side
        entry[n] = price
    elif abs(after) > abs(before):
        entry[n] = (entry[n] * before + price * amount) / after
    position[n] = after
    return float(profit)


def _costs(venue: Venue, result: BacktestResult, change: Floats, price: Floats, first: int) -> Floats:
    """Cost [T, N] of each trade in currency, the bar's in total; round trips share what the others leave."""
    decided = np.arange(first, first + len(change)) - (0 if venue.same_close else 1)
    bars = torch.from_numpy(np.clip(decided, 0, None))
    known = np.where(np.isfinite(price), price, 0.0)
    amounts, prices = (torch.from_numpy(x).unsqueeze(1) for x in (np.where(np.isfinite(price), change, 0.0), known))
    frictions = venue.rules.frictions
    models = (HalfSpread(venue.rules.cost_rate), *(() if frictions is None else frictions.costs))
    costs: Floats = costs_by_asset(amounts, prices, models, venue.liquidity(bars)).squeeze(1).cpu().numpy()
    left = result.costs - costs.sum(1)
    trips = np.zeros(change.shape) if result.paid is None else ~np.isfinite(price) & (result.paid != 0)
    count = trips.sum(1)
    return costs + trips * np.where(count > 0, left / np.maximum(count, 1), 0.0)[:, None]
