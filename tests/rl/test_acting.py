"""A policy in a backtest makes the same decisions and has the same equity as in its environment."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.evaluate.backtest import simulate
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.rl.acting import DecisionInputs, target_weights
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import MarketTensor
from tests.markets import random_market
from tests.rl.small_learners import AGENT

BARS, FIRST = 60, 3
MEMBERS = (0, 1, 2)
COMPLETE_MARKET: dict[str, Any] = {"opens": True}
MARKET_WITH_GAPS: dict[str, Any] = {"gaps": 0.15, "starts": {1: 20}, "ends": {2: 40}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "weights": ({}, COMPLETE_MARKET),
    "weights, gaps": ({}, MARKET_WITH_GAPS),
    "weights at the same close": ({"fill": "same_close"}, MARKET_WITH_GAPS),
    "weights, leverage 1.5": ({"leverage": 1.5}, COMPLETE_MARKET),
    "weights, leverage 0.5": ({"leverage": 0.5}, COMPLETE_MARKET),
    "weights with shorts": ({"short": True}, COMPLETE_MARKET),
    "weights with shorts, gaps": ({"short": True, "leverage": 1.5}, MARKET_WITH_GAPS),
    "shares": ({"kind": "stock_trading", "hmax": 20.0}, COMPLETE_MARKET),
    "shares, gaps": ({"kind": "stock_trading", "hmax": 20.0}, MARKET_WITH_GAPS),
    "shares at the same close": ({"kind": "stock_trading", "hmax": 20.0, "fill": "same_close"}, MARKET_WITH_GAPS),
    "shares with shorts": ({"kind": "stock_trading", "hmax": 20.0, "short": True}, COMPLETE_MARKET),
}


def make_learner(market: MarketTensor, config: EnvironmentConfig, policy: str) -> Learner:
    """Three members of one account each, with weights perturbed enough to trade a lot."""
    env = make_env(market, config, first=FIRST, members=MEMBERS, envs=1, group=1, dtype=torch.float64)
    settings = dataclasses.replace(AGENT, policy=policy, minibatches=1)  # type: ignore[arg-type]
    learner = Learner(env, settings, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    learner.algorithm.parameters.flat += 0.7 * torch.randn(
        learner.algorithm.parameters.flat.shape, generator=generator, dtype=torch.float64
    )
    return learner


def env_equity(learner: Learner) -> tuple[torch.Tensor, torch.Tensor]:
    """Equity at the close after each step and turnover, each [L, P], over one window without exploration."""
    env = learner.env
    observation = env.reset(0, stagger=False)
    assert observation.bar.unique().tolist() == [FIRST]
    equity, turnover = [], []
    for _ in range(env.episode_bars):
        outcome = env.step(learner.act(observation))
        observation = outcome.observation
        equity.append(outcome.equity[:, 0])
        turnover.append(outcome.turnover[:, 0])
    assert bool(outcome.truncated.all())
    return torch.stack(equity), torch.stack(turnover)


def backtest_equity(learner: Learner, rules: ExecutionRules) -> torch.Tensor:
    env, market = learner.env, learner.env.market
    params = {name: view.detach() for name, view in learner.algorithm.parameters.views.items()}

    def decide(t: int, cash: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        values = shares * market.close[t]
        equity = cash + values.sum(-1)
        weights_held = values / equity.unsqueeze(-1)
        inputs = DecisionInputs(market.features[t : t + 1], market.tradable[t : t + 1], weights_held)
        return target_weights(learner.algorithm.actor, params, inputs, equity, market.close[t], env.config)

    ledger = simulate(market, decide, env.first, env.last + 1, rules, env.config.cash, batch=len(MEMBERS))
    if market.fill_rule == "same_close":  # the backtest values a bar after its trades, the environment before
        return (ledger.equity + ledger.costs)[1:]
    return ledger.equity[1:]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["equivariant", "linear", "mlp"])
@pytest.mark.parametrize("case", CASES)
def test_backtest_equals_the_episode(case: str, policy: str) -> None:
    changes, prices = CASES[case]
    config = EnvironmentConfig(window=BARS, envs=1, group=1, **changes)
    learner = make_learner(random_market(7, bars=BARS, fill=config.fill, **prices), config, policy)
    expected, turnover = env_equity(learner)
    rules = ExecutionRules(config.cost_bps / 1e4, short=config.short, leverage=config.leverage)
    torch.testing.assert_close(expected, backtest_equity(learner, rules), rtol=1e-9, atol=0)
    assert (turnover[1:].mean(0) > 1e-6).all(), "every member must trade"
    assert turnover[1:].mean() > 1e-3
    assert ((expected - expected[0]).abs().amax(0) > 10).all()


def test_target_weights_are_the_softmax_of_the_mean_scores() -> None:
    """Untradable assets have zero weight, the others are proportional to exp(score)."""
    market = random_market(7, bars=BARS)
    learner = make_learner(market, EnvironmentConfig(window=BARS, envs=1, group=1), "mlp")
    params = {name: view.detach() for name, view in learner.algorithm.parameters.views.items()}
    tradable = torch.tensor([True, False, True])
    weights_held = torch.tensor([[0.2, 0.1, 0.3]], dtype=torch.float64).repeat(3, 1)
    equity = torch.full((3,), 1e6, dtype=torch.float64)
    inputs = DecisionInputs(market.features[9:10], tradable.unsqueeze(0), weights_held)
    arguments = (learner.algorithm.actor, params, inputs, equity, market.close[9])
    weights = target_weights(*arguments, EnvironmentConfig())
    account = torch.cat([torch.full((3, 1), 0.4, dtype=torch.float64), weights_held], -1).view(3, 1, 1, 4)
    features = market.features[9].double().expand(3, 1, 3, 2)
    exponentials = learner.algorithm.policy.forward(params, features, account, None).mean.detach().view(3, 4).exp()
    exponentials[:, 2] = 0
    torch.testing.assert_close(weights, (exponentials / exponentials.sum(-1, keepdim=True))[:, 1:])
    assert weights.dtype == torch.float64
    assert torch.equal(weights, target_weights(*arguments, EnvironmentConfig()))


def test_each_member_acts_on_its_own_account() -> None:
    market = random_market(7, bars=BARS)
    config = EnvironmentConfig(window=BARS, envs=1, group=1)
    learner = make_learner(market, config, "equivariant")
    params = {name: view.detach() for name, view in learner.algorithm.parameters.views.items()}
    weights_held = torch.tensor([[0.2, 0.1, 0.3], [0.0, 0.0, 0.0], [0.9, 0.0, 0.0]], dtype=torch.float64)
    equity = torch.tensor([1e6, 2e6, 3e6], dtype=torch.float64)
    inputs = DecisionInputs(market.features[9:10], market.tradable[9:10], weights_held)
    batched = target_weights(learner.algorithm.actor, params, inputs, equity, market.close[9], config)
    for p in range(3):
        member_params = {name: value[p : p + 1] for name, value in params.items()}
        alone = target_weights(
            learner.algorithm.actor,
            member_params,
            inputs._replace(holdings=weights_held[p : p + 1]),
            equity[p : p + 1],
            market.close[9],
            config,
        )
        torch.testing.assert_close(batched[p : p + 1], alone)
