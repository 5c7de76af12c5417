"""The same numbers on a CUDA device as on the CPU. Run where there is one: pytest -m gpu."""

from __future__ import annotations

import pytest
import torch
from finrl_pod_envs.portfolio import PortfolioEnv
from finrl_pod_envs.stock_trading import StockTradingEnv

from finrl_pod.config import EnvironmentConfig, PPOConfig
from finrl_pod.data.tensor import to_device
from finrl_pod.pod.scoring import score_members
from finrl_pod.rl.learner import Learner
from finrl_pod.rl.worker import Worker
from finrl_pod.types import MarketTensor
from tests.markets import random_market

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
    stream = torch.Generator().manual_seed(0)
    for _ in range(50):
        action = torch.randn(2, 8, cpu.action_size, generator=stream, dtype=torch.float64)
        ours, theirs = cpu.step(action), gpu.step(action.to(DEVICE))
        torch.testing.assert_close(ours.reward, theirs.reward.cpu(), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(ours.observation.account, theirs.observation.account.cpu(), rtol=1e-9, atol=1e-12)
        assert torch.equal(ours.observation.day, theirs.observation.day.cpu())
        assert torch.equal(ours.truncated, theirs.truncated.cpu())


@pytest.mark.parametrize("policy", ["equivariant", "mlp"])
def test_an_update_agrees_with_the_cpu(market: MarketTensor, policy: str) -> None:
    """The random streams of devices differ, so both learn from the rollout that the CPU collected."""
    config = PPOConfig(policy=policy, horizon=16, minibatches=1, epochs=1, hidden=(16, 16))  # type: ignore[arg-type]
    learners = [
        Learner(PortfolioEnv(on, RULES, members=(0, 1), dtype=torch.float64), config, seed=5, dtype=torch.float64)
        for on in (market, to_device(market, DEVICE))
    ]
    cpu, gpu = learners
    torch.testing.assert_close(cpu.algorithm.parameters.flat, gpu.algorithm.parameters.flat.cpu())

    env = cpu.env
    rollout = Worker(env, 1).collect(
        cpu.algorithm.explore, cpu.algorithm.noise((env.groups, env.accounts, env.action_size))
    )
    moved = type(rollout)(
        *(x.to(DEVICE) if torch.is_tensor(x) else type(x)(*(y.to(DEVICE) for y in x)) for x in rollout)
    )
    cpu.algorithm.update(rollout)
    gpu.algorithm.update(moved)
    torch.testing.assert_close(cpu.algorithm.parameters.flat, gpu.algorithm.parameters.flat.cpu(), rtol=1e-6, atol=1e-9)


def test_a_population_learns_and_is_scored_on_the_device(market: MarketTensor) -> None:
    on = to_device(market, DEVICE)
    learner = Learner(PortfolioEnv(on, RULES, members=(0, 1, 2)), AGENT, seed=1)
    metrics = learner.learn(512)
    assert all(bool(torch.isfinite(column).all()) for column in metrics.values())
    params = {name: view.detach() for name, view in learner.algorithm.parameters.views.items()}
    scores = score_members(learner.algorithm.actor, params, on, RULES, on.first, on.shape[0] - 1)
    assert len(scores) == 3
