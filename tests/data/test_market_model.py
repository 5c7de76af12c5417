"""Features of the market model against a least-squares fit of each window, sector-neutral ones against loops."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from finrl_pod.data import features, price_features
from finrl_pod.errors import FeatureError
from finrl_pod.types import Floats, Panel
from tests.data.panels import panel, random_panel

WINDOW, NEAR = 252, 21
PANEL = random_panel(1)


def value(name: str, source: Panel = PANEL) -> Floats:
    return features.compute(source, (name,))[..., 0]


def market_levels(source: Panel) -> Floats:
    """[T] log level of the equal-weight portfolio, from the simple returns between each ticker's own bars."""
    level, last = np.zeros(len(source.times)), {}
    for t in range(len(source.times)):
        returns = []
        for n in np.flatnonzero(source.tradable[t]):
            if n in last:
                returns.append(source.close[t, n] / last[n] - 1)
            last[n] = source.close[t, n]
        level[t] = (level[t - 1] if t else 0.0) + (np.log1p(np.mean(returns)) if returns else 0.0)
    return level


def fits(source: Panel, asset: int) -> dict[int, tuple[float, float, float]]:
    """Beta, volatility of residuals and residual momentum at each bar, by least squares on its window."""
    level, bars = market_levels(source), np.flatnonzero(source.tradable[:, asset])
    price, market = np.log(source.close[bars, asset]), level[bars]
    result = {}
    for i in range(WINDOW, len(bars)):
        y, x = np.diff(price[i - WINDOW : i + 1]), np.diff(market[i - WINDOW : i + 1])
        design = np.column_stack([np.ones(WINDOW), x])
        (_, slope), (squares,), *_ = np.linalg.lstsq(design, y, rcond=None)
        volatility = np.sqrt(squares / (WINDOW - 2))
        formation = y[: WINDOW - NEAR] - slope * x[: WINDOW - NEAR]
        result[int(bars[i])] = slope, volatility, formation.sum() / volatility
    return result


@pytest.mark.parametrize("asset", range(6))
def test_features_equal_least_squares(asset: int) -> None:
    expected = fits(PANEL, asset)
    for i, name in enumerate(("beta_252", "idiosyncratic_252", "residual_momentum")):
        actual = value(name)[:, asset]
        assert set(np.flatnonzero(np.isfinite(actual))) == set(expected)
        np.testing.assert_allclose(actual[list(expected)], [fit[i] for fit in expected.values()], rtol=1e-7)


def test_a_market_of_one_ticker_has_beta_one_and_no_residual() -> None:
    single = panel(PANEL.close[:, :1])
    assert value("beta_252", single)[WINDOW:] == pytest.approx(1.0)
    np.testing.assert_array_equal(value("idiosyncratic_252", single)[WINDOW:], 0.0)
    np.testing.assert_array_equal(value("residual_momentum", single)[WINDOW:], 0.0)


def test_betas_average_to_one_where_all_trade() -> None:
    complete = panel(50 * np.exp(np.random.default_rng(0).normal(0, 0.001, (300, 8)).cumsum(0)))
    assert value("beta_252", complete)[WINDOW:].mean(1) == pytest.approx(
        1.0, abs=1e-4
    )  # not exactly, as betas are of log returns


def test_beta_is_undefined_in_a_constant_market() -> None:
    constant = panel(np.full((300, 2), 10.0))
    assert np.isnan(price_features.beta(constant, WINDOW)).all()


@pytest.mark.parametrize("name", ["momentum_252_21", "return_5", "residual_momentum"])
def test_sector_neutral_features_have_the_mean_of_their_sector_removed(name: str) -> None:
    plain, neutral = value(name), value(f"{name}_sector_neutral")
    assert PANEL.sectors is not None
    for t in (260, 300, 361, 419):
        for n, sector in enumerate(PANEL.sectors):
            peers = [plain[t, i] for i, other in enumerate(PANEL.sectors) if other == sector and ~np.isnan(plain[t, i])]
            if np.isnan(plain[t, n]):
                assert np.isnan(neutral[t, n])
            else:
                assert neutral[t, n] == pytest.approx(plain[t, n] - np.mean(peers), abs=1e-12)
    np.testing.assert_array_equal(neutral[300:, -1], 0.0)  # the only asset of its sector


def test_sector_neutral_features_need_sectors() -> None:
    without = dataclasses.replace(PANEL, sectors=None)
    with pytest.raises(FeatureError, match="'return_5_sector_neutral' needs sectors, which panel 'synthetic' lacks"):
        value("return_5_sector_neutral", without)
    assert "return_5_sector_neutral" in features.available(PANEL)
    assert "return_5_sector_neutral" not in features.available(without)
    assert np.isnan(price_features.sector_neutral(np.full((2, 2), np.nan), ("a", "a"))).all()
