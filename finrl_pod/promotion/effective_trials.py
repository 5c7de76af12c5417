"""How many different things were tried: trials whose returns move together count as one.

Hierarchical clustering (average linkage) on the correlation distance sqrt((1 - rho) / 2); the number of clusters is
that of the best mean silhouette, as Lopez de Prado and Lewis (2019) choose it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.errors import InputError
from finrl_pod.evaluate.metrics import RISK_EPSILON

MOST = 1_500  # trials that are clustered; of more, so many evenly spaced ones
SAME = 0.01  # a distance below it (a correlation above 0.9998) is no difference


def effective_trial_count(returns: ArrayLike) -> int:
    """Number of clusters among trials [T, N] of returns over the same bars: 1 to N.

    Trials that never move, or whose returns are no numbers, cannot be told apart: together they count as one cluster.
    Raises InputError for another shape.
    """
    values = np.asarray(returns, dtype=np.float64)
    if values.ndim != 2 or not values.shape[1]:
        raise InputError(f"clusters are found among returns of bars x trials, got an array of shape {values.shape}")
    sound = np.isfinite(values).all(0)
    moving = np.zeros_like(sound)
    moving[sound] = values[:, sound].std(0) > RISK_EPSILON
    rest = int(not moving.all())
    chosen = np.flatnonzero(moving)
    if len(chosen) > MOST:
        chosen = chosen[np.linspace(0, len(chosen) - 1, MOST).round().astype(int)]
    if len(chosen) < 3:
        return rest + _few(values[:, chosen])
    return rest + _best_cut(values[:, chosen])


def _few(values: np.ndarray) -> int:
    """Up to two trials: they are one where they move as one."""
    if values.shape[1] < 2:
        return int(values.shape[1])
    return 1 if float(np.corrcoef(values.T)[0, 1]) > 0.5 else 2


def _best_cut(values: np.ndarray) -> int:
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    correlation = np.clip(np.corrcoef(values.T), -1, 1)
    distance = np.sqrt((1 - correlation) / 2)
    np.fill_diagonal(distance, 0.0)
    if distance.max() <= SAME:
        return 1
    tree = linkage(squareform(distance, checks=False), "average")
    best, count = 0.0, 1  # one cluster has no silhouette: 0, which says that no cut is better than none
    for k in _candidates(len(distance)):
        labels = fcluster(tree, k, "maxclust")
        if len(np.unique(labels)) == k:
            score = _silhouette(distance, labels - 1, k)
            if score > best:
                best, count = score, k
    return count


def _candidates(trials: int) -> list[int]:
    """All numbers up to 32, then ever wider steps, up to all trials but one."""
    dense = range(2, min(trials, 33))
    sparse: Any = np.unique(np.geomspace(33, trials - 1, 24).round().astype(int)) if trials > 34 else []
    return [*dense, *(int(k) for k in sparse)]


def _silhouette(distance: np.ndarray, labels: np.ndarray, k: int) -> float:
    """Mean silhouette (Rousseeuw 1987) of labels [N] in 0..k-1 by distances [N, N]; a cluster of one counts as 0."""
    one_hot = np.eye(k)[labels]
    sizes = one_hot.sum(0)
    sums = distance @ one_hot  # [N, k]
    own = sizes[labels]
    within = sums[np.arange(len(labels)), labels] / np.maximum(own - 1, 1)
    means = sums / sizes
    means[np.arange(len(labels)), labels] = np.inf
    nearest = means.min(1)
    widest = np.maximum(np.maximum(within, nearest), RISK_EPSILON)
    return float(np.where(own > 1, (nearest - within) / widest, 0.0).mean())
