"""The test for an edge: its parts against scipy, monotonicity, and its size and power on simulated returns."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from finrl_pod.evaluate.overfitting import null_z_scores, selected_z_scores, selection_p_value
from finrl_pod.evaluate.significance import REGRESSION, alpha_series, mean_z_score
from finrl_pod.promotion.edge import (
    ActivePeriod,
    SelectedPeriod,
    edge_test,
    selected_z_score,
    validation_weight,
)

BARS = 600
BASE = np.random.default_rng(99).normal(0.05, 1.0, (2, BARS))  # returns of the base on validation and test


def simulated_returns(
    seed: int, trials: int, correlation: float, ratio: float = 0.0, tilt: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Active returns [2, T, N] of trials in validation and test.

    ratio: z-score expected of one trial in a period. tilt: beta of the trials less 1.
    """
    rng = np.random.default_rng(seed)
    shared, idiosyncratic = rng.normal(size=(2, BARS, 1)), rng.normal(size=(2, BARS, trials))
    returns = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * idiosyncratic + ratio / np.sqrt(BARS)
    returns += tilt * BASE[:, :, None]
    return returns[0], returns[1]


def select(validation: np.ndarray, test: np.ndarray, members: int) -> tuple[ActivePeriod, SelectedPeriod]:
    """Ensemble of the trials with the highest mean over deviation on validation."""
    chosen = np.argsort(-validation.mean(0) / validation.std(0))[:members]
    selected = SelectedPeriod(validation[:, chosen].mean(1), BASE[0], validation, members)
    return ActivePeriod(test[:, chosen].mean(1), BASE[1]), selected


def test_statistics_are_weighted_stouffer_combinations() -> None:
    test, period = select(*simulated_returns(1, 8, 0.3, tilt=0.2), 3)
    result = edge_test(test, period, seed=5)
    null = selected_z_scores(period.trials, 3, seed=5)
    p_values = [stats.norm.sf(mean_z_score(test.active)), selection_p_value(mean_z_score(period.active), null)]
    reference = stats.combine_pvalues(p_values, "stouffer", weights=[np.sqrt(BARS), np.sqrt(BARS / 2)])
    assert result.active.z_score == pytest.approx(reference.statistic)
    assert result.active.p_value == pytest.approx(reference.pvalue)
    assert result.active.expected_from_selection == pytest.approx(null.mean())
    # For alpha, the champion and every trial are hedged before the selection is repeated.
    own, trials = (alpha_series(values, period.base).values for values in (period.active, period.trials))
    null = selected_z_scores(trials, 3, seed=5)
    z_test = mean_z_score(alpha_series(test.active, test.base).values, REGRESSION)
    p_values = [stats.norm.sf(z_test), selection_p_value(mean_z_score(own, REGRESSION), null)]
    reference = stats.combine_pvalues(p_values, "stouffer", weights=[np.sqrt(BARS), np.sqrt(BARS / 2)])
    assert result.alpha.p_value == pytest.approx(reference.pvalue)
    assert result.p_value == max(result.active.p_value, result.alpha.p_value)
    assert result.beta == pytest.approx(1 + stats.linregress(test.base, test.active).slope)


def test_edge_test_without_validation_tests_the_period_alone() -> None:
    test, _ = select(*simulated_returns(2, 1, 0.0, 2.0), 1)
    result = edge_test(test, None)
    assert result.active.p_value == pytest.approx(stats.norm.sf(mean_z_score(test.active)))
    regression = stats.linregress(test.base, test.active)
    plain = stats.t.sf(regression.intercept / regression.intercept_stderr, BARS - 2)
    assert result.alpha.p_value == pytest.approx(plain, rel=0.25)
    assert (result.validation_weight, result.active.validation) == (0.0, None)


def test_market_risk_is_no_edge() -> None:
    """A higher return that beta explains shows in the active return only; a low beta in alpha only."""
    noise = np.random.default_rng(4).normal(0, 0.1, BARS)
    noise -= noise.mean()
    rising = BASE[1] - BASE[1].mean() + 0.15
    high = edge_test(ActivePeriod(0.2 * rising + noise, rising), None)
    assert high.active.p_value < 0.01
    assert high.alpha.p_value > 0.2
    low = edge_test(ActivePeriod(-0.2 * (rising - rising.mean()) + noise, rising), None)
    assert low.alpha.p_value < 0.01
    assert low.active.p_value > 0.2
    assert (high.beta, low.beta) == (pytest.approx(1.2, abs=0.02), pytest.approx(0.8, abs=0.02))


def test_an_account_that_equals_its_base_has_no_edge() -> None:
    _, period = select(*simulated_returns(2, 4, 0.0, 9.0), 1)
    result = edge_test(ActivePeriod(np.zeros(BARS), BASE[1]), period)
    assert result.p_value == pytest.approx(1.0)
    assert result.beta == 1.0
    levered = edge_test(ActivePeriod(0.5 * BASE[1], BASE[1]), period)  # beta 1.5 and nothing else
    assert levered.alpha.p_value == pytest.approx(1.0, abs=1e-4)
    assert levered.beta == pytest.approx(1.5)


def test_validation_weight_depends_on_the_lengths_of_the_periods() -> None:
    assert validation_weight(1000, 0) == 0.0
    assert validation_weight(1000, 1000) ** 2 == pytest.approx(1 / 3)
    weights = [validation_weight(1000, bars) for bars in (10, 100, 1000, 10_000)]
    assert weights == sorted(weights)


def test_p_value_falls_with_the_edge_and_rises_with_selection() -> None:
    validation, test = simulated_returns(3, 12, 0.2)
    lifted = [edge_test(*select(validation + d, test + d, 4)).p_value for d in (0.0, 0.02, 0.05, 0.1)]
    assert lifted == sorted(lifted, reverse=True)
    active, period = select(validation + 0.05, test + 0.05, 4)
    repeated = [edge_test(active, dataclasses.replace(period, selections=n)).p_value for n in (1, 3, 30)]
    assert repeated == sorted(repeated)
    alone = dataclasses.replace(period, trials=period.active[:, None], members=1)
    assert edge_test(active, alone).p_value < repeated[0]


def test_extreme_validation_stays_finite() -> None:
    null = null_z_scores(np.eye(2), 1, draws=1000)
    assert selected_z_score(50.0, null) == pytest.approx(-stats.norm.ppf(1 / 1001))
    assert selected_z_score(-50.0, null) == pytest.approx(stats.norm.ppf(1 / 1001))


@pytest.mark.slow
@pytest.mark.parametrize(("trials", "members", "correlation"), [(16, 1, 0.0), (40, 4, 0.9)])
def test_size_and_power_on_simulated_returns(trials: int, members: int, correlation: float) -> None:
    """About 2.5% false promotions; more true ones than a test of the test period alone at 5%."""
    rates, expected = [], 0.0
    for ratio in (0.0, 1.5):
        ensemble = ratio / np.sqrt(correlation + (1 - correlation) / members)
        expected = float(stats.norm.cdf(ensemble - 1.645))
        p_values = [
            edge_test(*select(*simulated_returns(s, trials, correlation, ratio), members), draws=1000).p_value
            for s in range(400)
        ]
        rates.append(float(np.mean(np.array(p_values) <= 0.025)))
    assert rates[0] <= 0.045  # 18 of 400: above it with probability 1% at 2.5%
    assert rates[1] >= expected - 0.08  # both tests have to pass
