"""Sharpe tests against published values and skfolio, p-values against simulation and t-tests, SPA against theory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from arch.bootstrap import SPA, StationaryBootstrap
from scipy import stats
from skfolio.measures import deflated_sharpe_ratio as peer_deflated
from skfolio.measures import probabilistic_sharpe_ratio as peer_probabilistic

from finrl_pod.errors import InputError
from finrl_pod.evaluate.intervals import binomial_interval
from finrl_pod.evaluate.significance import (
    Moments,
    deflated_sharpe,
    excess_p_value,
    expected_maximum,
    long_run_deviation,
    minimum_track_record,
    moments,
    probabilistic_sharpe,
    reality_check,
    sharpe_standard_error,
    superior_predictive_ability,
)
from tests.evaluate.conftest import ar1

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


def test_impossible_moments_are_refused() -> None:
    with pytest.raises(InputError, match="skewness 3 and kurtosis 0"):
        probabilistic_sharpe(Moments(2.0, 3.0, 0.0, 100))
    with pytest.raises(InputError, match="at least 2 observations, got 1"):
        sharpe_standard_error(Moments(0.1, observations=1))
    with pytest.raises(InputError, match="number of trials must be at least 1, got 0"):
        expected_maximum(0)
    with pytest.raises(InputError, match="variance of the trials"):
        deflated_sharpe(HEDGE, -1.0, 3)
    with pytest.raises(InputError, match="confidence must lie between 0 and 1, got 1"):
        minimum_track_record(HEDGE, confidence=1.0)


def test_excess_p_value_agrees_with_a_t_test():
    x = np.random.default_rng(11).normal(0.0004, 0.01, 2000)
    assert excess_p_value(x, draws=4000) == pytest.approx(
        stats.ttest_1samp(x, 0, alternative="greater").pvalue, abs=0.03
    )


def test_excess_p_value_has_its_nominal_size():
    rejected = sum(excess_p_value(ar1(seed, 500, 0.2), seed=seed, draws=99) <= 0.05 for seed in range(300))
    low, high = binomial_interval(rejected, 300, 0.999)
    assert low <= 0.05 <= high


def test_excess_p_value_at_the_extremes():
    draws = 99
    assert excess_p_value(np.zeros(50), draws=draws) == 1.0
    assert excess_p_value(np.full(50, 0.001), draws=draws) == pytest.approx(1 / (draws + 1))
    strong = np.random.default_rng(0).normal(0.01, 0.001, 200)
    assert excess_p_value(strong, draws=draws) == pytest.approx(1 / (draws + 1))
    assert excess_p_value(-strong, draws=draws) == 1.0


def market(seed: int, bars: int = 300) -> np.ndarray:
    return np.random.default_rng(seed).normal(3e-4, 0.01, bars)


def models(seed: int, base: np.ndarray, count: int, edge: float = 0.0) -> np.ndarray:
    noise = np.random.default_rng(1000 + seed).normal(0, 0.004, (len(base), count))
    return base[:, None] + noise + edge


def test_a_single_model_is_a_t_test() -> None:
    """With one model and long blocks of one bar, SPA is a bootstrap t-test."""
    base = market(1, 1500)
    one = models(1, base, 1, 2e-4)
    expected = stats.ttest_1samp((one[:, 0] - base), 0, alternative="greater").pvalue
    assert superior_predictive_ability(base, one, draws=2000) == pytest.approx(expected, abs=0.03)
    assert reality_check(base, one, draws=2000) == pytest.approx(expected, abs=0.03)


def test_spa_has_its_nominal_size() -> None:
    rejected = 0
    for seed in range(120):
        base = market(seed)
        rejected += superior_predictive_ability(base, models(seed, base, 8), seed=seed, draws=DRAWS) <= 0.1
    low, high = binomial_interval(rejected, 120, 0.99)
    assert low <= 0.1 <= high


def test_a_better_model_is_detected() -> None:
    base = market(2, 1000)
    candidates = models(2, base, 10)
    candidates[:, 4] += 8e-4
    assert superior_predictive_ability(base, candidates, draws=DRAWS) <= 0.01
    assert reality_check(base, candidates, draws=DRAWS) <= 0.01


def test_bad_models_cost_spa_less_power_than_the_reality_check() -> None:
    base = market(3, 500)
    candidates = np.c_[
        models(3, base, 1, 4e-4), base[:, None] + np.random.default_rng(9).normal(-5e-3, 0.03, (500, 20))
    ]
    assert superior_predictive_ability(base, candidates, draws=999) < reality_check(base, candidates, draws=999)


def test_noisy_models_cost_spa_no_power() -> None:
    """A signal of 0.12 with noise 1 among five models with noise 10: found by the studentised test alone."""
    rejected, unstudentised = 0, 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        candidates = np.c_[rng.normal(0.12, 1, 1000), rng.normal(0, 10, (1000, 5))]
        base = np.zeros(1000)
        rejected += superior_predictive_ability(base, candidates, seed=seed, draws=DRAWS) <= 0.05
        unstudentised += reality_check(base, candidates, seed=seed, draws=DRAWS) <= 0.05
    assert rejected >= 16
    assert unstudentised <= 4


def test_variances_equal_those_of_arch() -> None:
    """They replace the quadratic ones in a private method: this fails if a later arch has another."""
    rng = np.random.default_rng(5)
    values = rng.normal(size=(400, 3))
    values[1:] += 0.3 * values[:-1]
    theirs = SPA(np.zeros(400), -values, block_size=7, reps=10, studentize=False)
    theirs._compute_variance()
    assert long_run_deviation(-values, 7) ** 2 == pytest.approx(theirs._loss_diff_var, rel=1e-10)


def test_long_run_deviation_is_that_of_the_formula_and_of_the_bootstrap() -> None:
    values = np.c_[ar1(0, 400, 0.6), ar1(1, 400, -0.3)]
    bars, block = len(values), 8
    centred, p = values - values.mean(0), 1 / block
    expected = (centred**2).sum(0) / bars
    for i in range(1, bars):
        weight = (1 - i / bars) * (1 - p) ** i + i / bars * (1 - p) ** (bars - i)
        expected = expected + 2 * weight * (centred[:-i] * centred[i:]).sum(0) / bars
    assert long_run_deviation(values, block) == pytest.approx(np.sqrt(expected), rel=1e-10)
    draws = StationaryBootstrap(block, values, seed=0).apply(lambda x: x.mean(0), reps=4000)
    assert long_run_deviation(values, block) == pytest.approx(draws.std(0) * np.sqrt(bars), rel=0.05)


def test_spa_is_reproducible_by_seed() -> None:
    base = market(4)
    candidates = models(4, base, 3)
    assert superior_predictive_ability(base, candidates, seed=3, draws=99) == superior_predictive_ability(
        base, candidates, seed=3, draws=99
    )


@pytest.mark.parametrize(
    ("base", "candidates", "message"),
    [
        (np.zeros(10), np.zeros((10, 2)), "at least 20 bars, got 10"),
        (np.zeros(30), np.zeros((29, 2)), "the same bars"),
        (np.zeros(30), np.zeros((30, 0)), "the same bars"),
        (np.full(30, np.nan), np.zeros((30, 1)), "returns of the benchmark must be finite, bar 0"),
        (np.arange(30.0), np.c_[np.arange(30.0) ** 2, np.arange(30.0) + 1], "model 1 differs from the benchmark by"),
    ],
)
def test_invalid_models_are_refused(base: np.ndarray, candidates: np.ndarray, message: str) -> None:
    with pytest.raises(InputError) as excinfo:
        superior_predictive_ability(base, candidates)
    assert message in str(excinfo.value)


def test_zero_draws_are_refused() -> None:
    with pytest.raises(InputError, match="at least one draw, got 0"):
        reality_check(market(0), models(0, market(0), 1), draws=0)
