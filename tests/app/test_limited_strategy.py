"""The gate tests a champion within the limits that the paper-trading daemon would trade it under."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from finrl_pod_app.evaluation.execution_rules import daemon_limits_sentences, within_daemon_limits

from finrl_pod.evaluate.backtest import backtest
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.paper.execution.mandate_limits import UNBOUNDED
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig, RunConfig
from tests.paper.factories import FunctionStrategy, prices

NO_MANDATE = RunConfig(mandate=MandateConfig(base="none"))


def test_concentrated_weights_are_cut_as_the_daemon_cuts_them() -> None:
    panel = prices()
    chosen = within_daemon_limits(FunctionStrategy(lambda _: np.array([0.9, 0.1, 0.0])), NO_MANDATE)
    from finrl_pod.data.tensor import build_market

    market = build_market(panel, (), (0, len(panel.times) - 1))
    result = backtest(chosen, panel, MarketPeriod(market, 1, 4, ExecutionRules(), 100_000.0))
    assert result.weights[1:].max() == pytest.approx(UNBOUNDED["max_position"], abs=0.02)
    assert chosen.name == "function"


def test_a_decision_to_hold_stays_one() -> None:
    chosen = within_daemon_limits(FunctionStrategy(lambda _: None), NO_MANDATE)
    assert chosen.target_weights(None, None) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes", [{"mandate": MandateConfig()}, {"environment": EnvironmentConfig(short=True)}], ids=["mandate", "short"]
)
def test_bounded_champions_and_those_that_cannot_be_traded_stay_as_they_are(changes: dict[str, Any]) -> None:
    strategy = FunctionStrategy(lambda _: None)
    config = dataclasses.replace(NO_MANDATE, **changes)
    assert within_daemon_limits(strategy, config) is strategy
    assert daemon_limits_sentences(config) == []
    assert "40% of equity" in daemon_limits_sentences(NO_MANDATE)[0]
