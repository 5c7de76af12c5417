"""Splits by date: bars, embargo and invalid configurations."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.data.built_in_panels import load_sample
from finrl_pod.data.splits import Span, make_splits
from finrl_pod.errors import DataError
from finrl_pod.settings.run import SplitConfig

# Every calendar day of 2020, a leap year: day d of the year is bar d - 1.
YEAR = np.datetime64("2020-01-01", "ns") + np.arange(366).astype("timedelta64[D]")
CONFIG = SplitConfig(("2020-01-01", "2020-06-30"), ("2020-07-01", "2020-09-30"), ("2020-10-01", "2020-12-31"), 5)


def test_the_samples_default_years() -> None:
    splits = make_splits(load_sample().times, SplitConfig())
    assert splits.dates() == {
        "train": ["1990-01-02", "2015-12-23"],
        "validation": ["2016-01-04", "2018-12-21"],
        "test": ["2019-01-02", "2022-12-28"],
    }
    assert splits.test.last == 8312


def test_spans_include_both_ends_less_the_embargo() -> None:
    splits = make_splits(YEAR, CONFIG)
    assert (splits.train, splits.validation, splits.test) == (Span(0, 176), Span(182, 268), Span(274, 365))
    assert len(splits.train) == 177
    assert YEAR[splits.validation.slice][[0, -1]].tolist() == YEAR[[182, 268]].tolist()


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(0, 365), min_size=6, max_size=6, unique=True).map(sorted), embargo=st.integers(0, 30))
def test_splits_never_share_a_bar_and_keep_the_embargo_apart(cuts: list[int], embargo: int) -> None:
    dates = [str(YEAR[c])[:10] for c in cuts]
    config = SplitConfig((dates[0], dates[1]), (dates[2], dates[3]), (dates[4], dates[5]), embargo)
    if min(cuts[1] - cuts[0], cuts[3] - cuts[2]) < embargo:
        with pytest.raises(DataError, match="leaves none"):
            make_splits(YEAR, config)
        return
    splits = make_splits(YEAR, config)
    assert splits.train == Span(cuts[0], cuts[1] - embargo)
    assert splits.validation.first - splits.train.last > embargo
    assert splits.test.first - splits.validation.last > embargo
    assert splits.test == Span(cuts[4], cuts[5])


def test_intraday_bars_of_the_last_day_belong_to_the_split() -> None:
    hours = np.datetime64("2020-01-01T00:00", "ns") + np.arange(24 * 30).astype("timedelta64[h]")
    config = SplitConfig(("2020-01-01", "2020-01-10"), ("2020-01-11", "2020-01-20"), ("2020-01-21", "2020-01-30"), 0)
    splits = make_splits(hours, config)
    assert [len(s) for s in (splits.train, splits.validation, splits.test)] == [240, 240, 240]
    assert splits.dates()["train"] == ["2020-01-01T00:00", "2020-01-10T23:00"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": ("2018-01-01", "2020-06-30")}, "split train, 2018-01-01 to 2020-06-30, lies outside the data, which "
         "covers 2020-01-01 to 2020-12-31"),
        ({"test": ("2020-10-01", "2021-06-30")}, "split test, .* lies outside the data"),
        ({"train": ("2020-01-01", "2020-07-01")}, "split train ends on 2020-07-01 but validation starts on 2020-07-01"),
        ({"test": ("2020-09-01", "2020-12-31")}, "split validation ends on 2020-09-30 but test starts on 2020-09-01"),
        ({"test": ("2020-12-31", "2020-10-01")}, "split test starts on 2020-12-31, after its end"),
        ({"test": ("2021-01-01", "2021-01-05")}, "split test, .* has no bars"),
        ({"validation": ("2020-07-01", "2020-07-05")}, "split validation has 5 bars, of which an embargo of 5 leaves"),
        ({"train": ("soon", "2020-07-01")}, "the start of train must be a date such as 2020-01-31, got 'soon'"),
        ({"embargo": -1}, "embargo must be 0 bars or more, got -1"),
    ],
)  # fmt: skip
def test_invalid_splits_raise_data_error(change: dict[str, tuple[str, str]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_splits(YEAR, dataclasses.replace(CONFIG, **change))  # type: ignore[arg-type]


def test_splits_of_an_empty_panel_are_refused() -> None:
    with pytest.raises(DataError, match="no bars to split"):
        make_splits(YEAR[:0], CONFIG)
