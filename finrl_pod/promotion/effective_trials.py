"""Effective number of trials: trials with correlated returns count as one.

Hierarchical clustering (average linkage) on the correlation distance sqrt((1 - rho) / 2); the number of clusters is the
one with the best mean silhouette, as in Lopez de Prado and Lewis (2019).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.errors import InputError
from finrl_pod.evaluate.metrics import RISK_EPSILON

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
