"""Warnings about prices: likely splits and prices that stand still, and none about ordinary ones."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

from finrl_pod.data.flaws import Flaw, check
from finrl_pod.data.panel import make_panel, without_repeats
from finrl_pod.types import Panel
from tests.data.panels import panel

BARS, AT = 300, 150


def closes(volatility: float = 0.01) -> np.ndarray:
    return 50 * np.exp(np.random.default_rng(3).normal(0, volatility, (BARS, 3)).cumsum(0))


def found(close: np.ndarray, kind: str, adjusted: bool = True) -> list[Flaw]:
    prices = dataclasses.replace(panel(close), adjusted=adjusted)
    return [flaw for flaw in check(prices) if flaw.kind == kind]


@pytest.mark.parametrize(("new", "old"), [(2, 1), (3, 2), (5, 4), (10, 1), (1, 10), (1, 2), (20, 1)])
def test_a_move_of_the_size_of_a_split_is_named(new: int, old: int) -> None:
    close = closes(0.006)
    close[AT:, 1] *= old / new
    (flaw,) = found(close, "split")
    assert (flaw.symbol, flaw.time, flaw.hard) == ("S1", panel(close).times[AT], False)
    assert f"likely a {new}:{old} split, and the prices are not adjusted as stated" in flaw.message
    (flaw,) = found(close, "split", adjusted=False)
    assert "not adjusted as stated" not in flaw.message


def test_ordinary_and_volatile_prices_have_no_splits() -> None:
    assert not found(closes(), "split")
    assert not found(closes(0.08), "split")
    close = closes()
    close[AT:] *= 0.72  # a crash, of no ratio of shares
    assert not found(close, "split")


def test_rare_weekend_bars_are_named() -> None:
    days = pd.bdate_range("2020-01-01", periods=BARS).to_numpy("datetime64[ns]")
    prices = dataclasses.replace(panel(closes()), times=days)
    assert not [flaw for flaw in check(prices) if flaw.kind == "weekend"]
    days[2] += np.timedelta64(1, "D")  # Friday the 3rd
    prices = dataclasses.replace(panel(closes()), times=days)
    (flaw,) = [flaw for flaw in check(prices) if flaw.kind == "weekend"]
    assert flaw.message == "2020-01-04 is a Saturday: remove the rows of that day, unless the market was open."
    assert not found(closes(), "weekend"), "a market that trades every day"


def filled(close: np.ndarray, bars: slice, tickers: list[int]) -> np.ndarray:
    """Closes that repeat the bar before on these bars, with prices that go on from there."""
    returns = np.diff(np.log(close), axis=0, prepend=0)
    cells = np.zeros(close.shape, bool)
    cells[bars, tickers] = True
    return np.exp(np.where(cells, 0.0, returns).cumsum(0))


def ohlcv(close: np.ndarray, volume: np.ndarray) -> Panel:
    opens = np.vstack([close[:1], close[:-1]])
    highest, lowest = np.maximum(opens, close), np.minimum(opens, close)
    return panel(close, open=opens, high=highest, low=lowest, volume=volume)


def repeats(prices: Panel) -> list[Flaw]:
    return [flaw for flaw in check(prices) if flaw.kind == "repeat"]


def test_bars_on_which_all_prices_repeat_are_named() -> None:
    weekends = slice(10, None, 7)
    assert not repeats(panel(closes()))
    (flaw,) = repeats(panel(filled(closes(), weekends, [0, 1, 2])))
    assert flaw.message.startswith("42 of 300 bars (14.0%) repeat every price of the bar before, first on 2020-01-11:")
    volume = np.random.default_rng(0).uniform(1e5, 1e6, (BARS, 3))
    whole = ohlcv(filled(closes(), weekends, [0, 1, 2]), volume)
    assert not repeats(whole), "with volumes of their own they traded"
    volume[weekends] = 0
    (flaw,) = repeats(ohlcv(filled(closes(), weekends, [0, 1, 2]), volume))  # open = high = low = close
    assert flaw.message.startswith("42 of 300 bars")
    copied = {name: getattr(whole, name).copy() for name in whole.columns}
    for values in copied.values():  # the whole bar before, as by a fill forward of the table
        values[weekends] = values[9:-1:7]
    (flaw,) = repeats(dataclasses.replace(whole, **copied))
    assert flaw.message.startswith("42 of 300 bars")


def test_repeats_of_most_or_single_tickers_are_named() -> None:
    close = np.hstack([closes(), closes() + 5])
    (flaw,) = repeats(panel(filled(close, slice(10, None, 25), [0, 1, 2])))
    assert "12 of 300 bars (4.0%) repeat the prices of most tickers" in flaw.message
    (flaw,) = repeats(panel(filled(close, slice(10, None, 4), [4])))
    assert flaw.symbol == "S4"
    assert "S4 repeats its prices on 73 of 300 bars (24.3%)" in flaw.message
    assert not repeats(panel(filled(close, slice(10, None, 10), [4]))), "closes on coarse ticks repeat by chance"
    single = filled(closes(), slice(10, None, 60), [0])[:, :1]
    assert not repeats(panel(single)), "and so do the few of a single ticker"


def test_bars_that_repeat_are_left_out() -> None:
    prices = panel(filled(closes(), slice(10, None, 7), [0, 1, 2]))
    weekends = (np.arange(BARS) % 7 == 3) & (np.arange(BARS) > 7)
    shorter = without_repeats(dataclasses.replace(prices, flaws=("Stated.",)))
    np.testing.assert_array_equal(shorter.times, prices.times[~weekends])
    np.testing.assert_array_equal(shorter.close, prices.close[~weekends])
    assert shorter.flaws[:2] == ("42 bars that repeated every price of the bar before were left out.", "Stated.")
    assert not [text for text in shorter.flaws if "filled weekends" in text]
    assert without_repeats(panel(closes())).times.size == BARS


@pytest.mark.parametrize(
    ("column", "factor", "message"),
    [
        ("open", 0.1, "S1 opens at 4.8 "),
        ("open", 10, "S1 opens at 480"),
        ("high", 10, "S1 has a high of"),
        ("low", 0.1, "S1 has a low of"),
    ],
)
def test_wrong_opens_highs_and_lows_are_named(column: str, factor: float, message: str) -> None:
    volume = np.random.default_rng(0).uniform(1e5, 1e6, (BARS, 3))
    prices = ohlcv(closes(), volume)
    assert not [flaw for flaw in check(prices) if flaw.kind == "outlier"]
    values = getattr(prices, column)
    values[AT, 1] = 48 * factor if column == "open" else values[AT, 1] * factor
    (flaw,) = [flaw for flaw in check(prices) if flaw.kind == "outlier"]
    assert (flaw.symbol, flaw.time, flaw.hard) == ("S1", prices.times[AT], False)
    assert flaw.message.startswith(message)


def test_news_and_splits_are_no_outliers() -> None:
    close = closes()
    close[AT:, 1] *= 0.4  # the open moves with the close
    prices = ohlcv(close, np.random.default_rng(0).uniform(1e5, 1e6, (BARS, 3)))
    assert prices.open is not None
    assert prices.high is not None
    prices.open[AT, 1] = prices.high[AT, 1] = close[AT, 1]
    assert not [flaw for flaw in check(prices) if flaw.kind == "outlier"]


def test_prices_that_stand_still_are_named() -> None:
    close = closes()
    assert not found(close, "stale")
    close[AT : AT + 20, 2] = close[AT, 2]
    (flaw,) = found(close, "stale")
    assert flaw.symbol == "S2"
    assert "on 20 bars in a row, from 2020-05-30 to 2020-06-18" in flaw.message


@pytest.mark.parametrize(
    ("shift", "words"), [(-1, "Sundays and none on Fridays"), (1, "Saturdays and none on Mondays")]
)
def test_midnights_of_another_time_zone_are_named(shift: int, words: str) -> None:
    days = pd.bdate_range("2024-01-02", periods=60)
    close = closes()[:60]
    for times, named in ((days + pd.Timedelta(days=shift), True), (days, False)):
        flaws = check(make_panel(times.to_numpy(), ["A", "B", "C"], {"close": close}))
        assert any(words in flaw.message for flaw in flaws) == named
