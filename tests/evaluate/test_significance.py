"""Sharpe tests against published values and skfolio, p-values against simulation and t-tests, SPA against theory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from skfolio.measures import deflated_sharpe_ratio as peer_deflated
from skfolio.measures import probabilistic_sharpe_ratio as peer_probabilistic

from finrl_pod.errors import InputError
from finrl_pod.evaluate.significance import (
    Moments,
    deflated_sharpe,
    expected_maximum,
    minimum_track_record,
    moments,
    probabilistic_sharpe,
    sharpe_standard_error,
)

DRAWS = 199
HEDGE = Moments(2.5 / math.sqrt(250), -3.0, 10.0, 1250)  # the example of Bailey and Lopez de Prado (2014)
HEDGE_VARIANCE = 0.5 / 250


def test_psr_equals_published_values() -> None:
    assert probabilistic_sharpe(Moments(0.458, 0.0, 3.0, 24)) == pytest.approx(0.982, abs=5e-4)
    assert probabilistic_sharpe(Moments(0.458, -2.448, 10.164, 24)) == pytest.approx(0.913, abs=5e-4)


def test_standard_error_equals_published_values() -> None:
    assert sharpe_standard_error(Moments(0.7079, -0.225, 2.957, 134)) == pytest.approx(0.1028, abs=5e-5)
    assert sharpe_standard_error(Moments(0.8183, -1.4455, 7.0497, 134)) == pytest.approx(0.1550, abs=5e-5)


def test_dsr_equals_published_values() -> None:
    assert math.sqrt(HEDGE_VARIANCE) * expected_maximum(100) == pytest.approx(0.1132, abs=5e-5)
    assert deflated_sharpe(HEDGE, HEDGE_VARIANCE, 100) == pytest.approx(0.9004, abs=5e-5)
    assert deflated_sharpe(HEDGE, HEDGE_VARIANCE, 46) == pytest.approx(0.9505, abs=5e-5)


@pytest.mark.parametrize(
    ("periods", "skewness", "kurtosis", "years"),
    [(250, 0.0, 3.0, 2.73), (52, 0.0, 3.0, 2.83), (12, 0.0, 3.0, 3.24), (12, -0.72, 5.78, 4.99)],
)
def test_published_minimum_track_records(periods: int, skewness: float, kurtosis: float, years: float) -> None:
    observed = Moments(2 / math.sqrt(periods), skewness, kurtosis)
    assert minimum_track_record(observed, 1 / math.sqrt(periods)) / periods == pytest.approx(years, abs=5e-3)


@pytest.mark.parametrize(("trials", "value"), [(10, 1.5746), (100, 2.5306), (1000, 3.2551)])
def test_expected_maximum_equals_published_values(trials: int, value: float) -> None:
    assert expected_maximum(trials) == pytest.approx(value, abs=5e-5)


def test_expected_maximum_agrees_with_simulation() -> None:
    draws = np.random.default_rng(0).normal(size=(20_000, 50)).max(1)
    assert expected_maximum(50) == pytest.approx(draws.mean(), abs=0.04)  # the formula is an approximation
    assert expected_maximum(1) == 0.0


def skewed(seed: int, bars: int = 700) -> np.ndarray:
    return np.random.default_rng(seed).gamma(2.0, 0.01, bars) * -1 + 0.0205


@pytest.mark.parametrize("seed", range(4))
def test_moments_equal_those_of_scipy(seed: int) -> None:
    returns = skewed(seed)
    sample = moments(returns)
    assert sample.sharpe == pytest.approx(returns.mean() / returns.std(ddof=1))
    assert sample.skewness == pytest.approx(stats.skew(returns))
    assert sample.kurtosis == pytest.approx(stats.kurtosis(returns, fisher=False))
    assert sample.observations == 700


@pytest.mark.parametrize("seed", range(3))
def test_psr_and_dsr_agree_with_skfolio(seed: int) -> None:
    returns = skewed(seed)
    sample = moments(returns)
    assert probabilistic_sharpe(sample, 0.01) == pytest.approx(peer_probabilistic(returns, 0.01), abs=1e-4)
    trials = np.random.default_rng(seed).normal(0, 0.02, 40)
    expected = peer_deflated(returns, trials)
    assert deflated_sharpe(sample, float(trials.var(ddof=1)), 40) == pytest.approx(expected, abs=1e-4)


def test_psr_is_uniform_under_the_null_hypothesis() -> None:
    rng = np.random.default_rng(5)
    values = [probabilistic_sharpe(moments(rng.normal(0, 0.01, 250))) for _ in range(800)]
    assert stats.kstest(values, "uniform").pvalue > 0.01


def test_minimum_track_record_reaches_the_confidence() -> None:
    observed = Moments(0.08, -0.5, 6.0, 20)
    bars = minimum_track_record(observed, 0.02, 0.9)
    assert probabilistic_sharpe(observed._replace(observations=math.ceil(bars)), 0.02) == pytest.approx(0.9, abs=1e-3)
    assert minimum_track_record(observed, 0.08) == math.inf


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        (np.zeros(5), "at least 20 returns, got 5"),
        (np.full(50, 0.01), "returns that vary, all 50 are 0.01"),
        (np.r_[np.arange(30.0), np.nan], "bar 30 is nan"),
        (np.zeros((30, 2)), "an array of shape (30, 2)"),
    ],
)
def test_invalid_returns_are_refused(returns: np.ndarray, message: str) -> None:
    with pytest.raises(InputError) as excinfo:
        moments(returns)
    assert message in str(excinfo.value)
