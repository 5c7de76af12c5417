"""Warnings about prices: likely splits and prices that stand still, and none about ordinary ones."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

from finrl_pod.data.flaws import Flaw, check
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


def test_prices_that_stand_still_are_named() -> None:
    close = closes()
    assert not found(close, "stale")
    close[AT : AT + 20, 2] = close[AT, 2]
    (flaw,) = found(close, "stale")
    assert flaw.symbol == "S2"
    assert "on 20 bars in a row, from 2020-05-30 to 2020-06-18" in flaw.message
