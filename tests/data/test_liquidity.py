"""What impact and volume limits read: causal, and right where nothing can fill."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from finrl_pod.data.liquidity import DEFAULT_VOLATILITY, LOOKBACK, MIN_RETURNS, trailing_volatility
from finrl_pod.data.tensor import build_market
from tests.data.panels import panel


def test_volatility_uses_only_the_past_and_agrees_with_numpy() -> None:
    close = 50 * np.exp(np.random.default_rng(0).normal(0, 0.02, (60, 2)).cumsum(0))
    everywhere = np.ones(close.shape, dtype=bool)
    got = trailing_volatility(close, everywhere)
    returns = np.diff(np.log(close), axis=0)
    for t in (MIN_RETURNS, 20, 40, 59):
        np.testing.assert_allclose(got[t], returns[max(0, t - LOOKBACK) : t].std(0, ddof=1), rtol=1e-9)
    assert (got[:MIN_RETURNS] == DEFAULT_VOLATILITY).all()
    changed = close.copy()
    changed[31:] *= 3
    np.testing.assert_array_equal(trailing_volatility(changed, everywhere)[:31], got[:31])


def test_volatility_uses_only_a_tickers_own_bars() -> None:
    close = 150 * np.exp(np.random.default_rng(1).normal(0, 0.02, 60).cumsum())
    tradable = np.ones((120, 2), dtype=bool)
    tradable[:60, 1] = False  # listed at bar 60
    tradable[80:90, 1] = False  # suspended
    late = np.full((120, 2), np.nan)
    late[:, 0], late[tradable[:, 1], 1] = 10.0, close[:50]
    market = build_market(dataclasses.replace(panel(late), volume=np.where(tradable, 1e6, np.nan)), (), (0, 119))
    assert market.volatility is not None
    got = market.volatility.numpy()[:, 1]
    returns = np.diff(np.log(close))
    assert (got[: 60 + MIN_RETURNS] == DEFAULT_VOLATILITY).all()
    for t, last in ((60 + MIN_RETURNS, MIN_RETURNS), (79, 19), (85, 19), (90, 20), (119, 49)):
        np.testing.assert_allclose(got[t], returns[max(0, last - LOOKBACK) : last].std(ddof=1), rtol=1e-9)


@pytest.mark.parametrize("fill", ["next", "same_close"])
def test_volumes_are_those_of_the_bar_that_fills(fill: str) -> None:
    close = np.full((8, 2), 10.0)
    close[5:, 1] = np.nan
    made = panel(close)
    volume = np.where(made.tradable, np.arange(16.0).reshape(8, 2) + 1, np.nan)
    market = build_market(dataclasses.replace(made, volume=volume), (), (0, 7), fill)
    assert market.fill_volume is not None
    got = market.fill_volume.numpy()
    assert got[2].tolist() == (volume[3] if fill == "next" else volume[2]).tolist()
    assert got[-1, 0] == (0.0 if fill == "next" else volume[-1, 0])
    assert np.isinf(got[5:, 1]).all()  # paid out, not sold to anybody
    assert build_market(made, (), (0, 7)).fill_volume is None
