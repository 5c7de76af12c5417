"""Results on a CUDA device equal those on the CPU."""

from __future__ import annotations

import functools

import pytest
import torch
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv
from finrl_pod_envs.trading_envs import PortfolioEnv, StockTradingEnv, make_env
from torch.utils._pytree import tree_map

from finrl_pod.data.tensor import to_device
from finrl_pod.rl.acting import metrics_of, run_members
from finrl_pod.rl.experience import RolloutCollector
from finrl_pod.rl.training.learner import Learner
from finrl_pod.rl.training.pipeline import Pipeline
from finrl_pod.settings.algorithm_configs import SACConfig
from finrl_pod.settings.run import EnvironmentConfig, PPOConfig
from finrl_pod.types import MarketTensor
from tests.markets import random_market
from tests.rl.all_algorithms import NAMES, small_learner, training_state

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

Kind = type[PortfolioEnv] | type[StockTradingEnv]
DEVICE = "cuda"
RULES = EnvironmentConfig(envs=8, group=4, window=20)
AGENT = PPOConfig(horizon=16, minibatches=4, hidden=(16, 16))


@pytest.fixture(scope="module")
def market() -> MarketTensor:
    return random_market(0, bars=80, assets=5)


@pytest.mark.parametrize("kind", [PortfolioEnv, StockTradingEnv])
def test_environments_agree_with_the_cpu(
    market: MarketTensor, kind: type[PortfolioEnv] | type[StockTradingEnv]
) -> None:
    cpu = kind(market, RULES, members=(0, 1), dtype=torch.float64)
    gpu = kind(to_device(market, DEVICE), RULES, members=(0, 1), dtype=torch.float64)
    for a, b in zip(cpu.reset(3), gpu.reset(3), strict=True):
        torch.testing.assert_close(a, b.cpu())
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        action = torch.randn(2, 8, cpu.action_size, generator=generator, dtype=torch.float64)
        ours, theirs = cpu.step(action), gpu.step(action.to(DEVICE))
        torch.testing.assert_close(ours.reward, theirs.reward.cpu(), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(ours.observation.account, theirs.observation.account.cpu(), rtol=1e-9, atol=1e-12)
        assert torch.equal(ours.observation.bar, theirs.observation.bar.cpu())
        assert torch.equal(ours.truncated, theirs.truncated.cpu())


@pytest.mark.parametrize("encoder", ["none", "gru"])
@pytest.mark.parametrize("policy", ["equivariant", "linear", "mlp"])
def test_an_update_agrees_with_the_cpu(market: MarketTensor, policy: str, encoder: str) -> None:
    """The random generators of devices differ, so both learn from the rollout that the CPU collected."""
    past = {} if encoder == "none" else {"encoder": encoder, "lookback": 8}
    config = PPOConfig(**{"policy": policy, "horizon": 16, "minibatches": 1, "epochs": 1, "hidden": (16, 16), **past})
    learners = [
        Learner(PortfolioEnv(on, RULES, members=(0, 1), dtype=torch.float64), config, seed=5, dtype=torch.float64)
        for on in (market, to_device(market, DEVICE))
    ]
    cpu, gpu = learners
    torch.testing.assert_close(cpu.algorithm.parameters.flat, gpu.algorithm.parameters.flat.cpu())

    env = cpu.env
    rollout = RolloutCollector(env, 1).collect(
        cpu.algorithm.explore, cpu.algorithm.noise((env.groups, env.accounts, env.action_size))
    )
    moved = tree_map(lambda x: x.to(DEVICE), rollout)
    cpu.algorithm.update(rollout)
    gpu.algorithm.update(moved)
    torch.testing.assert_close(cpu.algorithm.parameters.flat, gpu.algorithm.parameters.flat.cpu(), rtol=1e-6, atol=1e-9)


def test_a_population_learns_and_is_scored_on_the_device(market: MarketTensor) -> None:
    on = to_device(market, DEVICE)
    learner = Learner(PortfolioEnv(on, RULES, members=(0, 1, 2)), AGENT, seed=1)
    metrics = learner.learn(512)
    assert all(bool(torch.isfinite(column).all()) for column in metrics.values())
    params = {name: view.detach() for name, view in learner.algorithm.parameters.views.items()}
    scores = metrics_of(run_members(learner.algorithm.actor, params, on, RULES, on.first, on.shape[0] - 1), on)
    assert len(scores) == 3


@pytest.mark.parametrize("policy", ["equivariant", "mlp"])
@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_learns_and_resumes_from_a_checkpoint(name: str, policy: str) -> None:
    market = to_device(random_market(5, bars=60, leak=True), DEVICE)

    def make() -> Learner:
        return small_learner(name, (0, 1), policy=policy, market=market)

    one, other = make(), make()
    one.learn(3 * one.iteration_samples)
    other.resume(one.checkpoint())
    one.learn(one.iteration_samples)
    other.learn(other.iteration_samples)
    assert all(one.alive)
    assert one.act(one.env.reset(0)).device.type == DEVICE
    for key, value in training_state(one).items():
        torch.testing.assert_close(value, training_state(other)[key], rtol=1e-9, atol=1e-9)


def test_a_pipeline_that_steps_on_the_cpu_and_learns_on_the_device() -> None:
    make_env = functools.partial(GymnasiumVecEnv, "gym:Pendulum-v1", envs=2)
    agent = SACConfig(policy="mlp", hidden=(16,), batch_size=16, buffer_size=400, learning_starts=40, gradient_steps=2)
    with Pipeline(make_env, agent, seed=1, make_here=functools.partial(make_env, device=DEVICE)) as pipeline:
        figures = pipeline.learn(600)
        assert torch.equal(pipeline._link.weights, pipeline._acting_weights().cpu())
    assert figures.updates == 600 - 40


def test_a_pipeline_of_a_market_on_the_device(market: MarketTensor) -> None:
    """Two processes share a ring buffer in the memory of one device."""
    make_market = functools.partial(make_env, to_device(market, DEVICE), RULES, first=market.first, last=60)
    agent = SACConfig(policy="mlp", hidden=(16,), batch_size=16, buffer_size=1024, learning_starts=64, gradient_steps=2)
    with Pipeline(make_market, agent, seed=1) as pipeline:
        figures = pipeline.learn(1600)
        written = pipeline.algorithm.replay.data
        assert written["reward"].device.type == DEVICE
        assert bool(torch.isfinite(written["account"]).all())
        assert bool((written["account"][..., 0] > 0).any())
    assert figures.updates == (1600 - 64) * 2 // RULES.envs
