"""Scheduled strategies: which one decides at which bar, and invalid schedules."""

from __future__ import annotations

import numpy as np
import pytest
from finrl_pod_strategies.scheduled import ScheduledStrategy

from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.types import Floats, Positions, Window
from tests.evaluate.conftest import build


class Hold:
    """Hold one asset."""

    feature_names: tuple[str, ...] = ()

    def __init__(self, asset: int, lookback: int | None = 1) -> None:
        self.asset, self.name = asset, f"hold {asset}"
        if lookback is not None:
            self.lookback = lookback

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        return np.eye(len(window.symbols))[self.asset]


def day(n: int) -> np.datetime64:
    return np.datetime64("2020-01-01", "ns") + n * np.timedelta64(1, "D")


def test_each_strategy_decides_from_its_start() -> None:
    close = np.exp(np.cumsum(np.random.default_rng(0).normal(0, 0.01, (12, 2)), 0))
    panel, market = build(close)
    schedule = ScheduledStrategy([(day(0), Hold(0)), (day(5), Hold(1))])
    result = backtest(schedule, panel, MarketPeriod(market, 0, 11, ExecutionRules(0.0), 100.0))
    held = result.weights.argmax(1)
    assert held[1:6].tolist() == [0] * 5  # decided at bars 0 to 4, filled a bar later
    assert held[6:].tolist() == [1] * 6
    expected = 100 * close[6, 0] / close[1, 0] * close[11, 1] / close[6, 1]
    assert result.equity[-1] == pytest.approx(expected)


def test_account_holds_cash_before_the_first_start() -> None:
    close = np.ones((8, 2)) + np.arange(8)[:, None] / 100
    panel, market = build(close)
    result = backtest(
        ScheduledStrategy([(day(4), Hold(0))]), panel, MarketPeriod(market, 0, 7, ExecutionRules(0.0), 100.0)
    )
    assert not result.weights[:5].any()
    assert result.weights[5:, 0] == pytest.approx(1.0)


def test_lookback_is_the_longest_of_all() -> None:
    assert ScheduledStrategy([(day(0), Hold(0, 3)), (day(5), Hold(1, 7))]).lookback == 7
    assert ScheduledStrategy([(day(0), Hold(0, None)), (day(5), Hold(1, 7))]).lookback is None


def test_invalid_schedules_are_refused() -> None:
    with pytest.raises(InputError, match="at least one strategy"):
        ScheduledStrategy([])
    with pytest.raises(InputError, match="sort them by time"):
        ScheduledStrategy([(day(5), Hold(0)), (day(0), Hold(1))])
    other = Hold(1)
    other.feature_names = ("return_1",)
    with pytest.raises(InputError, match="the same features"):
        ScheduledStrategy([(day(0), Hold(0)), (day(5), other)])
