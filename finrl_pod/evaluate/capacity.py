"""Capacity: the account size at which market impact has taken half, and all, of what a strategy adds to its base.

A trade of Q shares costs what the rules charge plus Y sigma sqrt(Q / ADV) of its value, the square-root law with Y = 1
(Toth et al. 2011, arXiv:1105.1694), sigma the volatility of a day and ADV the average daily volume of the last 21
days; at most 10% of the ADV fills on a day. The base pays the same costs at the same size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from finrl_pod.data.tensor import trailing_volatility
from finrl_pod.errors import DataError, InputError
from finrl_pod.evaluate.intervals import DRAWS, Interval, block_length, resample_bars
from finrl_pod.evaluate.metrics import bars_per_year
from finrl_pod.evaluate.variations import Job, RecordingStrategy, simulate_recorded
from finrl_pod.market.costs import Frictions, SquareRootImpact
from finrl_pod.market.execution import MarketPeriod
from finrl_pod.types import Floats, MarketTensor

COEFFICIENT = 1.0
PARTICIPATION = 0.1
VOLUME_BARS = 21  # of the average volume
SIZES = tuple(10 ** (5 + i / 2) for i in range(13))  # 100 thousand to 100 billion, in currency
LEVEL = 0.90
DRAWS_AT_ONCE = 100


@dataclass(frozen=True, eq=False)
class CapacityCurve:
    """Active growth by account size.

    sizes: [K] currency. growth: [K] annual mean difference of log returns to the base, low and high its interval. cost:
    [K] annual costs of the strategy as a share of its mean equity. half, zero: account sizes with half of the active
    growth of the smallest account, and with none; 0 if the smallest adds nothing, inf beyond the largest.
    """

    sizes: tuple[float, ...]
    growth: Floats
    low: Floats
    high: Floats
    cost: Floats
    half: Interval
    zero: Interval

    def plain(self) -> dict[str, Any]:
        """For JSON; an infinite size is None."""

        def size(x: Interval) -> dict[str, float | None]:
            return {name: value if np.isfinite(value) else None for name, value in x._asdict().items()}

        columns = {"account": self.sizes, "active_growth": self.growth, "low": self.low, "high": self.high}
        rows = zip(*columns.values(), self.cost, strict=True)
        return {
            "impact": COEFFICIENT,
            "participation": PARTICIPATION,
            "level": LEVEL,
            "curve": [dict(zip((*columns, "cost"), map(float, row), strict=True)) for row in rows],
            "half": size(self.half),
            "zero": size(self.zero),
        }


def capacity_curve(
    strategy: RecordingStrategy,
    base: RecordingStrategy,
    period: MarketPeriod,
    *,
    adv: float | None = None,
    sizes: tuple[float, ...] = SIZES,
    seed: int = 0,
    on_size: Callable[[float], None] = lambda _: None,
) -> CapacityCurve:
    """Simulate the recorded decisions of a strategy and of its base in a period, at every account size.

    adv: average daily volume of every asset in currency, instead of volumes in the data. on_size: called with each size
    before it is simulated. Raises DataError for data without volumes where `adv` is None, InputError for one that is
    not above zero.
    """
    if adv is not None and not (adv > 0 and np.isfinite(adv)):
        raise InputError(f"adv must be above 0, in currency a day, got {adv:g}")
    market = _with_average_volume(period.market, adv)
    frictions = period.rules.frictions or Frictions()
    models = tuple(model for model in frictions.costs if not isinstance(model, SquareRootImpact))
    rules = replace(
        period.rules,
        frictions=replace(frictions, costs=(*models, SquareRootImpact(COEFFICIENT)), participation=PARTICIPATION),
    )
    tables = torch.from_numpy(np.stack([x.table(market.times) for x in (strategy, base)]))
    jobs = [Job(i, period.first, period.last, rules) for i in range(2)]
    active = []
    cost = []
    year = bars_per_year(market.times)
    for size in sizes:
        on_size(size)
        simulation = simulate_recorded(market, tables, jobs, size)
        logs = np.diff(np.log(simulation.equity), axis=1)
        active.append(logs[0] - logs[1])
        cost.append(float(simulation.costs[0] / simulation.equity[0].mean() * year / (period.last - period.first)))
    series = np.stack(active)  # [K, L]
    growth = series.mean(1) * year
    draws = _resampled_means(series, seed) * year
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return CapacityCurve(
        *(tuple(sizes), growth, low, high, np.array(cost)),
        half=_crossing(sizes, growth, draws, 0.5),
        zero=_crossing(sizes, growth, draws, 0.0),
    )


def size_at(sizes: tuple[float, ...], growth: Floats, share: float) -> float:
    """Account size at which growth [K] first falls to a share of the first one, linear in the logarithm of sizes.

    0 if the first is not above 0, inf if growth stays above.
    """
    if growth[0] <= 0:
        return 0.0
    level = share * growth[0]
    reached_sizes = np.flatnonzero(growth <= level)
    if not len(reached_sizes):
        return float("inf")
    i = int(reached_sizes[0])
    fraction = (growth[i - 1] - level) / (growth[i - 1] - growth[i])
    return float(np.exp(np.log(sizes[i - 1]) + fraction * (np.log(sizes[i]) - np.log(sizes[i - 1]))))


def _crossing(sizes: tuple[float, ...], growth: Floats, draws: Floats, share: float) -> Interval:
    sampled_sizes = np.array([size_at(sizes, row, share) for row in draws])
    # Order statistics: between a finite and an infinite size no interpolation is meant.
    low, high = np.quantile(sampled_sizes, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
    return Interval(size_at(sizes, growth, share), float(low), float(high))


def _resampled_means(series: Floats, seed: int) -> Floats:
    """Means [draws, K] of series [K, L], the same blocks of bars for all sizes."""
    rng = np.random.default_rng(seed)
    block = block_length(series[0])
    samples = (resample_bars(series.shape[1], block, DRAWS_AT_ONCE, rng) for _ in range(0, DRAWS, DRAWS_AT_ONCE))
    return np.concatenate([np.stack([row[bars].mean(1) for row in series], 1) for bars in samples])


def _with_average_volume(market: MarketTensor, adv: float | None) -> MarketTensor:
    """The market with volumes [T, N] of `adv` in currency, or with their trailing mean."""
    fillable = market.fillable
    paid_out = market.delisted & ~market.fillable
    if adv is not None:
        volume = adv / market.close
    elif market.fill_volume is None or market.volatility is None:
        raise DataError(
            "a capacity needs volumes, and these prices have none; give the average daily volume, such as --adv 1e8 "
            "(adv= in Python)"
        )
    else:
        known_volumes = torch.where(fillable, market.fill_volume, torch.nan).cpu().numpy()
        mean = pd.DataFrame(known_volumes).shift(1).rolling(VOLUME_BARS, min_periods=1).mean().bfill()  # as known at t
        volume = torch.from_numpy(mean.fillna(0.0).to_numpy(copy=True)).to(market.close)
    volume = torch.where(fillable, volume, torch.zeros_like(volume))
    volatility = market.volatility
    if volatility is None:
        estimate = trailing_volatility(market.close.cpu().numpy(), market.tradable.cpu().numpy())
        volatility = torch.from_numpy(estimate).to(market.close)
    return replace(market, fill_volume=torch.where(paid_out, torch.inf, volume), volatility=volatility)
