"""Sensitivity to costs and delays: closed forms, and the findings about it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.evaluate.audit.sensitivity import (
    Sensitivity,
    interpolate_break_even,
    log_growth,
    sensitivity,
    sensitivity_findings,
)
from finrl_pod.evaluate.metrics import bars_per_year
from finrl_pod.evaluate.variations import backtest_recorded
from finrl_pod.market.costs import Frictions, PerShare
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.types import Floats, Positions, Window
from tests.evaluate.conftest import build

BARS = 41
RULES = ExecutionRules(cost_rate=0.001)


class AlternatingStrategy:
    """Hold one of two assets, alternating at every bar."""

    name, lookback = "swapping", 1
    feature_names: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.calls = 0

    def target_weights(self, window: Window, positions: Positions) -> Floats:
        self.calls += 1
        return np.eye(2)[self.calls % 2]


class HalfAndHalf:
    """Half and half, bought once."""

    name, lookback = "holding", 1
    feature_names: tuple[str, ...] = ()

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        return None if positions.weights.any() else np.array([0.5, 0.5])


def test_growth_falls_with_costs_as_turnover_predicts() -> None:
    panel, market = build(np.ones((BARS, 2)))
    period = MarketPeriod(market, 0, BARS - 1, RULES, 1e6)
    _, alternating = backtest_recorded(AlternatingStrategy(), panel, period)
    _, held = backtest_recorded(HalfAndHalf(), panel, period)
    result = sensitivity(alternating, held, period, costs=(0.0, 10.0, 20.0), delays=(0, 5))
    # At constant prices every bar sells all (times 1 - c) and buys again (divided by 1 + c); the first only buys.
    for cost, growth in zip(result.costs, result.growth, strict=True):
        c = cost / 1e4
        wealth = ((1 - c) / (1 + c)) ** (BARS - 2) / (1 + c)
        assert growth == pytest.approx(np.log(wealth) / (BARS - 1) * bars_per_year(market.times), abs=1e-9)
    assert result.reference[0] == 0
    assert result.break_even == 0  # it never grew faster
    assert result.delayed[1] > result.delayed[0]  # five swaps fewer


def test_replay_without_changes_equals_the_backtest() -> None:
    close = np.exp(np.cumsum(np.random.default_rng(1).normal(0, 0.01, (BARS, 2)), 0))
    panel, market = build(close)
    period = MarketPeriod(market, 0, BARS - 1, RULES, 1e6)
    backtest, alternating = backtest_recorded(AlternatingStrategy(), panel, period)
    result = sensitivity(alternating, alternating, period, costs=(10.0,), delays=(0,))
    expected = pytest.approx((log_growth(backtest.equity, bars_per_year(market.times)),), rel=1e-12)
    assert result.growth == expected
    assert result.delayed == expected


def test_break_even_cost_is_interpolated() -> None:
    costs = (0.0, 10.0, 20.0, 40.0)
    assert interpolate_break_even(costs, (0.3, 0.2, 0.1, -0.1), (0.15,) * 4) == pytest.approx(15.0)
    assert interpolate_break_even(costs, (0.3, 0.2, 0.1, -0.1), (-1.0,) * 4) == float("inf")
    assert interpolate_break_even(costs, (0.1, 0.0, 0.0, 0.0), (0.2,) * 4) == 0.0
    assert log_growth(np.array([1.0, -1.0])) == float("-inf")


def subject(name: str) -> Pipeline:
    panel, market = build(np.ones((5, 2)))
    return Pipeline(name, panel, lambda _: market, RULES, 1.0, 2)


def sensitivity_with(excess: float, delayed: float = 0.1) -> Sensitivity:
    growth = (0.2 + excess, 0.15 + excess, 0.1 + excess, 0.0 + excess)
    costs = (0.0, 10.0, 20.0, 40.0)
    reference = (0.15,) * 4
    return Sensitivity(
        costs, growth, reference, (0, 1), (0.2, delayed), interpolate_break_even(costs, growth, reference)
    )


def test_findings() -> None:
    costs, delay = sensitivity_findings(subject("mine"), sensitivity_with(0.1), "equal_weight", 10.0, (1, 4))
    assert (costs.status, delay.status) == ("pass", "pass")
    first, last = (str(day)[:10] for day in subject("mine").panel.times[[1, 4]])
    added = math.exp(0.25) - math.exp(0.15)  # growth at 10 basis points
    assert costs.message == (
        f"The CAGR of mine is {added:.2%} above the CAGR of equal weight, {first} to {last}; it breaks even at 30.0 "
        "basis points."
    )
    lost = math.exp(0.2) - math.exp(0.1)
    assert delay.message.startswith(f"One bar of delay reduces the CAGR of {math.expm1(0.2):.2%} by {lost:.2%}")
    assert (
        sensitivity_findings(subject("mine"), sensitivity_with(0.01), "equal_weight", 10.0, (1, 4))[0].status == "warn"
    )
    thin = sensitivity_findings(subject("mine"), sensitivity_with(-0.1, -0.05), "equal_weight", 10.0, (1, 4))
    assert [f.status for f in thin] == ["warn", "warn"]
    assert "does not grow faster" in thin[0].message
    rules = ExecutionRules(frictions=Frictions((PerShare(0.01, 1.0),)))
    paying = dataclasses.replace(subject("mine"), rules=rules)
    assert "PerShare" in sensitivity_findings(paying, sensitivity_with(0.1), "equal_weight", 0.0, (1, 4))[0].message
    itself = sensitivity_findings(subject("equal_weight"), sensitivity_with(0.1), "equal_weight", 10.0, (1, 4))
    assert "the reference" in itself[0].message
    assert all(f.message.endswith(f", {first} to {last}.") for f in (delay, thin[0], *itself))


def test_break_even_beyond_the_default_costs_is_found_if_requested() -> None:
    """A break-even cost between the highest default cost and the requested one is finite."""
    assert interpolate_break_even((0.0, 160.0), (0.2, 0.1), (0.0, 0.0)) == float("inf")
    assert interpolate_break_even((0.0, 160.0, 225.0), (0.2, 0.1, -0.1), (0.0, 0.0, 0.0)) == pytest.approx(192.5)
