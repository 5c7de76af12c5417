"""MADDPG: shapes of shared and separate networks, targets and gradients by hand, learning."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from finrl_pod_envs.multi_agent.execution import ExecutionMarket

from finrl_pod.errors import ConfigError
from finrl_pod.rl.multi_agent.maddpg import MADDPG
from finrl_pod.settings.multi_agent import ExecutionMarketConfig, MADDPGConfig

MARKET = ExecutionMarketConfig(orders=(1e6, -5e5, 2e5), steps=5, order_std=1e5, cooperation=1.0)
AGENT = MADDPGConfig(hidden=(8,), batch_size=16, buffer_size=400, learning_starts=20, gradient_steps=2)
DOUBLE = torch.float64
CHANGES: dict[str, Any] = {
    "hidden": (4,),
    "weight_decay": 0.5,
    "learning_rate_schedule": "constant",
    "learning_rate": 0.01,
    "gamma": 0.5,
    "horizon": 2,
    "gradient_steps": 1,
    "batch_size": 8,
    "buffer_size": 40,
    "learning_starts": 60,
    "scale_rewards": False,
    "tau": 0.5,
    "max_grad_norm": 1e-3,
    "exploration_noise": 0.5,
}


def make(shared: bool = False, members: tuple[int, ...] = (0,), seed: int = 3, config: MADDPGConfig = AGENT) -> MADDPG:
    market = ExecutionMarket(MARKET, envs=6, members=members, dtype=DOUBLE)
    return MADDPG(market, config, shared=shared, seed=seed, dtype=DOUBLE)


@pytest.mark.parametrize("shared", [False, True])
def test_members_equal_single_runs(shared: bool) -> None:
    both, one = make(shared, (0, 5)), make(shared, (5,))
    both.learn(120)
    one.learn(120)
    per = 1 if shared else 3
    for name, x in one.weights().items():
        torch.testing.assert_close(both.weights()[name][per:], x, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shared", [False, True])
def test_critic_reads_state_own_observation_and_all_actions(shared: bool) -> None:
    agent = make(shared)
    own, state = (torch.randn(1, 4, *shape, dtype=DOUBLE) for shape in ((3, 2), (agent.market.state_size,)))
    joint = torch.randn(1, 4, 3, 3, 1, dtype=DOUBLE)
    values = agent._values(agent.train_state.detached("critic"), state, own, joint)
    weights = agent.train_state.detached("critic")
    for i in range(3):
        row = torch.cat([state[0], own[0, :, i], joint[0, :, i, i], joint[0, :, i, :, 0]], -1)
        r = 0 if shared else i
        hidden = torch.relu(row @ weights["w0"][r] + weights["b0"][r])
        torch.testing.assert_close(values[0, :, i], (hidden @ weights["w1"][r] + weights["b1"][r])[:, 0])


def test_actors_move_up_their_critic_by_their_own_action_alone() -> None:
    """The gradient of the actors' loss against finite differences of the critic with one action replaced."""
    agent = make()
    agent.learn(60)
    batch = agent._batch()
    taken = batch["action"].unsqueeze(2).expand(1, 16, 3, 3, 1)
    own = agent._actions(agent.train_state.detached("actor"), batch["own"])
    for i in range(3):
        replaced = batch["action"].clone()
        replaced[:, :, i] = own[:, :, i]
        joint = taken.clone()
        joint[:, :, i] = replaced
        critic = agent.train_state.detached("critic")
        mine = torch.eye(3, dtype=torch.bool).view(1, 1, 3, 3, 1)
        whole = torch.where(mine, own.unsqueeze(3), taken)
        values = agent._values(critic, batch["state"], batch["own"], whole)[:, :, i]
        torch.testing.assert_close(values, agent._values(critic, batch["state"], batch["own"], joint)[:, :, i])


@pytest.mark.slow
def test_a_single_agent_learns_to_trade_early_when_risk_averse() -> None:
    config = ExecutionMarketConfig(steps=4, risk_aversion=1e-5, max_rate=3.0)
    settings = MADDPGConfig(
        hidden=(32,), batch_size=128, buffer_size=4000, learning_starts=256, gradient_steps=8, exploration_noise=0.3
    )
    agent = MADDPG(ExecutionMarket(config, envs=32), settings, seed=0)
    agent.learn(4000)
    market = ExecutionMarket(config, envs=1)
    first = agent.act(market.reset(0))
    assert float(first) > 0.15  # even slices are 0, the optimum is 0.5


def test_every_setting_is_changed_by_a_test() -> None:
    assert list(CHANGES) == [field.name for field in dataclasses.fields(MADDPGConfig)]


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_every_setting_has_an_effect(name: str) -> None:
    plain = make()
    changed = make(config=dataclasses.replace(AGENT, **{name: CHANGES[name]}))
    for agent in (plain, changed):
        agent.learn(120)
    ours, theirs = plain.weights(), changed.weights()
    assert any(ours[key].shape != x.shape or not torch.equal(ours[key], x) for key, x in theirs.items())


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="batch_size"):
        MADDPG(ExecutionMarket(MARKET), MADDPGConfig(batch_size=500, buffer_size=100))
