"""Statistics over seeds: worked values, agreement with scipy, and coverage of the intervals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from finrl_pod.errors import InputError
from finrl_pod.evaluate.intervals import (
    binomial_interval,
    difference_interval,
    interquartile_mean,
    interquartile_mean_interval,
    probability_of_improvement,
)


def test_worked_example() -> None:
    assert interquartile_mean([1, 2, 3, 4, 5, 6, 7, 100]) == 4.5


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 17])
def test_interquartile_mean_equals_scipys_trimmed_mean(size: int) -> None:
    scores = np.random.default_rng(size).normal(size=size)
    assert interquartile_mean(scores) == pytest.approx(stats.trim_mean(scores, 0.25))


def test_interval_has_its_nominal_coverage() -> None:
    rng = np.random.default_rng(0)
    tasks = np.array([0.0, 1.0, 2.0, 3.0])
    truth = interquartile_mean(rng.normal(tasks, 0.3, (40_000, 4)))
    covered = 0
    for _ in range(100):
        interval = interquartile_mean_interval(rng.normal(tasks, 0.3, (12, 4)), 0.9, draws=120)
        covered += interval.low <= truth <= interval.high
    low, high = binomial_interval(covered, 100, 0.999)
    assert low <= 0.9 <= high


def test_runs_are_resampled_within_their_task() -> None:
    """Tasks that lie far apart do not widen the interval: only the runs within each do."""
    rng = np.random.default_rng(1)
    narrow = interquartile_mean_interval(rng.normal([0.0, 100.0, 200.0, 300.0], 0.01, (10, 4)), draws=300)
    assert narrow.high - narrow.low < 0.1


def test_difference_interval_has_its_nominal_coverage() -> None:
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(100):
        ours, theirs = rng.normal(1.5, 1, (12, 1)), rng.normal(1, 2, (15, 1))
        interval = difference_interval(ours, theirs, 0.9, draws=120)
        assert interval.value == pytest.approx(stats.trim_mean(ours, 0.25)[0] - stats.trim_mean(theirs, 0.25)[0])
        covered += interval.low <= 0.5 <= interval.high
    low, high = binomial_interval(covered, 100, 0.999)
    assert low <= 0.9 <= high


def test_improvement_is_the_mann_whitney_statistic() -> None:
    rng = np.random.default_rng(2)
    ours, theirs = rng.normal(0.4, 1, (9, 1)), rng.normal(0, 1, (11, 1))
    expected = stats.mannwhitneyu(ours[:, 0], theirs[:, 0]).statistic / (9 * 11)
    interval = probability_of_improvement(ours, theirs, draws=400)
    assert interval.value == pytest.approx(expected)
    assert interval.low <= interval.value <= interval.high


def test_improvement_at_the_extremes() -> None:
    high, low = np.array([[2.0], [3.0]]), np.array([[0.0], [1.0]])
    assert probability_of_improvement(high, low, draws=20) == (1.0, 1.0, 1.0)
    assert probability_of_improvement(low, high, draws=20) == (0.0, 0.0, 0.0)
    assert probability_of_improvement(low, low, draws=400).value == 0.5
    assert (
        probability_of_improvement(high, np.array([[1.0]]), draws=20).value == 1.0
    )  # a deterministic baseline needs one run


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: interquartile_mean_interval([[1.0, 2.0]]), "at least two runs, got 1"),
        (lambda: interquartile_mean_interval([[1.0], [np.nan]]), "run 1 has one that is not"),
        (lambda: interquartile_mean([]), "non-empty"),
        (lambda: probability_of_improvement(np.zeros((3, 2)), np.zeros((3, 1))), "the same tasks, got 2 and 1"),
        (lambda: difference_interval(np.zeros((3, 2)), np.zeros((3, 1))), "the same tasks, got 2 and 1"),
        (lambda: difference_interval([1.0, 2.0], [1.0]), "at least two runs, got 1"),
    ],
)
def test_invalid_scores_are_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError) as excinfo:
        call()
    assert message in str(excinfo.value)
