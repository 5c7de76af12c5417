"""What several seeds say together: interquartile mean, probability of improvement, both with stratified bootstrap.

Agarwal and others (2021), "Deep reinforcement learning at the edge of the statistical precipice". Scores are
[runs, tasks]: a row a seed, a column a task (here a fold or a market).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.errors import InputError
from finrl_pod.evaluate.intervals import Interval
from finrl_pod.evaluate.statistics import DRAWS
from finrl_pod.types import Floats


def interquartile_mean(scores: ArrayLike) -> float:
    """Mean of the middle half of all scores: the lowest and the highest quarter (rounded down) are left out."""
    values = np.sort(_scores(scores), axis=None)
    cut = values.size // 4
    return float(values[cut : values.size - cut].mean())


def interquartile_mean_interval(
    scores: ArrayLike, level: float = 0.95, *, seed: int = 0, draws: int = DRAWS
) -> Interval:
    """Interquartile mean of scores [runs, tasks] with its percentile interval: runs are redrawn within each task.

    Raises InputError for fewer than two runs (one run says nothing of others), NaN, and a level outside (0, 1).
    """
    values = _scores(scores)
    low, high = _bootstrap(lambda rng: interquartile_mean(_redrawn(values, rng)), level, seed, draws, values)
    return Interval(interquartile_mean(values), low, high)


def difference_interval(
    ours: ArrayLike, theirs: ArrayLike, level: float = 0.95, *, seed: int = 0, draws: int = DRAWS
) -> Interval:
    """Interquartile mean of ours minus that of theirs, with its percentile interval: runs are redrawn on both sides.

    ours: [runs, tasks]; theirs: [other runs, tasks].
    Raises InputError as `interquartile_mean_interval`, and for other tasks.
    """
    a, b = _scores(ours), _scores(theirs)
    _same_tasks(a, b)

    def draw(rng: np.random.Generator) -> float:
        return interquartile_mean(_redrawn(a, rng)) - interquartile_mean(_redrawn(b, rng))

    low, high = _bootstrap(draw, level, seed, draws, a if len(a) < len(b) else b)
    return Interval(interquartile_mean(a) - interquartile_mean(b), low, high)


def improvement(
    ours: ArrayLike, theirs: ArrayLike, level: float = 0.95, *, seed: int = 0, draws: int = DRAWS
) -> Interval:
    """Probability that a run of ours scores above one of theirs, mean over tasks; ties count a half (Mann-Whitney).

    ours: [runs, tasks]; theirs: [other runs, tasks], a single run where they draw no random numbers. Raises InputError
    as `interquartile_mean_interval`, and for other tasks.
    """
    a, b = _scores(ours), _scores(theirs)
    _same_tasks(a, b)

    def draw(rng: np.random.Generator) -> float:
        return _above(_redrawn(a, rng), _redrawn(b, rng))

    low, high = _bootstrap(draw, level, seed, draws, a)
    return Interval(_above(a, b), low, high)


def _same_tasks(a: Floats, b: Floats) -> None:
    if a.shape[1] != b.shape[1]:
        raise InputError(f"both must have run the same tasks, got {a.shape[1]} and {b.shape[1]} of them")


def _above(a: Floats, b: Floats) -> float:
    difference = a[:, None, :] - b[None, :, :]
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())


def _redrawn(values: Floats, rng: np.random.Generator) -> Floats:
    """[R, K]: each task's runs drawn with replacement from its own."""
    rows = rng.integers(0, len(values), values.shape)
    return np.asarray(np.take_along_axis(values, rows, axis=0), dtype=np.float64)


def _bootstrap(
    draw: Callable[[np.random.Generator], float], level: float, seed: int, draws: int, scores: Floats
) -> tuple[float, float]:
    if not 0 < level < 1:
        raise InputError(f"the level of an interval must lie between 0 and 1, got {level}")
    if draws < 1:
        raise InputError(f"a bootstrap needs at least one draw, got {draws}")
    if len(scores) < 2:
        raise InputError("an interval over seeds needs two runs at least: one says nothing of the others")
    rng = np.random.default_rng(seed)
    low, high = np.quantile([draw(rng) for _ in range(draws)], [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _scores(scores: ArrayLike) -> Floats:
    values = np.asarray(scores, dtype=np.float64)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or not values.size:
        raise InputError(f"scores are runs x tasks and not empty, got an array of shape {values.shape}")
    if not np.isfinite(values).all():
        raise InputError(f"scores must be finite, that of run {int(np.argwhere(~np.isfinite(values))[0][0])} is not")
    return values
