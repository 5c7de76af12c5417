"""Rewards against independent formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from finrl_pod_envs.rewards import differential_sharpe, log_return, reward
from finrl_pod_envs.trading_envs import PortfolioEnv

from finrl_pod.errors import ConfigError
from finrl_pod.settings.run import EnvironmentConfig
from tests.markets import random_market


def test_log_returns_sum_to_the_log_growth_of_the_account() -> None:
    market = random_market(2, bars=60, opens=True)
    env = PortfolioEnv(market, EnvironmentConfig(window=40, envs=4, group=2), dtype=torch.float64)
    env.reset(0, stagger=False)
    start, total = env.config.cash, torch.zeros(1, 4, dtype=torch.float64)
    noise = torch.Generator().manual_seed(0)
    for _ in range(39):
        total += env.step(torch.randn(1, 4, 4, generator=noise)).reward
    assert env.state is not None
    prices = market.fill[env.state.day].repeat_interleave(2, 1)
    end = env.state.cash.reshape(1, 4) + (env.state.shares.reshape(1, 4, 3) * prices).sum(-1)
    assert torch.allclose(total, (end / start).log(), rtol=1e-12, atol=1e-12)


def test_change_reward_is_the_scaled_change_of_total_assets() -> None:
    gain, _ = reward("change")(torch.tensor(1_000_000.0), torch.tensor(1_012_000.0), None)
    assert gain.item() == pytest.approx(1.2)


@pytest.mark.parametrize(("before", "after"), [(1.0, -5.0), (-1.0, 5.0), (-1.0, -5.0), (0.0, 1.0), (1.0, 0.0)])
def test_log_return_is_clamped_for_accounts_at_or_below_zero(before: float, after: float) -> None:
    start = torch.tensor(before, requires_grad=True)
    gain, _ = log_return(start, torch.tensor(after), None)
    assert gain.item() == pytest.approx(math.log(1e-6))
    gain.backward()
    assert start.grad is not None
    assert torch.isfinite(start.grad)


def test_differential_sharpe_matches_moody_and_saffell() -> None:
    """D = dS/d eta at eta = 0 of the moving Sharpe ratio, here by finite differences."""
    rng = np.random.default_rng(0)
    returns = rng.normal(1e-3, 0.01, 400)
    memory = torch.zeros(2, dtype=torch.float64)
    a = b = 0.0
    eta, step = 1 / 252, 1e-7
    for i, r in enumerate(returns):
        value, memory_next = differential_sharpe(
            torch.tensor(100.0, dtype=torch.float64), torch.tensor(100.0 * (1 + r), dtype=torch.float64), memory
        )
        assert memory_next is not None
        if i > 1:

            def sharpe(rate: float, a: float = a, b: float = b, r: float = r) -> float:
                first, second = a + rate * (r - a), b + rate * (r * r - b)
                return first / math.sqrt(second - first * first)

            expected = (sharpe(step) - sharpe(-step)) / (2 * step)
            assert value.item() == pytest.approx(expected, rel=1e-4, abs=1e-6)
        a, b = a + eta * (r - a), b + eta * (r * r - b)
        assert memory_next.tolist() == pytest.approx([a, b], rel=1e-9)
        memory = memory_next


def test_differential_sharpe_starts_at_zero_in_every_episode() -> None:
    config = EnvironmentConfig(window=5, envs=2, group=1, reward="differential_sharpe")
    env = PortfolioEnv(random_market(3), config)
    env.reset(0, stagger=False)
    action = torch.tensor([0.0, 3.0, 0.0, 0.0]).expand(1, 2, 4)
    gains = torch.stack([env.step(action).reward[0] for _ in range(10)])
    assert not gains[0].any()
    assert not gains[5].any()
    assert gains[[2, 3, 4, 7, 8, 9]].abs().min() > 0
    assert env.state is not None
    assert env.state.memory is not None
    assert not env.state.memory.any()


def test_unknown_reward_is_rejected() -> None:
    with pytest.raises(ConfigError, match="log_return, change, differential_sharpe, got 'profit'"):
        reward("profit")
