"""Train, validation and test splits by date, and walk-forward folds, separated by an embargo."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from finrl_pod.data.dates import first_moment, last_moment
from finrl_pod.errors import DataError
from finrl_pod.prices import Times
from finrl_pod.settings.run import SplitConfig

REWARD_LAG = 2  # bars from a decision to the fill that ends its reward
# How far outside the data the dates of a split may lie: 31 December may be no trading session.
CALENDAR_SLACK = pd.Timedelta(days=7)


@dataclass(frozen=True)
class Span:
    """A range of bars, first to last inclusive."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1

    @property
    def slice(self) -> slice:
        """The range as a slice of rows of [T, ...]."""
        return slice(self.first, self.last + 1)


@dataclass(frozen=True, eq=False)
class Splits:
    """Bar ranges of the splits; the `embargo` bars before validation and before test belong to none. times: [T]."""

    train: Span
    validation: Span
    test: Span
    embargo: int
    times: Times

    def dates(self) -> dict[str, list[str]]:
        """{"train": [first, last], ...}: ISO dates of the bars used (date and time for intraday bars)."""
        daily = bool(np.all(self.times == self.times.astype("datetime64[D]")))
        unit = "datetime64[D]" if daily else "datetime64[m]"
        return {
            name: [str(self.times[span.first].astype(unit)), str(self.times[span.last].astype(unit))]
            for name, span in (("train", self.train), ("validation", self.validation), ("test", self.test))
        }


def make_splits(times: Times, config: SplitConfig) -> Splits:
    """Split times [T] by the dates in `config`, dropping the embargo from the end of train and of validation.

    A decision at bar t fills at t+1 and its reward ends at the fill of t+1, at bar t+2: an embargo of at least 2 bars
    keeps rewards of one split from reaching into the next.
    Raises DataError for invalid, reversed or overlapping dates, dates more than a week outside the data, and empty
    splits.
    """
    if config.embargo < 0:
        raise DataError(f"splits.embargo must be 0 bars or more, got {config.embargo}")
    if not len(times):
        raise DataError("there are no bars to split")
    train = _span(times, "train", config.train, config.embargo)
    validation = _span(times, "validation", config.validation, config.embargo)
    test = _span(times, "test", config.test, 0)
    _check_order("train", config.train, "validation", config.validation)
    _check_order("validation", config.validation, "test", config.test)
    return Splits(train, validation, test, config.embargo, times)


def _span(times: Times, name: str, dates: tuple[str, str], embargo: int) -> Span:
    start, end = first_moment(dates[0], f"the start of {name}"), last_moment(dates[1], f"the end of {name}")
    if start > end:
        raise DataError(f"split {name} starts on {dates[0]}, after its end {dates[1]}: swap the dates")
    data = pd.Timestamp(times[0]), pd.Timestamp(times[-1])
    if start < data[0] - CALENDAR_SLACK or end.floor("D") > data[1] + CALENDAR_SLACK:
        covers = f"{data[0].date()} to {data[1].date()}"
        raise DataError(
            f"split {name}, {dates[0]} to {dates[1]}, lies outside the data, which covers {covers}: change [splits], "
            "or leave it out for splits that fit"
        )
    first = int(np.searchsorted(times, start.to_datetime64(), "left"))
    last = int(np.searchsorted(times, end.to_datetime64(), "right")) - 1
    if last < first:
        raise DataError(f"split {name}, {dates[0]} to {dates[1]}, has no bars: widen it")
    if last - embargo < first:
        bars = last - first + 1
        raise DataError(f"split {name} has {bars} bars, of which an embargo of {embargo} leaves none: widen it")
    return Span(first, last - embargo)


def _check_order(first_name: str, a: tuple[str, str], second_name: str, b: tuple[str, str]) -> None:
    if last_moment(a[1]) >= first_moment(b[0]):
        raise DataError(
            f"split {first_name} ends on {a[1]} but {second_name} starts on {b[0]}: splits must not overlap and must "
            "follow in the order train, validation, test"
        )


@dataclass(frozen=True)
class Fold:
    """Bars of one fold. number: count from 1. The embargo bars before validation and before test belong to no span."""

    number: int
    train: Span
    validation: Span
    test: Span


def walk_forward_folds(
    first: int, start: int, last: int, folds: int, validation: int, embargo: int
) -> tuple[Fold, ...]:
    """Cut bars `start` to `last` into `folds` consecutive test spans, each with the bars before it to train on.

    Test spans have equal length (to one bar) and leave no gap. Fold k validates on `validation` bars before its test
    and trains on all bars from `first` up to there. `embargo` bars are left out after training and after validation:
    rewards of the last decisions reach into them (purging), and features move slowly (embargo).

    Raises DataError for fewer than one fold, tests of fewer than two bars, and a first fold without training bars.
    """
    if folds < 1:
        raise DataError(f"a walk-forward needs at least 1 fold, got {folds}")
    if embargo < 0 or validation < 1:
        raise DataError(
            f"a fold needs at least 1 validation bar and an embargo of at least 0, got {validation} and {embargo}"
        )
    bars = last - start + 1
    if bars < 2 * folds:
        raise DataError(f"{bars} bars cannot be cut into {folds} tests of at least two bars; use fewer folds")
    edges = [start + round(k * bars / folds) for k in range(folds + 1)]
    fold_list = []
    for k in range(folds):
        validation_span = Span(edges[k] - embargo - validation, edges[k] - embargo - 1)
        train_span = Span(first, validation_span.first - embargo - 1)
        if train_span.last < train_span.first:
            raise DataError(
                f"fold {k + 1} has no bars to train on: {edges[k] - first} bars before its test are fewer than "
                f"{validation} of validation and two embargoes of {embargo}; start later or use a shorter validation"
            )
        fold_list.append(Fold(k + 1, train_span, validation_span, Span(edges[k], edges[k + 1] - 1)))
    return tuple(fold_list)
