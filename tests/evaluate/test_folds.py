"""Walk-forward folds: training ends before the test, and no bar is tested twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skfolio.model_selection import WalkForward

from finrl_pod.data.splits import walk_forward_folds
from finrl_pod.errors import DataError


@given(
    start=st.integers(200, 400),
    bars=st.integers(40, 300),
    folds=st.integers(1, 8),
    validation=st.integers(1, 60),
    embargo=st.integers(0, 10),
)
def test_spans_are_ordered_separated_and_equally_long(
    start: int, bars: int, folds: int, validation: int, embargo: int
) -> None:
    walk_forward = walk_forward_folds(3, start, start + bars - 1, folds, validation, embargo)
    tested_bars = [bar for fold in walk_forward for bar in range(fold.test.first, fold.test.last + 1)]
    assert tested_bars == list(range(start, start + bars))
    lengths = [len(fold.test) for fold in walk_forward]
    assert max(lengths) - min(lengths) <= 1
    for fold in walk_forward:
        assert fold.train.first == 3
        assert len(fold.validation) == validation
        assert fold.validation.first - fold.train.last == embargo + 1
        assert fold.test.first - fold.validation.last == embargo + 1


def test_spans_equal_those_of_skfolio() -> None:
    """Its expanding walk-forward, purged by validation and embargoes."""
    walk_forward = walk_forward_folds(0, 600, 1199, 6, 50, 5)
    theirs = WalkForward(test_size=100, train_size=540, expand_train=True, purged_size=60)
    splits = list(theirs.split(np.zeros((1200, 1))))
    assert len(splits) == len(walk_forward)
    for fold, (train, test) in zip(walk_forward, splits, strict=True):
        assert (fold.train.first, fold.train.last) == (train[0], train[-1])
        assert (fold.test.first, fold.test.last) == (test[0], test[-1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 100, 199, 0, 10, 2), "needs at least 1 fold, got 0"),
        ((0, 100, 199, 51, 10, 2), "cut into 51 tests"),
        ((0, 100, 199, 2, 0, 2), "got 0 and 2"),
        ((0, 100, 199, 2, 10, -1), "got 10 and -1"),
        ((0, 100, 199, 2, 98, 1), "fold 1 has no bars to train on: 100 bars before its test are fewer than"),
    ],
)
def test_invalid_folds_are_refused(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(DataError) as excinfo:
        walk_forward_folds(*arguments)
    assert message in str(excinfo.value)
