"""Gradients through the market, with fractional shares and proportional buys, as the analytic algorithm uses them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.settings.run import EnvironmentConfig
from tests.markets import random_market

CONFIG = EnvironmentConfig(window=30, envs=2, group=2, cost_bps=30.0, hmax=900.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["portfolio", "stock_trading"])
@pytest.mark.parametrize("reward", ["log_return", "change", "differential_sharpe"])
def test_gradient_through_three_steps_matches_finite_differences(kind: str, reward: str) -> None:
    config = dataclasses.replace(CONFIG, kind=kind, reward=reward)
    env = make_env(random_market(0, assets=2, volatility=0.05), config, dtype=torch.float64)
    env.reset(0, stagger=False)
    start = env.state

    def total(actions: torch.Tensor) -> torch.Tensor:
        state, rewards = start, []
        for action in actions:
            assert state is not None
            state, outcome = env.transition(state, action)
            rewards.append(outcome.reward)
        return torch.stack(rewards)

    noise = torch.Generator().manual_seed(1)
    actions = 0.5 * torch.randn(3, 1, 2, env.action_size, generator=noise, dtype=torch.float64)
    assert torch.autograd.gradcheck(total, actions.requires_grad_(), eps=1e-6, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("kind", ["portfolio", "stock_trading"])
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("size", [0.0, 1.0, 100.0])
def test_gradient_is_finite_for_extreme_actions_and_markets_with_gaps(kind: str, short: bool, size: float) -> None:
    config = dataclasses.replace(CONFIG, kind=kind, short=short)
    env = make_env(random_market(2, gaps=0.2, ends={0: 9}, starts={1: 4}), config)
    env.reset(0, stagger=False)
    noise = torch.Generator().manual_seed(2)
    actions = (size * torch.randn(15, 1, 2, env.action_size, generator=noise)).requires_grad_()
    state, total = env.state, torch.tensor(0.0)
    for action in actions:
        assert state is not None
        state, outcome = env.transition(state, action)
        total = total + outcome.reward.sum() + outcome.final_observation.account.sum()
    (gradient,) = torch.autograd.grad(total, actions)
    assert torch.isfinite(gradient).all()
    assert gradient.any() or size == 100.0
