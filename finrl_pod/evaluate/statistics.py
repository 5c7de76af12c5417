"""How sure a result is: bootstrap intervals of growth, and exact intervals of a share.

Returns of successive bars are not independent, so growth is resampled in blocks: the stationary bootstrap of Politis
and Romano (1994), its mean block length chosen from the data (Politis and White 2004, corrected 2009), from `arch`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.errors import InputError
from finrl_pod.types import Floats

DRAWS = 2_000
MIN_BARS = 20  # below this neither a block length nor an interval means anything


def growth_interval(
    log_returns: ArrayLike, level: float = 0.90, *, seed: int = 0, draws: int = DRAWS
) -> tuple[float, float]:
    """Two-sided percentile interval of the mean log growth a bar.

    log_returns: [T] of one series, or the excess of one over another (difference of log returns bar by bar).
    level: coverage, 0.90 leaves 5% on each side. The same seed gives the same interval. Raises InputError below
    `MIN_BARS` bars, on values that are not finite, and on a level outside (0, 1).
    """
    _check_level(level)
    means = _resampled_means(_series(log_returns), seed, draws)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def excess_p_value(excess: ArrayLike, *, seed: int = 0, draws: int = DRAWS) -> float:
    """One-sided p-value against "the mean excess is not above zero", in (0, 1].

    excess: [T], log returns of one series less those of another. The resampled means are centred on the observed one,
    which makes them a sample of the mean's error under the null; p = (1 + #{error >= observed}) / (1 + draws)
    (Davison and Hinkley 1997, 4.2.1), so it is never zero.
    """
    values = _series(excess)
    observed = float(values.mean())
    errors = _resampled_means(values, seed, draws) - observed
    return (1 + int((errors >= observed).sum())) / (1 + draws)


def binomial_interval(k: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Clopper-Pearson interval of a share: k successes of n trials. Raises InputError unless 0 <= k <= n and n > 0."""
    from scipy.stats import binomtest

    _check_level(level)
    if n <= 0 or not 0 <= k <= n:
        raise InputError(f"a share needs 0 <= successes <= trials and at least one trial, got {k} of {n}")
    interval = binomtest(k, n).proportion_ci(confidence_level=level, method="exact")
    return float(interval.low), float(interval.high)


def block_length(series: ArrayLike) -> float:
    """Mean block length in bars, at least 1, for the stationary bootstrap of a mean; 1 for a constant series."""
    from arch.bootstrap import optimal_block_length

    values = _series(series)
    if np.ptp(values) == 0:
        return 1.0
    with np.errstate(divide="ignore", invalid="ignore"):  # a stretch that never moves has no autocorrelation
        length = float(optimal_block_length(values)["stationary"].iloc[0])
    return max(length, 1.0) if np.isfinite(length) else float(len(values)) ** (1 / 3)


def _resampled_means(values: Floats, seed: int, draws: int) -> Floats:
    """[draws] means of block-bootstrapped series."""
    from arch.bootstrap import StationaryBootstrap

    if draws < 1:
        raise InputError(f"a bootstrap needs at least one draw, got {draws}")
    length = block_length(values)
    bootstrap = StationaryBootstrap(length, values, seed=np.random.default_rng(seed))
    return np.asarray(bootstrap.apply(np.mean, draws), dtype=np.float64)[:, 0]


def _series(values: ArrayLike) -> Floats:
    series = np.asarray(values, dtype=np.float64)
    if series.ndim != 1 or len(series) < MIN_BARS:
        raise InputError(f"a bootstrap needs one series of at least {MIN_BARS} bars, got shape {series.shape}")
    if not np.isfinite(series).all():
        bar = int(np.argmin(np.isfinite(series)))
        raise InputError(f"log returns must be finite, that of bar {bar} is {series[bar]}")
    return series


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise InputError(f"the level of an interval must lie between 0 and 1, got {level}")
