"""The band of active returns: false alarm rate, power and edge cases."""

from __future__ import annotations

import math

import numpy as np
import pytest

from finrl_pod.evaluate.active_management import HORIZON, ActiveBand, active_band, active_growth
from finrl_pod.types import Floats


def equity(returns: Floats) -> Floats:
    return np.exp(np.concatenate([[0.0], np.cumsum(returns)]))


def histories(rng: np.random.Generator, mean: float, number: int, bars: int) -> Floats:
    return rng.normal(mean, 0.004, (number, bars))


@pytest.mark.slow
def test_false_alarm_rate_equals_the_level_and_a_lost_edge_is_detected() -> None:
    """The false alarm rate is that of the whole year, not of one bar; a lost edge is detected far more often."""
    rng = np.random.default_rng(0)
    base = equity(rng.normal(0.0003, 0.01, 1000))
    alarm_rates = {mean: [] for mean in (0.0002, -0.001)}
    for _ in range(20):
        active = rng.normal(0.0002, 0.004, 1000)
        active += 0.0002 - active.mean()  # the mean in the backtest is the true mean
        band = active_band(base * equity(active), base, seed=1, draws=4000)
        assert band is not None
        for mean, rates in alarm_rates.items():
            sums = histories(rng, mean, 100, HORIZON).cumsum(1)
            rates.append((sums < band.lower).any(1).mean())
    assert np.mean(alarm_rates[0.0002]) == pytest.approx(0.05, abs=0.02)
    assert np.mean(alarm_rates[-0.001]) > 0.5


def test_edge_of_constant_block_sums_is_the_smallest_sum() -> None:
    """With level 0 the band's edge is the lowest drawn sum: it is at most that of the first bar."""
    rng = np.random.default_rng(2)
    active = rng.choice([-0.01, 0.01], 300)
    band = active_band(equity(active), np.ones(301), draws=200, horizon=3, level=0.0)
    assert band is not None
    assert band.lower == pytest.approx((-0.01, -0.02, -0.03))


def test_no_band_without_active_returns() -> None:
    values = equity(np.random.default_rng(0).normal(0, 0.01, 300))
    assert active_band(values, values) is None
    assert active_band(values[:5], np.ones(5)) is None
    assert active_band(values, np.zeros(301)) is None


def test_band_is_unchanged_by_json_and_ends_at_its_last_bar() -> None:
    band = ActiveBand(0.05, (-0.01, -0.0125, -0.02))
    assert [band.edge(bars) for bars in (1, 3, 400)] == [-0.01, -0.02, -0.02]


def test_active_return_is_measured_over_a_year_at_most() -> None:
    assert active_growth([100, 110], [1, 1.05]) == (1, pytest.approx(math.log(1.1 / 1.05)))
    portfolio = [1.0] * 100 + [2.0] * (HORIZON + 1)
    assert active_growth(portfolio, [1.0] * len(portfolio)) == (HORIZON, 0.0)
