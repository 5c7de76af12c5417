"""The effective number of trials equals the number of planted clusters."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import silhouette_score

from finrl_pod.errors import InputError
from finrl_pod.evaluate.overfitting import _silhouette, effective_trial_count


def groups(sizes: list[int], noise: float = 0.4, bars: int = 500, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(bars, len(sizes)))
    return np.repeat(factors, sizes, axis=1) + noise * rng.normal(size=(bars, sum(sizes)))


@pytest.mark.parametrize("sizes", [[5, 5], [3, 9, 4], [4] * 8, [6, 6, 6, 6]])
def test_effective_trials_equal_the_number_of_clusters(sizes: list[int]) -> None:
    assert effective_trial_count(groups(sizes)) == len(sizes)


def test_equal_trials_count_once() -> None:
    one = np.random.default_rng(0).normal(size=(300, 1))
    assert effective_trial_count(np.repeat(one, 7, axis=1)) == 1
    assert effective_trial_count(np.repeat(one, 2, axis=1)) == 1
    assert effective_trial_count(one) == 1


@pytest.mark.parametrize("sizes", [[3, 4, 5], [6, 6]])
def test_copies_change_no_count(sizes: list[int]) -> None:
    values = groups(sizes)
    assert effective_trial_count(np.concatenate([values, values], 1)) == effective_trial_count(values) == len(sizes)
    few = np.random.default_rng(0).normal(size=(300, 2))
    rounded = few.astype(np.float32).astype(np.float64)
    assert effective_trial_count(np.concatenate([few, rounded, few], 1)) == 2


def test_two_uncorrelated_trials_count_twice() -> None:
    assert effective_trial_count(np.random.default_rng(0).normal(size=(300, 2))) == 2


def test_constant_and_diverged_trials_count_once() -> None:
    returns = np.c_[groups([5, 5]), np.zeros(500), np.full(500, 0.1), np.full(500, np.nan)]
    assert effective_trial_count(returns) == 3
    assert effective_trial_count(np.full((500, 4), np.nan)) == 1


def test_silhouette_equals_that_of_sklearn() -> None:
    rng = np.random.default_rng(1)
    points = rng.normal(size=(30, 2))
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    labels = rng.integers(0, 4, 30)
    assert _silhouette(distance, labels, 4) == pytest.approx(silhouette_score(distance, labels, metric="precomputed"))


def test_invalid_shapes_are_refused() -> None:
    for bad in (np.zeros(5), np.zeros((5, 0))):
        with pytest.raises(InputError, match="bars x trials"):
            effective_trial_count(bad)
