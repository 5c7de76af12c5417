"""The test for an edge: its parts against scipy, monotonicity, and its size and power on simulated returns."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from finrl_pod.evaluate.mean_test import mean_z_score
from finrl_pod.evaluate.selection_null import null_z_scores, selected_z_scores, selection_p_value
from finrl_pod.promotion.edge_test import (
    SelectedPeriod,
    edge_test,
    selected_z_score,
    validation_weight,
)

BARS = 600


def simulated_returns(seed: int, trials: int, correlation: float, ratio: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Active returns [2, T, N] of trials in validation and test; z-score expected of one trial in a period."""
    rng = np.random.default_rng(seed)
    shared, idiosyncratic = rng.normal(size=(2, BARS, 1)), rng.normal(size=(2, BARS, trials))
    returns = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * idiosyncratic + ratio / np.sqrt(BARS)
    return returns[0], returns[1]


def select(validation: np.ndarray, test: np.ndarray, members: int) -> tuple[np.ndarray, SelectedPeriod]:
    """Ensemble of the trials with the highest mean over deviation on validation."""
    chosen = np.argsort(-validation.mean(0) / validation.std(0))[:members]
    return test[:, chosen].mean(1), SelectedPeriod(validation[:, chosen].mean(1), validation, members)


def test_statistic_is_the_weighted_stouffer_combination() -> None:
    test, period = select(*simulated_returns(1, 8, 0.3), 3)
    result = edge_test(test, period, seed=5)
    null = selected_z_scores(period.trials, 3, seed=5)
    p_values = [stats.norm.sf(mean_z_score(test)), selection_p_value(mean_z_score(period.active), null)]
    reference = stats.combine_pvalues(p_values, "stouffer", weights=[np.sqrt(BARS), np.sqrt(BARS / 2)])
    assert result.z_score == pytest.approx(reference.statistic)
    assert result.p_value == pytest.approx(reference.pvalue)
    assert result.expected_from_selection == pytest.approx(null.mean())


def test_edge_test_without_validation_is_a_test_of_the_mean() -> None:
    test, _ = select(*simulated_returns(2, 1, 0.0, 2.0), 1)
    result = edge_test(test, None)
    assert result.p_value == pytest.approx(stats.norm.sf(mean_z_score(test)))
    assert result.validation_weight == 0.0


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
    repeated = [
        edge_test(active, SelectedPeriod(period.active, period.trials, 4, selections=n)).p_value for n in (1, 3, 30)
    ]
    assert repeated == sorted(repeated)
    unselected = edge_test(active, SelectedPeriod(period.active, period.active[:, None])).p_value
    assert unselected < repeated[0]


def test_extreme_validation_stays_finite() -> None:
    null = null_z_scores(np.eye(2), 1, draws=1000)
    assert selected_z_score(50.0, null) == pytest.approx(-stats.norm.ppf(1 / 1001))
    assert selected_z_score(-50.0, null) == pytest.approx(stats.norm.ppf(1 / 1001))


@pytest.mark.slow
@pytest.mark.parametrize(("trials", "members", "correlation"), [(16, 1, 0.0), (16, 8, 0.5), (40, 4, 0.9)])
def test_size_and_power_on_simulated_returns(trials: int, members: int, correlation: float) -> None:
    """About 2.5% false promotions; more true ones than a test of the test period alone at 5%."""
    rates, expected = [], 0.0
    for ratio in (0.0, 1.5):
        ensemble = ratio / np.sqrt(correlation + (1 - correlation) / members)
        expected = float(stats.norm.cdf(ensemble - 1.645))
        p_values = [
            edge_test(*select(*simulated_returns(s, trials, correlation, ratio), members)).p_value for s in range(400)
        ]
        rates.append(float(np.mean(np.array(p_values) <= 0.025)))
    assert rates[0] <= 0.045  # 18 of 400: above it with probability 1% at 2.5%
    assert rates[1] >= expected - 0.05
