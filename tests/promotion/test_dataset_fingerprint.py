"""What shows the same market on the same days is told from what only bears the same names."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from finrl_pod.promotion.dataset_fingerprint import dataset_fingerprint, same_market
from finrl_pod.types import Floats, Panel

BARS, SYMBOLS = 600, 10


def prices(seed: int = 0, bars: int = BARS, symbols: int = SYMBOLS) -> Floats:
    """[T, N]: half of a symbol's variance is the market's, as of stocks."""
    draw = np.random.default_rng(seed)
    moves = draw.normal(0, 0.01, (bars, 1)) + draw.normal(0, 0.01, (bars, symbols))
    return np.asarray(100 * np.exp(np.cumsum(moves, 0)))


def panel(close: Floats, first: str = "2020-01-06", step: str = "1D", names: str = "S") -> Panel:
    every = np.timedelta64(*{"1D": (1, "D"), "1H": (1, "h")}[step])
    times = np.datetime64(first, "ns") + np.arange(len(close)) * every.astype("timedelta64[ns]")
    return Panel(times, tuple(f"{names}{i}" for i in range(close.shape[1])), close, np.isfinite(close))


def changed(close: Floats, rows: slice = slice(None), columns: slice = slice(None)) -> Panel:
    whole = panel(close)
    part = close[rows, columns]
    return dataclasses.replace(
        whole, times=whole.times[rows], symbols=whole.symbols[columns], close=part, tradable=np.isfinite(part)
    )


def dated(close: Floats, days: int, late: int) -> Panel:
    """Bars of so many days from a Monday on, each dated so many days after its first one."""
    whole = panel(close)
    ends = np.arange(days - 1, len(close), days)
    times = whole.times[ends - days + 1] + np.timedelta64(late, "D")
    return dataclasses.replace(whole, times=times, close=close[ends], tradable=np.isfinite(close[ends]))


def split(close: Floats) -> Floats:
    """One symbol halves, and is not adjusted."""
    mended = close.copy()
    mended[300:, 2] /= 2
    return mended


def gaps(close: Floats) -> Floats:
    """A newcomer, and days without prices."""
    mended = close.copy()
    mended[:200, 3] = mended[250:260] = np.nan
    return mended


@pytest.mark.parametrize(
    "other",
    [
        changed(prices(), rows=slice(None, -1)),
        changed(prices(), rows=slice(100, None)),
        changed(prices(), rows=slice(4, None, 5)),
        changed(prices(), columns=slice(1, None)),
        changed(prices(), columns=slice(0, 5)),
        panel(np.round(prices(), 2)),
        panel(split(prices())),
        panel(gaps(prices())),
        dated(prices(), 7, 0),
        dated(prices(), 7, 6),
        dated(prices(), 7, 7),
        dated(prices(), 1, 1),
        panel(prices(), names="s"),
        changed(prices(), rows=slice(0, 12)),
    ],
    ids=[
        *("a day less", "later", "weekly", "a symbol less", "half", "rounded", "a split", "gaps"),
        *("weeks by Monday", "weeks by Sunday", "weeks by the next Monday", "a day late", "small letters", "two weeks"),
    ],
)
def test_same_market(other: Panel) -> None:
    mine = dataset_fingerprint(panel(prices()))
    assert same_market(mine, mine)
    assert same_market(mine, dataset_fingerprint(other))
    assert same_market(dataset_fingerprint(other), mine)


@pytest.mark.parametrize(
    "other",
    [
        panel(prices(1)),
        panel(prices(), names="T"),
        panel(prices(), first="2015-01-01"),
        changed(prices(), rows=slice(-10, None)),
        changed(prices(), columns=slice(0, 1)),
        panel(np.full((BARS, SYMBOLS), 7.0)),
    ],
    ids=["other prices", "other names", "other days", "hardly a shared day", "one symbol", "still"],
)
def test_other_markets(other: Panel) -> None:
    mine = dataset_fingerprint(panel(prices()))
    assert not same_market(mine, dataset_fingerprint(other))
    assert not same_market(dataset_fingerprint(other), mine)


def test_index_levels_by_day() -> None:
    """Hourly bars make one level a day, that of its last bar; a return is the mean of the symbols that have one."""
    close = np.array([[100.0, 50.0]] * 24 + [[102.0, np.nan]] * 24 + [[102.0, 80.0], [51.0, 84.0]])
    kept = dataset_fingerprint(panel(close, step="1H"))
    np.testing.assert_array_equal(kept.days, np.array(["2020-01-06", "2020-01-07", "2020-01-08"], "datetime64[D]"))
    rise = np.log(1.02)
    np.testing.assert_allclose(kept.levels, [0, rise, rise + (-0.1 + np.log(84 / 80)) / 2])
    assert kept.symbols == {"S0", "S1"}
