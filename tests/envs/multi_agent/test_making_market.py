"""The making market: fills, rewards and profits against the exact problem, informed traders, several makers."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from finrl_pod_envs.multi_agent.making import MakingMarket

from finrl_pod.errors import InputError
from finrl_pod.market.optimal_quotes import evaluate_quotes
from finrl_pod.settings.multi_agent import MakingMarketConfig

SMALL = MakingMarketConfig(steps=50, horizon=0.1, max_inventory=3, random_start=False)
RUNS = 4_000


def episode(config: MakingMarketConfig, action: torch.Tensor, envs: int = RUNS) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards above the benchmark's and profits [E, M], summed over an episode of constant actions [M, 2]."""
    env = MakingMarket(config, envs=envs, dtype=torch.float64)
    env.reset(0)
    rewards, profits = torch.zeros(envs, env.agents).double(), torch.zeros(envs, env.agents).double()
    for _ in range(config.steps):
        out = env.step(action.expand(1, envs, env.agents, 2))
        rewards, profits = rewards + out.reward[0] + env.benchmark, profits + out.profit[0]
    return rewards, profits


@pytest.mark.parametrize("expected_rewards", [True, False])
def test_mean_reward_is_the_exact_value_of_the_quotes(expected_rewards: bool) -> None:
    config = dataclasses.replace(SMALL, expected_rewards=expected_rewards)
    env = MakingMarket(config, dtype=torch.float64)
    action = torch.tensor([0.2, -0.1])
    rewards, _ = episode(config, action)
    bid, ask = (np.full((50, 7), float(x)) for x in env.distances(action))
    value = evaluate_quotes(env.problem(), bid, ask)[0, 3]
    assert float(rewards.mean()) == pytest.approx(value, abs=4 * float(rewards.std()) / math.sqrt(RUNS))


def test_expected_rewards_have_less_noise() -> None:
    noise = [
        float(episode(dataclasses.replace(SMALL, expected_rewards=x), torch.zeros(2))[0].std()) for x in (True, False)
    ]
    assert noise[0] < noise[1] / 3


@pytest.mark.parametrize("informed", [0.0, 200.0])
def test_profit_has_the_mean_of_the_rewards_without_a_penalty(informed: float) -> None:
    config = dataclasses.replace(SMALL, running_penalty=0.0, informed_intensity=informed)
    action = torch.tensor([0.3, 0.0])
    rewards, profits = episode(config, action)
    assert float(profits.mean()) == pytest.approx(
        float(rewards.mean()), abs=4 * float(profits.std()) / math.sqrt(RUNS) + 1e-3 * abs(float(rewards.mean()))
    )


def test_informed_traders_cost_more_the_nearer_the_quotes() -> None:
    config = dataclasses.replace(SMALL, running_penalty=0.0, intensity=0.0, informed_intensity=100.0, horizon=1.0)
    near, far = (episode(config, torch.full((2,), x), 500)[0].mean() for x in (-0.5, 0.5))
    assert near < far < 0


def test_inventory_stays_within_its_limits() -> None:
    env = MakingMarket(dataclasses.replace(SMALL, informed_intensity=50.0), envs=200)
    env.reset(0)
    for _ in range(60):
        held = env.step(torch.full((1, 200, 1, 2), -1.0)).final_observation.own[..., 1]
        assert (held.abs() <= 1).all()
    assert held.abs().max() == 1


@pytest.mark.slow
def test_makers_share_the_orders_and_the_nearer_quote_gets_more() -> None:
    one = dataclasses.replace(SMALL, running_penalty=0.0, max_inventory=20)
    two = dataclasses.replace(one, makers=2)
    alone, _ = episode(one, torch.zeros(2), 2000)
    equal, _ = episode(two, torch.zeros(2, 2), 2000)
    assert float(equal.mean()) == pytest.approx(float(alone.mean()) / 2, rel=0.03)
    nearer, _ = episode(two, torch.tensor([[-0.2, -0.2], [0.2, 0.2]]), 2000)
    assert nearer[:, 0].mean() > nearer[:, 1].mean()


def test_random_starts_cover_all_inventories_and_times() -> None:
    env = MakingMarket(dataclasses.replace(SMALL, random_start=True), envs=2000)
    own = env.reset(0).own[0, :, 0]
    assert own[:, 1].unique().numel() == 7
    assert own[:, 0].min() < 0.1 < 0.9 < own[:, 0].max()
    torch.testing.assert_close(own[:, 2:].sum(1), torch.ones(2000))


def test_wrong_shape_is_refused() -> None:
    env = MakingMarket(SMALL, envs=2)
    env.reset(0)
    with pytest.raises(InputError, match="shape"):
        env.step(torch.zeros(1, 2, 2, 2))
