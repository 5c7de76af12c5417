"""Effect of selection alone on the test statistic of a champion: its distribution if no trial had an edge.

Without an edge the z-scores of N trials are jointly normal with mean 0 and the correlation of the trials' returns. The
selection that made the champion is repeated on draws of these z-scores. Correlated trials thereby cost as little as
they should, and an ensemble is compared with ensembles, not with the best single trial.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from finrl_pod.errors import InputError
from finrl_pod.evaluate.metrics import RISK_EPSILON
from finrl_pod.types import Floats

Selection = Literal["best", "greedy"]
DRAWS = 10_000
MAX_TRIALS = 1_500  # of more trials, this many evenly spaced ones are used
# of greedy selection, as in `finrl_pod.tournament.selection`
MAX_ADDITIONS = 64
MIN_GAIN = 1e-9
CHUNK = 2**22  # z-scores drawn at a time
QUANTILES = 2_000


def selected_z_scores(
    trials: Floats, members: int, selection: Selection = "best", *, seed: int = 0, draws: int = DRAWS
) -> Floats:
    """Z-scores [draws], ascending, of an ensemble selected from trials without an edge.

    trials: active returns [T, N] on the bars of the selection; columns that are not finite or constant are left out.
    members: trials with the highest z-scores that form the ensemble, with equal shares. selection: "best" ends with
    them; "greedy" then adds, with replacement, the trial that improves the ensemble most, as long as one does (Caruana
    et al. 2004). Raises InputError for no members, and where no trial is left.
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
    if members < 1:
        raise InputError(f"an ensemble needs at least 1 member, got {members}")
    values, vectors = np.linalg.eigh(covariance)
    is_positive = values > values.max() * 1e-12
    factor = vectors[:, is_positive] * np.sqrt(values[is_positive])  # [N, K]: covariance = factor factor'
    rng = np.random.default_rng(seed)
    choose = _best if selection == "best" else _greedy
    chunk = max(CHUNK // len(covariance), 1)
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
    from scipy.stats import norm

    levels = (np.arange(QUANTILES) + 0.5) / QUANTILES
    target = float(null.mean())

    def expected_best(count: float) -> float:
        return float(norm.ppf(levels ** (1 / count)).mean())

    low, high = 1.0, 2.0
    if target <= expected_best(low):
        return 1.0
    while expected_best(high) < target:
        high *= 2
    while high - low > 1e-3 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if expected_best(middle) < target else (low, middle)
    return (low + high) / 2
