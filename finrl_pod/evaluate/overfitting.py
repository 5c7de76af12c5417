"""Probability of backtest overfitting (PBO) by combinatorially symmetric cross-validation (CSCV).

Bailey, Borwein, Lopez de Prado and Zhu (2015): the rows of the trials' returns are cut into S blocks. For every way of
taking half of them as in-sample, the best trial in sample is ranked among all trials out of sample. PBO is the share of
splits in which it is not better than the median.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from finrl_pod.errors import InputError
from finrl_pod.evaluate.metrics import RISK_EPSILON
from finrl_pod.types import Floats

CHUNK = 1024  # splits computed at a time, to bound memory: arrays are [CHUNK, N]
MAX_PBO_BLOCKS = 20  # 184,756 splits


Metric = Literal["sharpe", "mean"]


@dataclass(frozen=True, eq=False)
class Overfitting:
    """Result of CSCV; arrays are [splits], in the order of `itertools.combinations`.

    pbo: share of splits with a logit of at most 0. logits: ln(w / (1 - w)), w the relative out-of-sample rank of the
    trial selected in sample. selected: index of that trial. in_sample, out_of_sample: its metric.
    """

    pbo: float
    logits: Floats
    selected: NDArray[np.int64]
    in_sample: Floats
    out_of_sample: Floats
    blocks: int
    trials: int

    @property
    def loss_probability(self) -> float:
        """Share of splits in which the selected trial has a negative metric out of sample."""
        return float((self.out_of_sample < 0).mean())


def backtest_overfitting(returns: ArrayLike, blocks: int = 16, metric: Metric = "sharpe") -> Overfitting:
    """PBO of returns [T, N] of N trials over the same T bars.

    Block sizes differ by at most one row. Of trials that are equally good in sample the first is selected; equal trials
    share the mean of their ranks out of sample. Raises InputError for fewer than two trials, an odd number of blocks or
    one outside 2 to `MAX_PBO_BLOCKS`, fewer than two rows per block, NaN, and (for the Sharpe ratio) constant returns.
    """
    values = _checked_returns(returns, blocks, metric)
    edges = np.linspace(0, len(values), blocks + 1).round().astype(int)
    centre = values.mean(0)
    centred_returns = values - centre  # sums of squares around the mean lose no digits
    sums = np.add.reduceat(centred_returns, edges[:-1], axis=0)  # [S, N]
    squares = np.add.reduceat(centred_returns**2, edges[:-1], axis=0)
    counts = np.diff(edges).astype(np.float64)
    chunks = [
        _evaluate_splits(in_sample_blocks, sums, squares, counts, centre, metric)
        for in_sample_blocks in _splits(blocks)
    ]
    selected_trials, in_sample, out_of_sample, logits = (np.concatenate(column) for column in zip(*chunks, strict=True))
    return Overfitting(
        float((logits <= 0).mean()), logits, selected_trials, in_sample, out_of_sample, blocks, values.shape[1]
    )


def _splits(blocks: int) -> Iterator[Floats]:
    """Chunks [K, S], 1.0 for the blocks that are in sample, K up to CHUNK."""
    ways = np.array(list(combinations(range(blocks), blocks // 2)))
    for first in range(0, len(ways), CHUNK):
        combination_rows = ways[first : first + CHUNK]
        in_sample_blocks = np.zeros((len(combination_rows), blocks))
        np.put_along_axis(in_sample_blocks, combination_rows, 1.0, axis=1)
        yield in_sample_blocks


def _evaluate_splits(
    in_sample_blocks: Floats, sums: Floats, squares: Floats, counts: Floats, centre: Floats, metric: Metric
) -> tuple[NDArray[np.int64], Floats, Floats, Floats]:
    """Selected trial, its metric in and out of sample, and its logit for K splits [K, S]; each [K]."""
    in_sample = _metric(in_sample_blocks, sums, squares, counts, centre, metric)
    out_of_sample = _metric(1.0 - in_sample_blocks, sums, squares, counts, centre, metric)
    selected_trials = in_sample.argmax(1)
    rows = np.arange(len(in_sample_blocks))
    selected_metric = out_of_sample[rows, selected_trials][:, None]
    worse_trials = (out_of_sample < selected_metric).sum(1)
    equal_trials = (out_of_sample == selected_metric).sum(1)
    rank = worse_trials + (equal_trials + 1) / 2  # 1 is the worst
    share = rank / (out_of_sample.shape[1] + 1)
    return (
        selected_trials.astype(np.int64),
        in_sample[rows, selected_trials],
        selected_metric[:, 0],
        np.log(share / (1 - share)),
    )


def _metric(blocks: Floats, sums: Floats, squares: Floats, counts: Floats, centre: Floats, metric: Metric) -> Floats:
    """Metric [K, N] over the rows of the blocks that `taken` [K, S] marks."""
    rows = (blocks @ counts)[:, None]
    mean = blocks @ sums / rows
    if metric == "mean":
        return np.asarray(mean + centre, dtype=np.float64)
    variance = np.maximum(blocks @ squares - rows * mean**2, 0.0) / (rows - 1)
    # A trial that holds cash in these blocks has no ratio: it counts as zero, not as infinitely good.
    deviation = np.sqrt(variance)
    resting = deviation <= RISK_EPSILON
    return np.where(resting, 0.0, (mean + centre) / np.where(resting, 1.0, deviation))


def _checked_returns(returns: ArrayLike, blocks: int, metric: Metric) -> Floats:
    values = np.asarray(returns, dtype=np.float64)
    if values.ndim != 2:
        raise InputError(f"PBO needs returns of bars x trials, got an array of shape {values.shape}")
    if values.shape[1] < 2:
        raise InputError(f"PBO needs at least two trials, got {values.shape[1]}")
    if blocks % 2 or not 2 <= blocks <= MAX_PBO_BLOCKS:
        raise InputError(f"PBO needs an even number of blocks from 2 to {MAX_PBO_BLOCKS}, got {blocks}")
    minimum = blocks * (2 if metric == "sharpe" else 1)
    if len(values) < minimum:
        raise InputError(f"PBO with {blocks} blocks needs at least {minimum} bars, got {len(values)}; use fewer blocks")
    if not np.isfinite(values).all():
        bar, trial = np.argwhere(~np.isfinite(values))[0]
        raise InputError(f"PBO needs finite returns, bar {bar} of trial {trial} is {values[bar, trial]}")
    if metric == "sharpe":
        still = np.flatnonzero(values.std(0) <= RISK_EPSILON)
        if len(still):
            raise InputError(f"PBO needs returns that vary, trial {still[0]} is constant at {values[0, still[0]]:g}")
    elif metric != "mean":
        raise InputError(f"the metric of PBO must be sharpe or mean, got {metric!r}")
    return values
