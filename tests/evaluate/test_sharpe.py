"""PSR, DSR and MinTRL against published values, against skfolio, and against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from skfolio.measures import deflated_sharpe_ratio as peer_deflated
from skfolio.measures import probabilistic_sharpe_ratio as peer_probabilistic

from finrl_pod.errors import InputError
from finrl_pod.evaluate.sharpe import (
    Moments,
    deflated_sharpe,
    expected_maximum,
    minimum_track_record,
    moments,
    probabilistic_sharpe,
    sharpe_deviation,
)

HEDGE = Moments(2.5 / math.sqrt(250), -3.0, 10.0, 1250)  # the example of Bailey and Lopez de Prado (2014)
HEDGE_VARIANCE = 0.5 / 250


def test_the_published_probabilities() -> None:
    assert probabilistic_sharpe(Moments(0.458, 0.0, 3.0, 24)) == pytest.approx(0.982, abs=5e-4)
    assert probabilistic_sharpe(Moments(0.458, -2.448, 10.164, 24)) == pytest.approx(0.913, abs=5e-4)


def test_the_published_deviations() -> None:
    assert sharpe_deviation(Moments(0.7079, -0.225, 2.957, 134)) == pytest.approx(0.1028, abs=5e-5)
    assert sharpe_deviation(Moments(0.8183, -1.4455, 7.0497, 134)) == pytest.approx(0.1550, abs=5e-5)


def test_the_published_deflation() -> None:
    assert math.sqrt(HEDGE_VARIANCE) * expected_maximum(100) == pytest.approx(0.1132, abs=5e-5)
    assert deflated_sharpe(HEDGE, HEDGE_VARIANCE, 100) == pytest.approx(0.9004, abs=5e-5)
    assert deflated_sharpe(HEDGE, HEDGE_VARIANCE, 46) == pytest.approx(0.9505, abs=5e-5)


@pytest.mark.parametrize(
    ("periods", "skewness", "kurtosis", "years"),
    [(250, 0.0, 3.0, 2.73), (52, 0.0, 3.0, 2.83), (12, 0.0, 3.0, 3.24), (12, -0.72, 5.78, 4.99)],
)
def test_the_published_track_records(periods: int, skewness: float, kurtosis: float, years: float) -> None:
    of = Moments(2 / math.sqrt(periods), skewness, kurtosis)
    assert minimum_track_record(of, 1 / math.sqrt(periods)) / periods == pytest.approx(years, abs=5e-3)


@pytest.mark.parametrize(("trials", "value"), [(10, 1.5746), (100, 2.5306), (1000, 3.2551)])
def test_the_published_maxima(trials: int, value: float) -> None:
    assert expected_maximum(trials) == pytest.approx(value, abs=5e-5)


def test_the_expected_maximum_is_that_of_draws() -> None:
    draws = np.random.default_rng(0).normal(size=(20_000, 50)).max(1)
    assert expected_maximum(50) == pytest.approx(draws.mean(), abs=0.04)  # the formula is an approximation
    assert expected_maximum(1) == 0.0


def skewed(seed: int, bars: int = 700) -> np.ndarray:
    return np.random.default_rng(seed).gamma(2.0, 0.01, bars) * -1 + 0.0205


@pytest.mark.parametrize("seed", range(4))
def test_moments_are_those_of_scipy(seed: int) -> None:
    returns = skewed(seed)
    own = moments(returns)
    assert own.sharpe == pytest.approx(returns.mean() / returns.std(ddof=1))
    assert own.skewness == pytest.approx(stats.skew(returns))
    assert own.kurtosis == pytest.approx(stats.kurtosis(returns, fisher=False))
    assert own.observations == 700


@pytest.mark.parametrize("seed", range(3))
def test_skfolio_agrees(seed: int) -> None:
    returns = skewed(seed)
    own = moments(returns)
    assert probabilistic_sharpe(own, 0.01) == pytest.approx(peer_probabilistic(returns, 0.01), abs=1e-4)
    trials = np.random.default_rng(seed).normal(0, 0.02, 40)
    expected = peer_deflated(returns, trials)
    assert deflated_sharpe(own, float(trials.var(ddof=1)), 40) == pytest.approx(expected, abs=1e-4)


def test_the_probability_is_right_as_often_as_it_says() -> None:
    """Series without any skill: PSR(0) is spread evenly over 0 to 1."""
    rng = np.random.default_rng(5)
    values = [probabilistic_sharpe(moments(rng.normal(0, 0.01, 250))) for _ in range(800)]
    assert stats.kstest(values, "uniform").pvalue > 0.01


def test_a_track_record_of_its_length_reaches_the_confidence() -> None:
    of = Moments(0.08, -0.5, 6.0, 20)
    bars = minimum_track_record(of, 0.02, 0.9)
    assert probabilistic_sharpe(of._replace(observations=math.ceil(bars)), 0.02) == pytest.approx(0.9, abs=1e-3)
    assert minimum_track_record(of, 0.08) == math.inf


@pytest.mark.parametrize(
    ("returns", "words"),
    [
        (np.zeros(5), "needs 20 returns at least, got 5"),
        (np.full(50, 0.01), "needs returns that differ, all 50 are 0.01"),
        (np.r_[np.arange(30.0), np.nan], "that of bar 30 is nan"),
        (np.zeros((30, 2)), "an array of shape (30, 2)"),
    ],
)
def test_returns_that_have_no_ratio_are_refused(returns: np.ndarray, words: str) -> None:
    with pytest.raises(InputError) as caught:
        moments(returns)
    assert words in str(caught.value)


def test_what_no_returns_have_is_refused() -> None:
    with pytest.raises(InputError, match="is it the excess kurtosis"):
        probabilistic_sharpe(Moments(2.0, 3.0, 0.0, 100))
    with pytest.raises(InputError, match="2 observations at least, got 1"):
        sharpe_deviation(Moments(0.1, observations=1))
    with pytest.raises(InputError, match="number of trials is 1 at least, got 0"):
        expected_maximum(0)
    with pytest.raises(InputError, match="variance of the trials"):
        deflated_sharpe(HEDGE, -1.0, 3)
    with pytest.raises(InputError, match="confidence lies between 0 and 1, got 1"):
        minimum_track_record(HEDGE, confidence=1.0)
