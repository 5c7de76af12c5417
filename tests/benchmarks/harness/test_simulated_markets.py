"""Simulated benchmark markets have the documented statistics."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.harness.simulated_markets import (
    planted,
    prices,
    random_walks,
    shifted,
    shuffled_over_assets,
    without_edge,
)
from benchmarks.learning.noise import noise_panel
from finrl_pod.data.panel import make_panel
from finrl_pod.data.tensor import build_market, leaked_return
from finrl_pod.types import Floats, Panel

BARS, ASSETS = 20_000, 10
CELLS = BARS * ASSETS
SIGMAS = 4.5  # tolerance in standard errors


def correlation(a: Floats, b: Floats) -> float:
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


def close_to(value: float, spread: float = 1.0) -> object:
    """Approximate equality within the sampling error of a mean over CELLS draws."""
    return pytest.approx(value, abs=SIGMAS * spread / np.sqrt(CELLS))


def test_planted_signal_follows_its_autoregression() -> None:
    signal = planted(3, BARS, ASSETS).signal
    # The error of an AR(1) coefficient is sqrt(1 - rho^2) / sqrt(n); variance has fewer independent values.
    assert correlation(signal[1:], signal[:-1]) == close_to(0.95, np.sqrt(1 - 0.95**2))
    assert signal.std() == pytest.approx(1.0, abs=0.03)
    assert abs(np.corrcoef(signal.T)[np.triu_indices(ASSETS, 1)]).max() < 0.25


def test_planted_signal_predicts_the_return_of_a_decision() -> None:
    market = planted(4, BARS, ASSETS)
    assert correlation(market.signal[:-2], market.returns[2:]) == close_to(0.05)
    assert market.returns[2:].std() == pytest.approx(0.015, rel=0.01)
    # The innovation of the signal at t does not predict the return of t+1, whose interval starts before the fill.
    innovation = market.signal[1:] - 0.95 * market.signal[:-1]
    assert correlation(innovation[:-1], market.returns[2:]) == close_to(0.0)
    assert correlation(innovation[:-2], market.returns[3:]) == close_to(0.05 * np.sqrt(1 - 0.95**2))


def test_markets_are_determined_by_their_seed() -> None:
    returns = np.random.default_rng(0).normal(0, 0.01, (50, 3))
    for make in (
        lambda seed: planted(seed, 50, 3).close,
        lambda seed: without_edge(returns, 80, seed),
        lambda seed: shuffled_over_assets(returns, seed),
    ):
        assert np.array_equal(make(1), make(1))
        assert not np.array_equal(make(1), make(2))


def test_without_edge_keeps_rows_and_equalises_means() -> None:
    rng = np.random.default_rng(5)
    history = rng.normal(0, 0.01, (400, ASSETS)) + np.linspace(-0.004, 0.004, ASSETS)
    resampled = without_edge(history, BARS, seed=6)
    assert resampled.shape == (BARS, ASSETS)
    # Each resampled row is a row of history plus a constant per asset.
    shifted_history = history - history.mean(0) + history.mean()
    rows = {row.tobytes() for row in np.round(shifted_history, 12)}
    assert all(row.tobytes() in rows for row in np.round(resampled[:500], 12))
    error = SIGMAS * history.std(0).max() / np.sqrt(BARS)
    assert resampled.mean(0) == pytest.approx(np.full(ASSETS, history.mean()), abs=error)
    # Days are drawn independently, without autocorrelation.
    assert abs(correlation(resampled[1:], resampled[:-1])) < SIGMAS / np.sqrt(CELLS)


def test_noise_panel_keeps_the_calendar_and_resamples_training_years_only() -> None:
    rng = np.random.default_rng(7)
    returns = rng.normal(0, 0.01, (300, 4))
    low_volatility = returns.copy()
    returns[150:] *= 20  # high volatility after the training split: resampling those years would be detected
    times = np.datetime64("2020-01-01", "ns") + np.arange(300) * np.timedelta64(1, "D")
    source = make_panel(times, list("ABCD"), {"close": prices(returns.clip(-0.5, 0.5))})
    noise = noise_panel(source, 149, seed=1)
    assert np.array_equal(noise.times, source.times)
    assert noise.symbols == source.symbols
    resampled = noise.close[1:] / noise.close[:-1] - 1
    assert abs(resampled).max() < 1.5 * abs(low_volatility[:150]).max()


def test_prices_compound_returns() -> None:
    returns = np.array([[0.0, 0.1], [0.5, -0.1]])
    assert prices(returns) == pytest.approx(np.array([[100.0, 110.0], [150.0, 99.0]]))


def test_random_walks_are_geometric() -> None:
    close, table = random_walks(50, 3, 2)
    rng = np.random.default_rng(0)
    expected = 100 * rng.uniform(0.5, 2, 3) * np.exp(np.cumsum(rng.normal(3e-4, 0.015, (50, 3)), 0))
    assert close == pytest.approx(expected)
    assert table.shape == (50, 3, 3)
    assert table[..., 0] == pytest.approx(close / 100, rel=1e-6)


@pytest.mark.slow
def test_shuffling_permutes_the_ranks_of_each_bar() -> None:
    values = np.random.default_rng(8).normal(size=(BARS, ASSETS))
    values[3] = np.nan
    permuted = shuffled_over_assets(values, seed=0)
    assert np.isnan(permuted[3]).all()
    rest = np.delete(np.arange(BARS), 3)
    assert np.sort(permuted[rest], 1) == pytest.approx(np.tile(np.linspace(-1, 1, ASSETS), (len(rest), 1)))
    assert abs(correlation(permuted[rest], values[rest])) < SIGMAS / np.sqrt(CELLS)


def walk(seed: int) -> Panel:
    times = np.datetime64("2020-01-01", "ns") + np.arange(60) * np.timedelta64(1, "D")
    returns = np.random.default_rng(seed).normal(0, 0.01, (60, 3))
    return make_panel(times, list("ABC"), {"close": prices(returns)})


def test_leak_shifted_by_two_bars_is_uninformative() -> None:
    panel = walk(9)
    late = shifted(leaked_return(build_market(panel, ("return_1",), (0, 40))), 2)
    past = np.diff(np.log(panel.close), axis=0)
    assert late[3:-1] == pytest.approx(past[2:-1], nan_ok=True)
    assert shifted(leaked_return(build_market(panel, ("return_1",), (0, 40))), 1)[3:-2] == pytest.approx(past[3:-1])
