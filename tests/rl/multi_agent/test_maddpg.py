"""MADDPG: shapes of shared and separate networks, values and actor gradients by hand, learning, refusals."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from finrl_pod_envs.multi_agent.execution import ExecutionMarket

from finrl_pod.errors import ConfigError
from finrl_pod.rl.algorithms.maddpg import MADDPG
from finrl_pod.rl.multi_agent.training import train_agents
from finrl_pod.rl.multi_agent.views import AgentsView
from finrl_pod.rl.networks.inputs import ModelInput
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.multi_agent import ExecutionMarketConfig, MADDPGConfig

MARKET = ExecutionMarketConfig(orders=(1e6, -5e5, 2e5), steps=5, order_std=1e5, cooperation=1.0)
AGENT = MADDPGConfig(hidden=(8,), batch_size=48, buffer_size=400, learning_starts=20, gradient_steps=2)
DOUBLE = torch.float64


def make(shared: bool = False, members: tuple[int, ...] = (0,), central: bool = True) -> Learner:
    market = ExecutionMarket(MARKET, envs=6, members=members, dtype=DOUBLE)
    return Learner(AgentsView(market, shared=shared, central=central), AGENT, seed=3, dtype=DOUBLE)


def algorithm_of(learner: Learner) -> MADDPG:
    assert isinstance(learner.algorithm, MADDPG)
    return learner.algorithm


@pytest.mark.parametrize("shared", [False, True])
def test_members_equal_single_runs(shared: bool) -> None:
    both, one = make(shared, (0, 5)), make(shared, (5,))
    both.learn(120)
    one.learn(120)
    per = 1 if shared else 3
    for name, x in one.algorithm.weights().items():
        torch.testing.assert_close(both.algorithm.weights()[name][per:], x, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shared", [False, True])
def test_critic_reads_state_own_observation_and_all_actions(shared: bool) -> None:
    agent = algorithm_of(make(shared))
    rows = torch.randn(1, 4, 3, agent.spec.features, dtype=DOUBLE)  # of three agents: own observation, state
    actions = torch.randn(1, 4, 3, 1, dtype=DOUBLE)
    networks = (rows, actions) if shared else (x[0].transpose(0, 1).unsqueeze(2) for x in (rows, actions))
    row, action = networks
    weights = agent.train_state.detached("critic")
    values = agent.values(weights, ModelInput(row), action, 1).squeeze(1)
    for i in range(3):
        read = torch.cat([rows[0, :, i], actions[0, :, i], actions[0, :, :, 0]], -1)
        r = 0 if shared else i
        hidden = torch.relu(read @ weights["w0"][r] + weights["b0"][r])
        expected = (hidden @ weights["w1"][r] + weights["b1"][r])[:, 0]
        torch.testing.assert_close(values[0, :, i] if shared else values[i, :, 0], expected)


def test_actors_move_up_their_critic_by_their_own_action_alone() -> None:
    learner = make()
    learner.learn(60)
    agent = algorithm_of(learner)
    (batch, _), *_ = agent._batches(1)
    own = agent._greedy_action(batch.obs)
    critic = agent.train_state.detached("critic")
    values = agent._actor_values(critic, batch, own)
    for i in range(3):
        action = batch.action.clone()
        action[i] = own[i]  # the others did what the batch says
        torch.testing.assert_close(values[i], agent.values(critic, batch.obs, action, 1)[i])


def test_agents_of_a_market_draw_the_same_transitions() -> None:
    learner = make(members=(0, 5))
    learner.learn(60)
    agent = algorithm_of(learner)
    indices = agent._indices(2).view(2, 2, 3, -1)
    assert (indices == indices[:, :, :1]).all()
    assert not torch.equal(indices[:, 0], indices[:, 1])


@pytest.mark.slow
def test_a_single_agent_learns_to_trade_early_when_risk_averse() -> None:
    config = ExecutionMarketConfig(steps=4, risk_aversion=1e-5, max_rate=3.0)
    settings = MADDPGConfig(
        hidden=(32,), batch_size=128, buffer_size=4000, learning_starts=256, gradient_steps=8, exploration_noise=0.3
    )
    policy = train_agents(ExecutionMarket(config, envs=32), "maddpg", settings, samples=4000)
    market = ExecutionMarket(config, envs=1)
    first = policy.act(market.reset(0))
    assert float(first) > 0.15  # even slices are 0, the optimum is 0.5


def test_bad_settings_and_environments_are_refused() -> None:
    market = ExecutionMarket(MARKET)
    with pytest.raises(ConfigError, match="batch_size"):
        train_agents(market, "maddpg", MADDPGConfig(batch_size=500, buffer_size=400), samples=10)
    view = AgentsView(market, shared=False, central=True)
    with pytest.raises(ConfigError, match="one flat row"):
        Learner(view, dataclasses.replace(AGENT, policy="linear"))
    view.agents = 0
    with pytest.raises(ConfigError, match="choose ddpg"):
        Learner(view, AGENT)
