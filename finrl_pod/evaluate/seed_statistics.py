"""Statistics over several seeds: interquartile mean and probability of improvement, with bootstrap intervals.

Agarwal et al. (2021), "Deep reinforcement learning at the edge of the statistical precipice". Scores are
[runs, tasks]: one row per seed, one column per task (a fold or a market). Intervals are percentile intervals of a
stratified bootstrap: runs are resampled within each task.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.errors import InputError
from finrl_pod.evaluate.intervals import DRAWS, Interval
from finrl_pod.types import Floats


def interquartile_mean(scores: ArrayLike) -> float:
    """Mean of the middle half of all scores; the lowest and the highest quarter (rounded down) are left out."""
    values = np.sort(_checked_scores(scores), axis=None)
    cut = values.size // 4
    return float(values[cut : values.size - cut].mean())


def interquartile_mean_interval(
    scores: ArrayLike, level: float = 0.95, *, seed: int = 0, draws: int = DRAWS
) -> Interval:
    """Interquartile mean of scores [runs, tasks] with its interval.

    Raises InputError for fewer than two runs, and NaN.
    """
    return _interval(interquartile_mean, (_checked_scores(scores),), level, seed, draws)


def difference_interval(
    scores: ArrayLike, other_scores: ArrayLike, level: float = 0.95, *, seed: int = 0, draws: int = DRAWS
) -> Interval:
    """Difference of two interquartile means, with its interval.

    scores: [runs, tasks]; other_scores: [other runs, tasks]. Runs are resampled on both sides. Raises InputError as
    `interquartile_mean_interval`, and if the numbers of tasks differ.
    """
    sides = _checked_pair(scores, other_scores)

    def difference(a: Floats, b: Floats) -> float:
        return interquartile_mean(a) - interquartile_mean(b)

    return _interval(difference, sides, level, seed, draws, runs=min(map(len, sides)))


def probability_of_improvement(
    scores: ArrayLike, other_scores: ArrayLike, level: float = 0.95, *, seed: int = 0, draws: int = DRAWS
) -> Interval:
    """Probability that a run scores above a run of another agent, averaged over tasks; ties count one half.

    scores: [runs, tasks]. other_scores: [other runs, tasks], one row for a deterministic baseline. Mann-Whitney
    statistic. Raises InputError as `interquartile_mean_interval`, and if the numbers of tasks differ.
    """
    return _interval(_share_above, _checked_pair(scores, other_scores), level, seed, draws)


def _checked_pair(scores: ArrayLike, other_scores: ArrayLike) -> tuple[Floats, Floats]:
    a = _checked_scores(scores)
    b = _checked_scores(other_scores)
    if a.shape[1] != b.shape[1]:
        raise InputError(f"both sides must have run the same tasks, got {a.shape[1]} and {b.shape[1]}")
    return a, b


def _share_above(a: Floats, b: Floats) -> float:
    difference = a[:, None, :] - b[None, :, :]
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())


def _resample(values: Floats, rng: np.random.Generator) -> Floats:
    """Scores [R, K] with the runs of each task drawn with replacement."""
    rows = rng.integers(0, len(values), values.shape)
    return np.asarray(np.take_along_axis(values, rows, axis=0), dtype=np.float64)


def _interval(
    statistic: Callable[..., float],
    sides: tuple[Floats, ...],
    level: float,
    seed: int,
    draws: int,
    runs: int | None = None,
) -> Interval:
    """A statistic of scores [R, K] of each side. runs: number that must suffice; of the first side if None."""
    runs = len(sides[0]) if runs is None else runs
    if runs < 2:
        raise InputError(f"an interval over seeds needs at least two runs, got {runs}")
    rng = np.random.default_rng(seed)
    samples = [statistic(*(_resample(scores, rng) for scores in sides)) for _ in range(draws)]
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return Interval(statistic(*sides), float(low), float(high))


def _checked_scores(scores: ArrayLike) -> Floats:
    values = np.asarray(scores, dtype=np.float64)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or not values.size:
        raise InputError(f"scores must be a non-empty array of runs x tasks, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise InputError(
            f"scores must be finite, run {int(np.argwhere(~np.isfinite(values))[0][0])} has one that is not"
        )
    return values
