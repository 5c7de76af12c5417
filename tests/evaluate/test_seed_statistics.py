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
)


def test_worked_example() -> None:
    assert interquartile_mean([1, 2, 3, 4, 5, 6, 7, 100]) == 4.5


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 17])
def test_interquartile_mean_equals_scipys_trimmed_mean(size: int) -> None:
    scores = np.random.default_rng(size).normal(size=size)
    assert interquartile_mean(scores) == pytest.approx(stats.trim_mean(scores, 0.25))


def test_runs_are_resampled_within_their_task() -> None:
    """Tasks that lie far apart do not widen the interval: only the runs within each do."""
    rng = np.random.default_rng(1)
    scores = rng.normal([0.0, 100.0, 200.0, 300.0], 0.01, (2, 10, 4))
    narrow = difference_interval(scores[0], scores[1], draws=300)
    assert narrow.high - narrow.low < 0.1


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: difference_interval([[1.0], [np.nan]], [1.0, 2.0]), "run 1 has one that is not"),
        (lambda: interquartile_mean([]), "non-empty"),
        (lambda: difference_interval(np.zeros((3, 2)), np.zeros((3, 1))), "the same tasks, got 2 and 1"),
        (lambda: difference_interval([1.0, 2.0], [1.0]), "at least two runs, got 1"),
    ],
)
def test_invalid_scores_are_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError) as excinfo:
        call()
    assert message in str(excinfo.value)
