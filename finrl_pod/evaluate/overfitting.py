"""The probability of backtest overfitting (PBO), by combinatorially symmetric cross-validation.

Bailey, Borwein, Lopez de Prado and Zhu (2015): the rows of the trials' returns are cut into S blocks; for each way of
taking half of them as "in sample" the best trial is chosen there and ranked among all trials on the other half. PBO is
the share of the ways in which the chosen one is not better than the median.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from finrl_pod.errors import InputError
from finrl_pod.evaluate.sharpe import NO_RISK
from finrl_pod.types import Floats

CHUNK = 1024  # splits at a time: what stands in memory is [CHUNK, N]
MOST_BLOCKS = 20  # 184,756 splits

Metric = Literal["sharpe", "mean"]


@dataclass(frozen=True, eq=False)
class Overfitting:
    """pbo: share of the splits with a logit of at most 0. logits: [splits], ln(w / (1 - w)) of the relative rank w out
    of sample of the trial chosen in sample; each split in the order of `itertools.combinations`.

    chosen: [splits], which trial. inside, outside: [splits], its metric in and out of sample. loss: share of the splits
    in which what was chosen has a negative metric out of sample.
    """

    pbo: float
    logits: Floats
    chosen: NDArray[np.int64]
    inside: Floats
    outside: Floats
    blocks: int
    trials: int

    @property
    def loss(self) -> float:
        return float((self.outside < 0).mean())


def overfitting(returns: ArrayLike, blocks: int = 16, metric: Metric = "sharpe") -> Overfitting:
    """PBO of returns [T, N] of N trials over the same T bars.

    Blocks of rows differ by one row at most where T is no multiple of `blocks`. Of trials that are equally good in
    sample the first is chosen; equal ones share the mean of their ranks out of sample. Raises InputError: fewer than
    two trials, an odd number of blocks or one outside 2 to 20, fewer than two rows a block, NaN, a trial whose returns
    never differ where the metric is the Sharpe ratio.
    """
    values = _matrix(returns, blocks, metric)
    edges = np.linspace(0, len(values), blocks + 1).round().astype(int)
    centre = values.mean(0)
    moved = values - centre  # sums of squares around the mean lose no digits
    sums = np.add.reduceat(moved, edges[:-1], axis=0)  # [S, N]
    squares = np.add.reduceat(moved**2, edges[:-1], axis=0)
    counts = np.diff(edges).astype(np.float64)
    parts = [_ranked(inside, sums, squares, counts, centre, metric) for inside in _splits(blocks)]
    chosen, best, outside, logits = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Overfitting(float((logits <= 0).mean()), logits, chosen, best, outside, blocks, values.shape[1])


def _splits(blocks: int) -> Iterator[Floats]:
    """Chunks [K, S] of ones for the blocks that are in sample, K up to CHUNK."""
    ways = np.array(list(combinations(range(blocks), blocks // 2)))
    for first in range(0, len(ways), CHUNK):
        part = ways[first : first + CHUNK]
        inside = np.zeros((len(part), blocks))
        np.put_along_axis(inside, part, 1.0, axis=1)
        yield inside


def _ranked(
    inside: Floats, sums: Floats, squares: Floats, counts: Floats, centre: Floats, metric: Metric
) -> tuple[NDArray[np.int64], Floats, Floats, Floats]:
    """For K splits [K, S]: the trial chosen, its metric inside and outside, its logit; all [K]."""
    within = _metric(inside, sums, squares, counts, centre, metric)
    beyond = _metric(1.0 - inside, sums, squares, counts, centre, metric)
    chosen = within.argmax(1)
    rows = np.arange(len(inside))
    reached = beyond[rows, chosen][:, None]
    below, equal = (beyond < reached).sum(1), (beyond == reached).sum(1)
    rank = below + (equal + 1) / 2  # 1 is the worst
    share = rank / (beyond.shape[1] + 1)
    return chosen.astype(np.int64), within[rows, chosen], reached[:, 0], np.log(share / (1 - share))


def _metric(taken: Floats, sums: Floats, squares: Floats, counts: Floats, centre: Floats, metric: Metric) -> Floats:
    """[K, N] of the rows in the taken blocks [K, S]."""
    rows = (taken @ counts)[:, None]
    mean = taken @ sums / rows
    if metric == "mean":
        return np.asarray(mean + centre, dtype=np.float64)
    variance = np.maximum(taken @ squares - rows * mean**2, 0.0) / (rows - 1)
    # A trial that rests for half of the time has no ratio there: it counts as none, not as infinitely good.
    deviation = np.sqrt(variance)
    resting = deviation <= NO_RISK
    return np.where(resting, 0.0, (mean + centre) / np.where(resting, 1.0, deviation))


def _matrix(returns: ArrayLike, blocks: int, metric: Metric) -> Floats:
    values = np.asarray(returns, dtype=np.float64)
    if values.ndim != 2:
        raise InputError(f"PBO needs returns of bars x trials, got an array of shape {values.shape}")
    if values.shape[1] < 2:
        raise InputError(f"PBO needs two trials at least to choose from, got {values.shape[1]}")
    if blocks % 2 or not 2 <= blocks <= MOST_BLOCKS:
        raise InputError(f"PBO needs an even number of blocks from 2 to {MOST_BLOCKS}, got {blocks}")
    fewest = blocks * (2 if metric == "sharpe" else 1)
    if len(values) < fewest:
        raise InputError(f"PBO with {blocks} blocks needs {fewest} bars at least, got {len(values)}: take fewer blocks")
    if not np.isfinite(values).all():
        bar, trial = np.argwhere(~np.isfinite(values))[0]
        raise InputError(f"PBO needs finite returns, that of bar {bar} of trial {trial} is {values[bar, trial]}")
    if metric == "sharpe":
        still = np.flatnonzero(values.std(0) <= NO_RISK)
        if len(still):
            raise InputError(f"PBO needs returns that differ, trial {still[0]} has a constant {values[0, still[0]]:g}")
    elif metric != "mean":
        raise InputError(f"the metric of PBO is sharpe or mean, got {metric!r}")
    return values
