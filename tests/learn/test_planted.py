"""A small planted signal: a trained agent outperforms the best greedy policy by trading less."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from finrl_pod_app.bench.planted import RECIPE, attainable_growth, planted_market, share_of_attainable

from finrl_pod.market.execution import ExecutionRules
from finrl_pod.settings.run import EnvironmentConfig

BARS, ASSETS, INFORMATION = 3000, 6, 0.15


def test_costs_favour_policies_that_trade_less() -> None:
    market, train_last = planted_market(1, BARS, ASSETS, INFORMATION)
    free, costly = (
        attainable_growth(market, train_last + 1, market.steps, ExecutionRules(rate)) for rate in (0.0, 0.001)
    )
    assert free.best > costly.best > costly.greedy
    assert free.kappa > costly.kappa
    assert abs(costly.equal) < costly.best / 3


@pytest.mark.slow
def test_agent_outperforms_greedy_policies_on_a_planted_signal() -> None:
    market, train_last = planted_market(1, BARS, ASSETS, INFORMATION)
    recipe = replace(RECIPE, environment=EnvironmentConfig(envs=128, group=16, cost_bps=30.0), samples=100_000)
    share, run = share_of_attainable(market, train_last, recipe, 0, torch.device("cpu"), "planted")
    assert share > 0.85
    # At 30 bp per side the best greedy policy earns three quarters of what the best policy earns.
    assert run["agent_bp_a_day"] > 1.1 * run["greedy_bp_a_day"] > run["equal_weight_bp_a_day"]
