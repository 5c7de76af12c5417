"""The return of a backtest after the tax on its realised gains."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal

import numpy as np

from finrl_pod.evaluate.attribution import ROUND_TRIP, trades_table
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.market.tax_lots import Lot, close_lots
from finrl_pod.types import BacktestResult, Floats, MarketTensor


def after_tax_return(result: BacktestResult, market: MarketTensor, rules: ExecutionRules) -> float:
    """Growth over the whole period after tax, of an account that pays the tax of each calendar year at its last bar.

    Lots are sold first in, first out. Gains and losses of a year are netted by kind, short term (held for a year or
    less) and long term, then against each other; a loss that is left is carried to the next year. A tax lowers the
    account and all that it trades later in proportion. market, rules: market and rules of the backtest.
    """
    net_gains = _gains_by_year(result, market, rules)
    years = result.times.astype("datetime64[Y]").astype(int) + 1970
    balance = result.balance
    growth = result.equity[-1] / result.equity[0]
    losses = np.zeros(2)  # short and long, carried from earlier years
    for year in np.unique(years):
        gains = net_gains[int(year)] + losses
        if gains.min() < 0 < gains.max():
            larger = int(np.abs(gains).argmax())
            gains = np.where(np.arange(2) == larger, gains.sum(), 0.0)
        losses = np.minimum(gains, 0.0)
        tax = float(np.maximum(gains, 0.0) @ (rules.tax_short, rules.tax_long))
        growth *= max(1.0 - tax / balance[years == year][-1], 0.0)
    return float(growth - 1)


def _gains_by_year(result: BacktestResult, market: MarketTensor, rules: ExecutionRules) -> defaultdict[int, Floats]:
    """Net realised gains of each calendar year in currency: [short term, long term]."""
    gains: defaultdict[int, Floats] = defaultdict(lambda: np.zeros(2))
    lots: dict[str, list[Lot]] = defaultdict(list)
    trades = trades_table(result, market, rules)
    columns = (trades[name].tolist() for name in ("time", "symbol", "side", "profit", "shares", "value", "cost"))
    for number, (time, symbol, side, profit, *amounts) in enumerate(zip(*columns, strict=True), 1):
        day = str(time)[:10]
        shares, value, cost = (Decimal(repr(amount)) for amount in amounts)
        if side == ROUND_TRIP:
            gains[time.year][0] += profit
        elif side == "buy":
            lots[symbol].append(Lot(result.name, symbol, number, day, shares, value + cost))
        else:
            for gain in close_lots(lots[symbol], shares, value - cost, day):
                gains[time.year][int(gain.is_long_term)] += float(gain.gain)
    return gains
