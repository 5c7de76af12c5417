"""Figures of features against scipy and plain loops, on planted signals and on prices with gaps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import spearmanr

from finrl_pod.data.panel import make_panel
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import DataError, InputError
from finrl_pod.evaluate.feature_analysis import analyse_feature, information_coefficients
from finrl_pod.types import Floats, MarketTensor

BARS, ASSETS = 300, 12


def market(gaps: float = 0.0, seed: int = 1) -> MarketTensor:
    rng = np.random.default_rng(seed)
    close = 50 * np.exp(np.cumsum(rng.normal(0, 0.02, (BARS, ASSETS)), 0))
    if gaps:
        close[rng.random(close.shape) < gaps] = np.nan
        close[:100, 0] = np.nan
    times = np.datetime64("2001-01-01", "ns") + np.arange(BARS) * np.timedelta64(1, "D")
    panel = make_panel(times, [f"S{i}" for i in range(ASSETS)], {"close": close}, name="walk", allow_gaps=True)
    return build_market(panel, (), (0, BARS - 1))


def later_returns(prices: MarketTensor, horizon: int) -> Floats:
    """From the fill of the decision of t to that of t + horizon, asset by asset."""
    fill, fillable = prices.fill.numpy(), prices.fillable.numpy()
    found = np.full((BARS, ASSETS), np.nan)
    for t in range(BARS - horizon):
        for n in range(ASSETS):
            if fillable[t, n] and fillable[t + horizon, n]:
                found[t, n] = fill[t + horizon, n] / fill[t, n] - 1
    return found


def test_coefficients_equal_those_of_scipy() -> None:
    rng = np.random.default_rng(2)
    feature, returns = rng.integers(0, 6, (50, 9)).astype(float), rng.normal(size=(50, 9))
    feature[rng.random(feature.shape) < 0.2] = np.nan
    returns[rng.random(returns.shape) < 0.2] = np.nan
    feature[3], returns[4], feature[5, 2:] = 1.0, np.nan, np.nan
    found = information_coefficients(feature, returns)
    for t in range(50):
        both = np.isfinite(feature[t]) & np.isfinite(returns[t])
        if both.sum() < 3 or np.ptp(feature[t, both]) == 0:
            assert np.isnan(found[t])
        else:
            assert found[t] == pytest.approx(spearmanr(feature[t, both], returns[t, both]).statistic, abs=1e-12)
    assert np.isnan(found[[3, 4, 5]]).all()


@pytest.mark.slow
@pytest.mark.parametrize("gaps", [0.0, 0.1])
def test_figures_equal_plain_loops(gaps: float) -> None:
    prices = market(gaps)
    rng = np.random.default_rng(3)
    feature = rng.normal(size=(BARS, ASSETS))
    found = analyse_feature("noise", feature, prices, 20, 279, horizons=(1, 7), quantiles=4)
    tradable = prices.tradable.numpy()
    for figures in found.horizons:
        returns = later_returns(prices, figures.horizon)
        coefficients, groups = [], [[] for _ in range(4)]
        for t in range(20, 280 - figures.horizon):
            names = [n for n in range(ASSETS) if tradable[t, n]]
            ordered = sorted(names, key=lambda n: feature[t, n])
            known = [n for n in names if np.isfinite(returns[t, n])]
            if len(known) >= 3:
                coefficients.append(spearmanr(feature[t, known], returns[t, known]).statistic)
            mean = np.mean(returns[t, known])
            for q in range(4):
                own = [n for i, n in enumerate(ordered) if i * 4 // len(ordered) == q and n in known]
                if own:
                    groups[q].append((np.mean(returns[t, own]) - mean) / figures.horizon * 1e4)
        assert figures.bars == len(coefficients)
        assert figures.information_coefficient == pytest.approx(np.mean(coefficients), abs=1e-12)
        assert figures.deviation == pytest.approx(np.std(coefficients, ddof=1), abs=1e-12)
        np.testing.assert_allclose(figures.quantiles, [np.mean(group) for group in groups], atol=1e-9)
        assert figures.low < figures.information_coefficient < figures.high
    assert found.coverage == 1
    if not gaps:
        tops = [set(np.argsort(feature[t])[-3:]) for t in range(20, 280)]
        new = [len(b - a) / 3 for a, b in pairwise(tops)]
        assert found.top_turnover == pytest.approx(np.mean(new))


def test_a_feature_that_knows_the_return_is_found_at_its_horizon_only() -> None:
    prices = market()
    known = later_returns(prices, 1)
    found = analyse_feature("leak", known, prices, 0, BARS - 2, horizons=(1, 21))
    assert found.horizons[0].information_coefficient == pytest.approx(1)
    assert found.horizons[0].spread_low > 100
    assert found.horizons[1].information_coefficient < 0.4
    assert abs(found.rank_autocorrelation) < 0.1


@pytest.mark.slow
def test_intervals_of_slow_noise_exclude_zero_as_often_as_their_level_says() -> None:
    excluded = []
    for seed in range(40):
        prices, rng = market(seed=seed), np.random.default_rng(1000 + seed)
        for _ in range(4):
            sums = np.cumsum(rng.normal(size=(BARS + 10, ASSETS)), 0)
            found = analyse_feature("noise", sums[10:] - sums[:-10], prices, 0, BARS - 2, horizons=(1, 5, 21))
            excluded.append([figures.low > 0 or figures.high < 0 for figures in found.horizons])
    assert (np.mean(excluded, 0) < 0.16).all()  # 0.1; blocks shorter than the overlap gave 0.23 at 21 bars
    assert (np.mean(excluded, 0) > 0.04).all()


def test_constant_ranks_have_no_turnover() -> None:
    prices = market()
    found = analyse_feature("size", np.tile(np.arange(ASSETS, dtype=float), (BARS, 1)), prices, 0, BARS - 2, (1,))
    assert found.top_turnover == 0
    assert found.rank_autocorrelation == pytest.approx(1)


def test_what_cannot_be_analysed_is_refused() -> None:
    prices, feature = market(), np.random.default_rng(0).normal(size=(BARS, ASSETS))
    with pytest.raises(InputError, match="horizons must be from 1 to 78 bars"):
        analyse_feature("x", feature, prices, 0, 98, horizons=(79,))
    with pytest.raises(InputError, match="quantiles must be from 2 to the 12 assets"):
        analyse_feature("x", feature, prices, 0, 98, quantiles=13)
    with pytest.raises(DataError, match="the same value for all assets"):
        analyse_feature("x", np.ones((BARS, ASSETS)), prices, 0, 98, horizons=(1,))
    late = np.where(np.arange(BARS)[:, None] > 80, feature, np.nan)
    with pytest.raises(DataError, match="known on 17 bars"):
        analyse_feature("x", late, prices, 0, 98, horizons=(1,))
