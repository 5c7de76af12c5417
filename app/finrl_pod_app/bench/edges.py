"""Simulated price panels with a known edge: none, or one that a price feature predicts.

Rows are resampled with replacement from historical returns with equalised means, which keeps volatilities, correlations
and fat tails and removes differences of means and any order in time. To plant an edge, the return earned by a decision
at bar t is shifted by `strength` times an asset's volatility times its rank by the return of the last 21 bars (the
feature `return_21_rank`). Ranks sum to zero, so the market as a whole is nearly unchanged, and persist for weeks, so
slow trading pays.
"""

from __future__ import annotations

import numpy as np
import torch

from finrl_pod.data.panel import make_panel
from finrl_pod.data.tensor import build_market
from finrl_pod.evaluate.simulate import simulate
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.types import Floats, Panel, Tensor, Times
from finrl_pod_app.bench.simulated_markets import REWARD_LAG, prices, without_edge

SIGNAL = "return_21_rank"
BARS = 21
BARS_PER_YEAR = 252
# Annual information ratio of a tilt along the true signal, after costs of 10 basis points -> strength. Measured with
# `information_ratio` on two panels of 20,000 days: 0.49 at 0.018, 0.88 at 0.032, 1.16 at 0.035, 1.96 at 0.055.
STRENGTHS = {0.0: 0.0, 0.5: 0.018, 1.0: 0.033, 2.0: 0.055}
TILTS = (0.5, 1.0, 2.0, 4.0, 8.0)
TRADING_SPEEDS = (0.03, 0.06, 0.12, 0.25)


def edge_panel(history: Panel, last: int, strength: float, seed: int, bars: int | None = None) -> Panel:
    """Return a panel on the calendar of `history` (or of `bars` days), resampled from its returns up to bar `last`.

    Equal seeds draw equal rows for every strength.
    """
    close = history.close[: last + 1]
    length = len(history.times) if bars is None else bars
    base = without_edge(close[1:] / close[:-1] - 1, length, seed)
    returns = base if strength == 0 else planted_momentum(base, strength)
    times = history.times if bars is None else _days(bars)
    name = f"edge of strength {strength:g}, seed {seed}"
    return make_panel(times, history.symbols, {"close": prices(returns)}, name="world", source=name)


def planted_momentum(returns: Floats, strength: float) -> Floats:
    """Return simple returns [T, N] whose rank by the last 21 returns weakly predicts the return two bars later."""
    bars, assets = returns.shape
    spread = strength * returns.std(0)
    moved = returns.copy()
    logs = np.zeros((bars + 1, assets))  # logs[t + 1]: log price at bar t
    for t in range(bars):
        decided = t - REWARD_LAG
        if decided >= BARS:
            growth = logs[decided + 1] - logs[decided + 1 - BARS]
            rank = growth.argsort().argsort() / (assets - 1) * 2 - 1
            moved[t] += spread * rank
        logs[t + 1] = logs[t] + np.log1p(moved[t])
    return moved


def information_ratio(panel: Panel, rules: ExecutionRules) -> tuple[float, float, float]:
    """Return (annual information ratio over equal weight, tilt, speed) of the best policy of a grid, after costs.

    Policies use the true signal: weights softmax(tilt * rank), approached by the fraction `speed` per day.
    """
    market = build_market(panel, (SIGNAL,), (0, len(panel.times) - 1))
    rank = market.raw_features[..., 0].double()
    tilt = torch.tensor(TILTS, dtype=torch.float64).repeat_interleave(len(TRADING_SPEEDS)).unsqueeze(1)
    speed = torch.tensor(TRADING_SPEEDS, dtype=torch.float64).repeat(len(TILTS)).unsqueeze(1)
    tilt, speed = torch.cat([tilt, torch.zeros(1, 1)]), torch.cat([speed, torch.full((1, 1), TRADING_SPEEDS[0])])

    def decide(t: int, cash: Tensor, shares: Tensor) -> Tensor:
        values = shares * market.close[t]
        held = values / (cash + values.sum(-1)).unsqueeze(-1)
        return held + speed * (torch.softmax(tilt * rank[t], -1) - held)

    equity = simulate(market, decide, market.first, market.steps, rules, 1e6, batch=len(tilt)).equity
    returns = equity[1:] / equity[:-1] - 1
    excess = (returns[:, :-1] - returns[:, -1:])[BARS_PER_YEAR:]
    ratios = excess.mean(0) / excess.std(0) * BARS_PER_YEAR**0.5
    best = int(ratios.argmax())
    return float(ratios[best]), float(tilt[best]), float(speed[best])


def _days(bars: int) -> Times:
    """Weekdays from 1980."""
    return np.busday_offset("1980-01-01", np.arange(bars), "forward").astype("datetime64[ns]")
