"""The float64 engine: a loop over bars that hands each decision the account and books what fills.

The accounting itself is `finrl_pod.market.execution`; here is only the calendar. A decision at bar t is sized on the
closes of t and fills at `market.fill[t]`, which belongs to bar t+1 (fill rule "next") or to t ("same_close").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from finrl_pod.errors import InputError
from finrl_pod.market.execution import ExecutionRules, Fills, equity, execute, trades_to_weights
from finrl_pod.market.exposure import within_gross
from finrl_pod.types import MarketTensor, Tensor

WEIGHT_TOLERANCE = 1e-5  # target weights may come from float32, which adds to one only so closely
RUINED = 1e-9  # share of the starting equity that stands for "nothing left" in log returns

Decide = Callable[[int, Tensor, Tensor], Tensor | None]


@dataclass(frozen=True, eq=False)
class Ledger:
    """B accounts over L = last - first + 1 bars, marked at the close. All float64, on the market's device.

    equity: [L, B] currency. weights: [L, B, N], holdings after the bar's fill over equity (0 after ruin).
    turnover: [L, B], value traded in the bar (buys + sells) over the equity before, at fill prices.
    costs: [L, B] currency. cash: [B] and shares: [B, N], the account after the last bar.
    """

    first: int
    last: int
    equity: Tensor
    weights: Tensor
    turnover: Tensor
    costs: Tensor
    cash: Tensor
    shares: Tensor

    @property
    def log_returns(self) -> Tensor:
        """[L-1, B], log of equity over the bar before's; equity at or below zero counts as a 1e-9th of the first."""
        return torch.maximum(self.equity, self.equity[0] * RUINED).log().diff(dim=0)


@torch.no_grad()
def simulate(
    market: MarketTensor,
    decide: Decide,
    first: int,
    last: int,
    rules: ExecutionRules,
    cash: float,
    batch: int = 1,
) -> Ledger:
    """Run `batch` accounts that start in cash at the close of bar `first` and are marked at closes first..last.

    decide(t, cash [B], shares [B, N]) is called for first <= t < last and returns target weights [B, N] of the
    equity at the close of t (what is missing to one stays in cash), or None to leave the holdings alone. The tensors
    it gets are copies. What cannot fill keeps its holdings; what has ended is sold at its last close whatever was
    decided. An account whose equity is at or below zero (possible with shorts or borrowing) is closed out.

    Raises InputError naming the bar's date for weights of a wrong shape, NaN, negative without `rules.short`, or with
    a sum of absolute values above 1 + rules.borrow; and for first, last or cash out of range.
    """
    _check_range(market, first, last, cash)
    assets = market.shape[1]
    same_close = market.fill_rule == "same_close"
    closes = market.close[first : last + 1].double().unbind(0)
    prices = market.fill[first:last].double().unbind(0)
    fillable, ended = market.fillable[first:last], market.ended[first:last]
    all_fillable = fillable.all(-1).tolist()
    some_ended = ended.any(-1).tolist()

    funds = torch.full((batch,), float(cash), dtype=torch.float64, device=market.close.device)
    shares = torch.zeros(batch, assets, dtype=torch.float64, device=market.close.device)
    nothing = torch.zeros_like(funds)
    books: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []  # cash, shares, turnover, costs of each bar
    for i, close in enumerate(closes[:-1]):
        if not same_close and i == 0:
            books.append((funds, shares, nothing, nothing))
        target = decide(first + i, funds.clone(), shares.clone())
        if target is None and not (some_ended[i] and bool((shares != 0).any())):
            filled = Fills(funds, shares, nothing, nothing)
        else:
            trades = _wanted(market, first + i, target, funds, shares, close, rules)
            if not all_fillable[i]:
                sold = torch.where(ended[i], -shares, torch.zeros_like(shares))
                trades = torch.where(fillable[i], trades, sold)
            if rules.short:  # what cannot fill is still held, and counts
                trades = within_gross(trades, funds, shares, close, 1.0 + rules.borrow)
            filled = execute(funds, shares, trades, prices[i], rules)
        before = equity(funds, shares, prices[i])
        turnover = torch.where(before > 0, filled.traded / before, nothing)
        funds, shares = filled.cash, filled.shares
        books.append((funds, shares, turnover, filled.cost))
    if same_close:
        books.append((funds, shares, nothing, nothing))

    all_cash, held, turnovers, costs = (torch.stack(column) for column in zip(*books, strict=True))
    values = held * torch.stack(closes).unsqueeze(1)
    worth = all_cash + values.sum(-1)
    weights = torch.where(worth.unsqueeze(-1) > 0, values / worth.unsqueeze(-1), torch.zeros_like(values))
    return Ledger(first, last, worth, weights, turnovers, costs, funds, shares)


def date_of(market: MarketTensor, t: int) -> str:
    """The bar's date (and time of day where it has one) for messages."""
    return str(np.datetime_as_string(market.times[t].astype("datetime64[m]"))).removesuffix("T00:00")


def _wanted(
    market: MarketTensor,
    t: int,
    target: Tensor | None,
    cash: Tensor,
    shares: Tensor,
    close: Tensor,
    rules: ExecutionRules,
) -> Tensor:
    """Share changes [B, N] that a decision asks for, after checking it."""
    if target is None:
        return torch.zeros_like(shares)
    weights = target.to(shares)
    _check_weights(market, t, weights, shares, rules)
    trades = trades_to_weights(weights, cash, shares, close)
    if not (rules.short or rules.borrow):
        return trades
    return torch.where((equity(cash, shares, close) > 0).unsqueeze(-1), trades, -shares)


def _check_weights(market: MarketTensor, t: int, weights: Tensor, shares: Tensor, rules: ExecutionRules) -> None:
    if weights.shape != shares.shape:
        when = f"target weights at {date_of(market, t)}"
        raise InputError(f"{when} must have the shape {tuple(shares.shape)}, got {tuple(weights.shape)}")
    # max carries NaN on, so one comparison finds NaN and excess alike
    gross = float(weights.abs().sum(-1).max())
    limit = 1.0 + rules.borrow
    if gross <= limit + WEIGHT_TOLERANCE and (rules.short or float(weights.min()) >= -WEIGHT_TOLERANCE):
        return
    when = f"target weights at {date_of(market, t)}"
    if not bool(torch.isfinite(weights).all()):
        symbol = market.symbols[int((~torch.isfinite(weights)).nonzero()[0, -1])]
        raise InputError(f"{when} must be finite, that of {symbol} is not")
    if gross > limit + WEIGHT_TOLERANCE:
        raise InputError(f"{when} may add up to {limit:g} at most (absolute values), got {gross:.6g}; scale them down")
    symbol = market.symbols[int(weights.min(0).values.argmin())]
    raise InputError(
        f"{when} must not be negative without short selling, that of {symbol} is {float(weights.min()):.6g}"
    )


def _check_range(market: MarketTensor, first: int, last: int, cash: float) -> None:
    bars = len(market.times)
    if not 0 <= first < last < bars:
        raise InputError(f"a backtest needs bars 0 <= first < last < {bars}, got first {first} and last {last}")
    if not (cash > 0 and np.isfinite(cash)):
        raise InputError(f"starting cash must be above zero, got {cash}")
