"""PPO with a central critic: the actor cannot read the state, the critic does, and gradients are those of autograd."""

from __future__ import annotations

import torch
from finrl_pod_envs.multi_agent.execution import ExecutionMarket

from finrl_pod.random import generator
from finrl_pod.rl.multi_agent.training import default_ppo
from finrl_pod.rl.multi_agent.views import AgentsView
from finrl_pod.rl.networks.policies import MlpPolicy, PolicySpec
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.multi_agent import ExecutionMarketConfig

CONFIG = ExecutionMarketConfig(orders=(1e6, -5e5), steps=5, order_std=1e5, cooperation=1.0)
AGENT = default_ppo(hidden=(8,), horizon=5, minibatches=2)


def learner(central: bool, members: tuple[int, ...] = (0,), shared: bool = True) -> Learner:
    market = ExecutionMarket(CONFIG, envs=6, members=members)
    return Learner(AgentsView(market, shared=shared, central=central), AGENT, seed=1)


def test_only_the_critic_reads_the_end_of_a_row() -> None:
    spec = PolicySpec("mlp", 0, 7, 2, (8,), "direct", critic_only=3)
    policy = MlpPolicy(spec)
    params = {name: x.unsqueeze(0) for name, x in policy.init(generator(0, 0, "w"), torch.float64).items()}
    row = torch.randn(1, 4, 1, 7, dtype=torch.float64, requires_grad=True)
    nothing = row.new_zeros(1, 4, 0, 0)
    (by_mean,) = torch.autograd.grad(policy.mean(params, nothing, row, None).sum(), row)
    (by_value,) = torch.autograd.grad(policy.value(params, nothing, row, None).sum(), row)
    assert (by_mean[..., 4:] == 0).all()
    assert (by_mean[..., :4] != 0).all()
    assert (by_value != 0).all()


def test_trained_actor_ignores_the_state() -> None:
    trained = learner(central=True)
    trained.learn(10 * trained.iteration_samples)
    row = torch.randn(1, 3, trained.env.observation_size)
    changed = row.clone()
    changed[..., 2:] += 1.0  # after time left and the agent's own shares
    assert torch.equal(trained.act(row), trained.act(changed))


def test_members_equal_single_runs() -> None:
    both = learner(True, (0, 4), shared=False)
    both.learn(4 * both.iteration_samples)
    one = learner(True, (4,), shared=False)
    one.learn(4 * one.iteration_samples)
    for agent in range(2):
        for name, x in both.algorithm.member(2 + agent)[0].items():
            torch.testing.assert_close(x, one.algorithm.member(agent)[0][name], rtol=1e-4, atol=1e-5)
