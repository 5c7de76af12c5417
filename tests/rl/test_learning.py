"""PPO learns to exploit a feature that leaks the future, and finds no excess return without it."""

from __future__ import annotations

import pytest
import torch
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.evaluate.backtest import simulate
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.rl.acting import DecisionInputs, target_weights
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.run import EnvironmentConfig, PPOConfig
from finrl_pod.types import MarketTensor
from tests.markets import random_market

TRAIN, BARS = 400, 600
CONFIG = EnvironmentConfig(window=64, envs=32, group=8)
RULES = ExecutionRules(CONFIG.cost_bps / 1e4)


def market(leak: bool) -> MarketTensor:
    return random_market(1, bars=BARS, assets=4, features=2, leak=leak)


def learner(policy: str, prices: MarketTensor) -> Learner:
    env = make_env(prices, CONFIG, last=TRAIN - 2)
    return Learner(env, PPOConfig(policy=policy, hidden=(16, 16), minibatches=4), seed=2)  # type: ignore[arg-type]


def excess_growth(agent: Learner, prices: MarketTensor) -> float:
    """Mean log growth per bar after the training period, minus that of equal weights with the same costs."""
    params = {name: view.detach() for name, view in agent.algorithm.parameters.views.items()}

    def decide(t: int, cash: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        values = shares * prices.close[t]
        equity = cash + values.sum(-1)
        positions = values / equity.unsqueeze(-1)
        return target_weights(
            agent.algorithm.actor,
            params,
            DecisionInputs(prices.features[t : t + 1], prices.tradable[t : t + 1], positions),
            equity,
            prices.close[t],
            CONFIG,
        )

    def equal_weights(t: int, cash: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        return torch.full_like(shares, 1 / 4)

    agent_growth, baseline_growth = (
        simulate(prices, rule, TRAIN, BARS - 2, RULES, CONFIG.cash).log_returns.mean()
        for rule in (decide, equal_weights)
    )
    return float(agent_growth - baseline_growth)


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "samples"), [("equivariant", 30_000), ("mlp", 50_000)])
def test_leaked_future_is_exploited_out_of_sample(policy: str, samples: int) -> None:
    """Holding the best of the four stocks at every bar would earn about 2% per bar."""
    prices = market(leak=True)
    agent = learner(policy, prices)
    before = excess_growth(agent, prices)
    agent.learn(samples)
    assert agent.alive == [True]
    after = excess_growth(agent, prices)
    assert abs(before) < 0.002
    assert after > 0.008
    snapshot = agent.snapshot()
    restored = learner(policy, prices)
    restored.restore(snapshot)
    assert excess_growth(restored, prices) == after


@pytest.mark.slow
def test_no_excess_return_without_a_leak() -> None:
    """The growth in the test above comes from the leak and not from an accounting error."""
    prices = market(leak=False)
    agent = learner("equivariant", prices)
    agent.learn(20_000)
    assert excess_growth(agent, prices) < 0.002
