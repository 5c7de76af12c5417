"""Volatility and volume for impact costs and volume limits: causal, and correct where no fill is possible."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from finrl_pod.data.tensor import (
    DEFAULT_VOLATILITY,
    MIN_VOLATILITY_RETURNS,
    VOLATILITY_BARS,
    build_market,
    trailing_volatility,
)
from tests.data.panels import panel


def test_volatility_uses_only_the_past_and_agrees_with_numpy() -> None:
    close = 50 * np.exp(np.random.default_rng(0).normal(0, 0.02, (60, 2)).cumsum(0))
    all_tradable = np.ones(close.shape, dtype=bool)
    actual = trailing_volatility(close, all_tradable)
    returns = np.diff(np.log(close), axis=0)
    for t in (MIN_VOLATILITY_RETURNS, 20, 40, 59):
        np.testing.assert_allclose(actual[t], returns[max(0, t - VOLATILITY_BARS) : t].std(0, ddof=1), rtol=1e-9)
    assert (actual[:MIN_VOLATILITY_RETURNS] == DEFAULT_VOLATILITY).all()
    changed = close.copy()
    changed[31:] *= 3
    np.testing.assert_array_equal(trailing_volatility(changed, all_tradable)[:31], actual[:31])


def test_volatility_uses_only_a_tickers_own_bars() -> None:
    close = 150 * np.exp(np.random.default_rng(1).normal(0, 0.02, 60).cumsum())
    tradable = np.ones((120, 2), dtype=bool)
    tradable[:60, 1] = False  # listed at bar 60
    tradable[80:90, 1] = False  # suspended
    late = np.full((120, 2), np.nan)
    late[:, 0], late[tradable[:, 1], 1] = 10.0, close[:50]
    market = build_market(dataclasses.replace(panel(late), volume=np.where(tradable, 1e6, np.nan)), (), (0, 119))
    assert market.volatility is not None
    actual = market.volatility.numpy()[:, 1]
    returns = np.diff(np.log(close))
    assert (actual[: 60 + MIN_VOLATILITY_RETURNS] == DEFAULT_VOLATILITY).all()
    for t, last in ((60 + MIN_VOLATILITY_RETURNS, MIN_VOLATILITY_RETURNS), (79, 19), (85, 19), (90, 20), (119, 49)):
        np.testing.assert_allclose(actual[t], returns[max(0, last - VOLATILITY_BARS) : last].std(ddof=1), rtol=1e-9)


@pytest.mark.parametrize("fill", ["next", "same_close"])
def test_volumes_are_those_of_the_bar_that_fills(fill: str) -> None:
    close = np.full((8, 2), 10.0)
    close[5:, 1] = np.nan
    source = panel(close)
    volume = np.where(source.tradable, np.arange(16.0).reshape(8, 2) + 1, np.nan)
    market = build_market(dataclasses.replace(source, volume=volume), (), (0, 7), fill)
    assert market.fill_volume is not None
    actual = market.fill_volume.numpy()
    assert actual[2].tolist() == (volume[3] if fill == "next" else volume[2]).tolist()
    assert actual[-1, 0] == (0.0 if fill == "next" else volume[-1, 0])
    assert np.isinf(actual[5:, 1]).all()  # a delisting pays out any number of shares
    volume[[0, 3], 0] = np.nan  # an unknown volume is the last known one, none before the first
    market = build_market(dataclasses.replace(source, volume=volume), (), (0, 7), "same_close")
    assert market.fill_volume is not None
    assert market.fill_volume[:5, 0].tolist() == [0.0, *volume[[1, 2, 2, 4], 0]]
    assert build_market(source, (), (0, 7)).fill_volume is None
