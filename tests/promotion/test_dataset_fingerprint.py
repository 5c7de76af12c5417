"""Panels of the same market are recognised, and other panels with the same symbols are not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from finrl_pod.promotion.dataset_fingerprint import dataset_fingerprint, same_market
from finrl_pod.types import Floats, Panel

BARS, SYMBOLS = 600, 10


def prices(seed: int = 0, bars: int = BARS, symbols: int = SYMBOLS) -> Floats:
    """Prices [T, N]; half of each symbol's variance is common to all, as for stocks."""
    draw = np.random.default_rng(seed)
    returns = draw.normal(0, 0.01, (bars, 1)) + draw.normal(0, 0.01, (bars, symbols))
    return np.asarray(100 * np.exp(np.cumsum(returns, 0)))


def panel(close: Floats, first: str = "2020-01-06", step: str = "1D", names: str = "S") -> Panel:
    every = np.timedelta64(*{"1D": (1, "D"), "1H": (1, "h")}[step])
    times = np.datetime64(first, "ns") + np.arange(len(close)) * every.astype("timedelta64[ns]")
    return Panel(times, tuple(f"{names}{i}" for i in range(close.shape[1])), close, np.isfinite(close))


def part_of(close: Floats, rows: slice = slice(None), columns: slice = slice(None)) -> Panel:
    full = panel(close)
    part = close[rows, columns]
    return dataclasses.replace(
        full, times=full.times[rows], symbols=full.symbols[columns], close=part, tradable=np.isfinite(part)
    )


def resampled(close: Floats, days: int, offset: int) -> Panel:
    """Bars of `days` days from a Monday on, each dated `offset` days after its first day."""
    full = panel(close)
    ends = np.arange(days - 1, len(close), days)
    times = full.times[ends - days + 1] + np.timedelta64(offset, "D")
    return dataclasses.replace(full, times=times, close=close[ends], tradable=np.isfinite(close[ends]))


def with_split(close: Floats) -> Floats:
    """Prices with an unadjusted 2:1 split of one symbol."""
    altered = close.copy()
    altered[300:, 2] /= 2
    return altered


def with_gaps(close: Floats) -> Floats:
    """Prices with a late listing and days without prices."""
    altered = close.copy()
    altered[:200, 3] = altered[250:260] = np.nan
    return altered


@pytest.mark.parametrize(
    "other",
    [
        part_of(prices(), rows=slice(None, -1)),
        part_of(prices(), rows=slice(100, None)),
        part_of(prices(), rows=slice(4, None, 5)),
        part_of(prices(), columns=slice(1, None)),
        part_of(prices(), columns=slice(0, 5)),
        panel(np.round(prices(), 2)),
        panel(with_split(prices())),
        panel(with_gaps(prices())),
        resampled(prices(), 7, 0),
        resampled(prices(), 7, 6),
        resampled(prices(), 7, 7),
        resampled(prices(), 1, 1),
        panel(prices(), names="s"),
        part_of(prices(), rows=slice(0, 12)),
    ],
    ids=[
        *(
            "one day less",
            "later start",
            "weekly",
            "one symbol less",
            "half of the symbols",
            "rounded",
            "split",
            "gaps",
        ),
        *("weeks by Monday", "weeks by Sunday", "weeks by next Monday", "one day late", "lower case", "two weeks"),
    ],
)
def test_same_market(other: Panel) -> None:
    fingerprint = dataset_fingerprint(panel(prices()))
    assert same_market(fingerprint, fingerprint)
    assert same_market(fingerprint, dataset_fingerprint(other))
    assert same_market(dataset_fingerprint(other), fingerprint)


@pytest.mark.parametrize(
    "other",
    [
        panel(prices(1)),
        panel(prices(), names="T"),
        panel(prices(), first="2015-01-01"),
        part_of(prices(), rows=slice(-10, None)),
        part_of(prices(), columns=slice(0, 1)),
        panel(np.full((BARS, SYMBOLS), 7.0)),
    ],
    ids=["other prices", "other names", "other days", "few shared days", "one symbol", "constant"],
)
def test_other_markets(other: Panel) -> None:
    fingerprint = dataset_fingerprint(panel(prices()))
    assert not same_market(fingerprint, dataset_fingerprint(other))
    assert not same_market(dataset_fingerprint(other), fingerprint)


def test_index_levels_by_day() -> None:
    """Hourly bars give one level per day, at its last bar; returns are means over symbols that have one."""
    close = np.array([[100.0, 50.0]] * 24 + [[102.0, np.nan]] * 24 + [[102.0, 80.0], [51.0, 84.0]])
    fingerprint = dataset_fingerprint(panel(close, step="1H"))
    np.testing.assert_array_equal(
        fingerprint.days, np.array(["2020-01-06", "2020-01-07", "2020-01-08"], "datetime64[D]")
    )
    rise = np.log(1.02)
    np.testing.assert_allclose(fingerprint.levels, [0, rise, rise + (-0.1 + np.log(84 / 80)) / 2])
    assert fingerprint.symbols == {"S0", "S1"}
