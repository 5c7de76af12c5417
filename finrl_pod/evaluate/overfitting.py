"""What selection among many trials explains: probability of backtest overfitting, selection without an edge, clusters.

The probability (PBO) is by combinatorially symmetric cross-validation (Bailey, Borwein, Lopez de Prado and Zhu 2015):
over all halves of S blocks of bars, the share in which the best trial in sample is below the median out of sample.
Selection is repeated on jointly normal z-scores with mean 0 and the correlation of the returns of the trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from finrl_pod.errors import InputError
from finrl_pod.evaluate.metrics import RISK_EPSILON

if TYPE_CHECKING:
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
    one outside 2 to `MAX_PBO_BLOCKS`, and fewer than two rows per block.
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
    return values


# ---------------------------------------------------------------------- selection among trials without an edge

Selection = Literal["best", "greedy"]
DRAWS = 10_000
MAX_TRIALS = 1_500  # of more trials, this many evenly spaced ones are used
# of greedy selection, as in `finrl_pod.tournament.selection`
MAX_ADDITIONS = 64
MIN_GAIN = 1e-9
MAX_DRAWN = 2**22  # z-scores drawn at a time
QUANTILES = 2_000


def selected_z_scores(
    trials: Floats, members: int, selection: Selection = "best", *, seed: int = 0, draws: int = DRAWS
) -> Floats:
    """Z-scores [draws], ascending, of an ensemble selected from trials without an edge.

    trials: active returns [T, N] on the bars of the selection; columns that are not finite or constant are left out.
    members: trials with the highest z-scores that form the ensemble, with equal shares. selection: "best" ends with
    them; "greedy" then adds, with replacement, the trial that improves the ensemble most, as long as one does (Caruana
    et al. 2004). Raises InputError where no trial is left.
    """
    values = np.asarray(trials, dtype=np.float64)
    values = values[:, np.isfinite(values).all(0)]
    values = values[:, values.std(0) > RISK_EPSILON]
    if not values.shape[1]:
        raise InputError("the selection on validation needs at least one trial with returns that vary")
    if values.shape[1] > MAX_TRIALS:
        values = values[:, np.linspace(0, values.shape[1] - 1, MAX_TRIALS).round().astype(int)]
    covariance = np.atleast_2d(np.cov(values.T))
    return null_z_scores(covariance, members, selection, seed=seed, draws=draws)


def null_z_scores(
    covariance: Floats, members: int, selection: Selection = "best", *, seed: int = 0, draws: int = DRAWS
) -> Floats:
    """As `selected_z_scores`, for trials with a given covariance [N, N] of returns."""
    values, vectors = np.linalg.eigh(covariance)
    is_positive = values > values.max() * 1e-12
    factor = vectors[:, is_positive] * np.sqrt(values[is_positive])  # [N, K]: covariance = factor factor'
    rng = np.random.default_rng(seed)
    choose = _best if selection == "best" else _greedy
    chunk = max(MAX_DRAWN // len(covariance), 1)
    chunks = []
    for start in range(0, draws, chunk):
        means = rng.normal(size=(min(chunk, draws - start), factor.shape[1])) @ factor.T  # sqrt(T) mean, [B, N]
        chunks.append(choose(means, covariance, members))
    return np.sort(np.concatenate(chunks))


def _best(means: Floats, covariance: Floats, members: int) -> Floats:
    """Z-scores [B] of the mean of the trials with the highest z-scores."""
    members = min(members, len(covariance))
    scores = means / np.sqrt(np.diag(covariance))
    best_trials = np.argpartition(-scores, members - 1, axis=1)[:, :members]  # [B, members]
    variance = covariance[best_trials[:, :, None], best_trials[:, None, :]].sum((1, 2))
    return np.asarray(np.take_along_axis(means, best_trials, 1).sum(1) / np.sqrt(variance), dtype=np.float64)


def _greedy(means: Floats, covariance: Floats, members: int) -> Floats:
    """Z-scores [B] of the ensembles that greedy selection ends with."""
    variances = np.diag(covariance)
    rows = np.arange(len(means))
    members = min(members, len(covariance))
    scores = means / np.sqrt(variances)
    start = np.argpartition(-scores, members - 1, axis=1)[:, :members]
    total = np.take_along_axis(means, start, 1).sum(1)
    shared_covariance = covariance[start].sum(1)  # [B, N], covariance of the sum of the ensemble with every trial
    variance = np.take_along_axis(shared_covariance, start, 1).sum(1)
    best_scores = total / np.sqrt(variance)
    for _ in range(MAX_ADDITIONS):
        scores = (total[:, None] + means) / np.sqrt(
            np.maximum(variance[:, None] + 2 * shared_covariance + variances, variances * RISK_EPSILON)
        )
        best_trials = scores.argmax(1)
        better = scores[rows, best_trials] > best_scores + MIN_GAIN
        if not better.any():
            break
        draws = rows[better]
        added_trials = best_trials[better]
        total[draws] += means[draws, added_trials]
        variance[draws] += 2 * shared_covariance[draws, added_trials] + variances[added_trials]
        shared_covariance[draws] += covariance[added_trials]
        best_scores[draws] = scores[draws, added_trials]
    return np.asarray(best_scores, dtype=np.float64)


def selection_p_value(z_score: float, null: Floats, repeats: float = 1.0) -> float:
    """Probability that selection alone reaches a z-score, in (0, 1].

    null: ascending z-scores of `selected_z_scores`. repeats: number of independent selections of which this champion
    is the best (Sidak 1967), at least 1.
    """
    exceeding = len(null) - int(np.searchsorted(null, z_score, "left"))
    single = (1 + exceeding) / (1 + len(null))
    return single if repeats <= 1 else -math.expm1(repeats * math.log1p(-single)) if single < 1 else 1.0


def effective_trials(null: Floats) -> float:
    """Number of independent trials whose best has the same expected z-score as the selection; at least 1."""
    from scipy.optimize import brentq
    from scipy.stats import norm

    levels = (np.arange(QUANTILES) + 0.5) / QUANTILES
    target = float(null.mean())

    def expected_best(count: float) -> float:
        return float(norm.ppf(levels ** (1 / count)).mean())

    if target <= expected_best(1.0):
        return 1.0
    high = 2.0
    while expected_best(high) < target:
        high *= 2
    return float(brentq(lambda count: expected_best(count) - target, 1.0, high, rtol=1e-3))


# ---------------------------------------------------------------------- distinct trials

MAX_CLUSTERED = 1_500  # of more trials, this many evenly spaced ones are clustered
MIN_DISTANCE = 0.01  # below it (a correlation above 0.9998) trials are equal
COPY = 1e-5  # distance of a copy: its returns differ by rounding


def effective_trial_count(returns: ArrayLike) -> int:
    """Number of clusters, 1 to N, among returns [T, N] of trials over the same bars.

    Trials with constant returns or returns that are not finite count as one cluster. Raises InputError for another
    shape.
    """
    values = np.asarray(returns, dtype=np.float64)
    if values.ndim != 2 or not values.shape[1]:
        raise InputError(f"clustering needs returns of bars x trials, got an array of shape {values.shape}")
    finite = np.isfinite(values).all(0)
    moving = np.zeros_like(finite)
    moving[finite] = values[:, finite].std(0) > RISK_EPSILON
    constant_cluster = int(not moving.all())
    trial_numbers = np.flatnonzero(moving)
    if len(trial_numbers) > MAX_CLUSTERED:
        trial_numbers = trial_numbers[np.linspace(0, len(trial_numbers) - 1, MAX_CLUSTERED).round().astype(int)]
    return constant_cluster + _best_cluster_count(values[:, trial_numbers])


def _best_cluster_count(values: np.ndarray) -> int:
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    if values.shape[1] < 2:
        return int(values.shape[1])
    correlation = np.clip(np.corrcoef(values.T), -1, 1)
    distance = np.sqrt((1 - correlation) / 2)
    np.fill_diagonal(distance, 0.0)
    # A pair of copies is a perfect cluster: with them, every trial that was made twice would count.
    distinct_trials = [n for n in range(len(distance)) if not (distance[n, :n] <= COPY).any()]
    distance = distance[np.ix_(distinct_trials, distinct_trials)]
    if distance.max() <= MIN_DISTANCE:
        return 1
    if len(distinct_trials) == 2:  # one cluster if their correlation is above one half
        return 1 if distance[0, 1] < 0.5 else 2
    tree = linkage(squareform(distance, checks=False), "average")
    best, count = 0.0, 1  # a single cluster has a silhouette of 0
    for k in _candidates(len(distance)):
        labels = fcluster(tree, k, "maxclust")
        if len(np.unique(labels)) == k:
            score = _silhouette(distance, labels - 1, k)
            if score > best:
                best, count = score, k
    return count


def _candidates(trials: int) -> list[int]:
    """Numbers of clusters to try: all up to 32, then geometrically spaced up to all trials but one."""
    dense = range(2, min(trials, 33))
    sparse: Any = np.unique(np.geomspace(33, trials - 1, 24).round().astype(int)) if trials > 34 else []
    return [*dense, *(int(k) for k in sparse)]


def _silhouette(distance: np.ndarray, labels: np.ndarray, k: int) -> float:
    """Mean silhouette (Rousseeuw 1987) of labels [N] in 0..k-1 with distances [N, N]; singletons count as 0."""
    one_hot = np.eye(k)[labels]
    sizes = one_hot.sum(0)
    sums = distance @ one_hot  # [N, k]
    cluster_sizes = sizes[labels]
    within_distance = sums[np.arange(len(labels)), labels] / np.maximum(cluster_sizes - 1, 1)
    means = sums / sizes
    means[np.arange(len(labels)), labels] = np.inf
    nearest = means.min(1)
    widest = np.maximum(np.maximum(within_distance, nearest), RISK_EPSILON)
    return float(np.where(cluster_sizes > 1, (nearest - within_distance) / widest, 0.0).mean())
