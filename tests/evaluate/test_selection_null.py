"""The effect of selection alone: known order statistics, brute force, and monotonicity."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from finrl_pod.errors import InputError
from finrl_pod.evaluate.overfitting import effective_trials, null_z_scores, selected_z_scores, selection_p_value


def equicorrelated(trials: int, correlation: float) -> np.ndarray:
    return np.full((trials, trials), correlation) + (1 - correlation) * np.eye(trials)


def expected_maximum(count: int) -> float:
    value, _ = integrate.quad(lambda x: x * count * stats.norm.pdf(x) * stats.norm.cdf(x) ** (count - 1), -9, 9)
    return float(value)


def test_null_distribution_without_selection_is_standard_normal() -> None:
    for null in (null_z_scores(np.eye(1), 1), null_z_scores(equicorrelated(6, 0.4), 6)):
        assert stats.kstest(null, "norm").pvalue > 0.01
        assert effective_trials(null) < 1.05


@pytest.mark.parametrize("count", [2, 10, 100])
def test_best_of_independent_trials_is_their_maximum(count: int) -> None:
    null = null_z_scores(np.eye(count), 1)
    assert null.mean() == pytest.approx(expected_maximum(count), abs=0.03)
    assert effective_trials(null) == pytest.approx(count, rel=0.1)
    assert stats.kstest(null, lambda x: stats.norm.cdf(x) ** count).pvalue > 0.01


def test_best_of_correlated_trials() -> None:
    """The maximum of N equicorrelated normals is sqrt(1 - rho) times that of independent ones on average."""
    null = null_z_scores(equicorrelated(50, 0.75), 1)
    assert null.mean() == pytest.approx(0.5 * expected_maximum(50), abs=0.03)


def test_ensemble_equals_brute_force() -> None:
    rng = np.random.default_rng(4)
    root = rng.normal(size=(5, 5)) * np.array([1.0, 2.0, 0.5, 1.0, 1.5])[:, None]
    covariance = root @ root.T
    means = rng.multivariate_normal(np.zeros(5), covariance, 20_000)
    scores = means / np.sqrt(np.diag(covariance))
    chosen = np.argsort(-scores, 1)[:, :2]
    best = [
        means[b, pair].sum() / np.sqrt(covariance[np.ix_(pair, pair)].sum()) for b, pair in enumerate(chosen.tolist())
    ]
    null = null_z_scores(covariance, 2, seed=9)
    assert stats.ks_2samp(null, best).pvalue > 0.01


def test_greedy_selection_beats_its_start_and_no_ensemble_beats_the_best_weights() -> None:
    covariance = equicorrelated(6, 0.3)
    draws = 2_000
    values, vectors = np.linalg.eigh(covariance)
    means = np.random.default_rng(7).normal(size=(draws, 6)) @ (vectors * np.sqrt(values)).T  # as drawn by the function
    largest = np.sqrt((means @ np.linalg.inv(covariance) * means).sum(1))  # of any weights, short ones included
    for members in (1, 3):
        best, greedy = (null_z_scores(covariance, members, how, seed=7, draws=draws) for how in ("best", "greedy"))
        assert (greedy >= best - 1e-9).all()
        assert greedy.mean() > best.mean() + 0.05
        assert (greedy <= np.sort(largest) + 1e-9).all()


def test_p_value_rises_with_trials_and_less_with_correlated_ones() -> None:
    means = [null_z_scores(np.eye(n), 1).mean() for n in (1, 2, 5, 20, 200)]
    assert means == sorted(means)
    means = [null_z_scores(equicorrelated(20, rho), 4).mean() for rho in (0.0, 0.3, 0.6, 0.9, 0.99)]
    assert means == sorted(means, reverse=True)
    assert means[-1] < 0.2


def test_p_value_is_the_share_of_larger_draws_and_is_reproducible() -> None:
    null = np.arange(99.0)
    assert selection_p_value(1e9, null) == pytest.approx(1 / 100)
    assert selection_p_value(-1.0, null) == 1.0
    assert selection_p_value(89.5, null) == pytest.approx(10 / 100)
    assert selection_p_value(89.5, null, 3.0) == pytest.approx(1 - 0.9**3)
    assert selection_p_value(-1.0, null, 3.0) == 1.0


def test_null_uses_the_covariance_of_trials_and_excludes_unusable_ones() -> None:
    trials = np.random.default_rng(5).normal(size=(3000, 4)) @ np.linalg.cholesky(equicorrelated(4, 0.5)).T * 1e-3
    null = selected_z_scores(trials, 2, seed=1)
    assert null.mean() == pytest.approx(null_z_scores(equicorrelated(4, 0.5), 2, seed=2).mean(), abs=0.05)
    more = np.c_[trials, np.full(3000, np.nan), np.zeros(3000)]
    assert selected_z_scores(more, 2, seed=1) == pytest.approx(null)
    assert effective_trials(selected_z_scores(trials[:, [0, 0, 0]], 1)) < 1.05  # copies
    with pytest.raises(InputError, match="at least one trial"):
        selected_z_scores(np.zeros((30, 2)), 1)
