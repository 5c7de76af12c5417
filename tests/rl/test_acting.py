"""An agent outside its environment does what it did inside: the same policy, days and money, to the last digits."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.evaluate.simulate import simulate
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.rl.training.acting import target_weights
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import MarketTensor
from tests.markets import random_market
from tests.rl.learners import AGENT

BARS, FIRST = 60, 3
MEMBERS = (0, 1, 2)
CALM: dict[str, Any] = {"opens": True}
ROUGH: dict[str, Any] = {"gaps": 0.15, "starts": {1: 20}, "ends": {2: 40}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "weights": ({}, CALM),
    "weights, rough": ({}, ROUGH),
    "weights at the same close": ({"fill": "same_close"}, ROUGH),
    "weights, borrowed": ({"leverage": 1.5}, CALM),
    "weights, half invested": ({"leverage": 0.5}, CALM),
    "weights with shorts": ({"short": True}, CALM),
    "weights with shorts, rough": ({"short": True, "leverage": 1.5}, ROUGH),
    "shares": ({"kind": "stock_trading", "hmax": 20.0}, CALM),
    "shares, rough": ({"kind": "stock_trading", "hmax": 20.0}, ROUGH),
    "shares at the same close": ({"kind": "stock_trading", "hmax": 20.0, "fill": "same_close"}, ROUGH),
    "shares with shorts": ({"kind": "stock_trading", "hmax": 20.0, "short": True}, CALM),
}


def agents(market: MarketTensor, config: EnvironmentConfig, policy: str) -> Learner:
    """Three members of one account each, with weights moved far enough that they trade a lot."""
    env = make_env(market, config, first=FIRST, members=MEMBERS, envs=1, group=1, dtype=torch.float64)
    settings = dataclasses.replace(AGENT, policy=policy, minibatches=1)  # type: ignore[arg-type]
    learner = Learner(env, settings, dtype=torch.float64)
    stream = torch.Generator().manual_seed(1)
    learner.algorithm.parameters.flat += 0.7 * torch.randn(
        learner.algorithm.parameters.flat.shape, generator=stream, dtype=torch.float64
    )
    return learner


def equity_inside(learner: Learner) -> tuple[torch.Tensor, torch.Tensor]:
    """[L, P] equity at the closes after each step of one whole window without exploration, and turnover."""
    env = learner.env
    observation = env.reset(0, stagger=False)
    assert observation.day.unique().tolist() == [FIRST]
    equity, turnover = [], []
    for _ in range(env.window):
        outcome = env.step(learner.act(observation))
        observation = outcome.observation
        equity.append(outcome.equity[:, 0])
        turnover.append(outcome.turnover[:, 0])
    assert bool(outcome.truncated.all())
    return torch.stack(equity), torch.stack(turnover)


def equity_outside(learner: Learner, rules: ExecutionRules) -> torch.Tensor:
    env, market = learner.env, learner.env.market
    params = {name: view.detach() for name, view in learner.algorithm.parameters.views.items()}

    def decide(t: int, cash: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        values = shares * market.close[t]
        worth = cash + values.sum(-1)
        held = values / worth.unsqueeze(-1)
        features, tradable = market.features[t], market.tradable[t]
        return target_weights(
            learner.algorithm.actor, params, features, tradable, held, worth, market.close[t], env.config
        )

    ledger = simulate(market, decide, env.first, env.last + 1, rules, env.config.cash, batch=len(MEMBERS))
    if market.fill_rule == "same_close":  # the ledger marks a bar after its trades, the environment before them
        return (ledger.equity + ledger.costs)[1:]
    return ledger.equity[1:]


@pytest.mark.parametrize("policy", ["equivariant", "linear", "mlp"])
@pytest.mark.parametrize("case", CASES)
def test_the_backtest_of_a_policy_is_its_episode(case: str, policy: str) -> None:
    changes, prices = CASES[case]
    config = EnvironmentConfig(window=BARS, envs=1, group=1, **changes)
    learner = agents(random_market(7, bars=BARS, fill=config.fill, **prices), config, policy)
    inside, turnover = equity_inside(learner)
    rules = ExecutionRules(config.cost_bps / 1e4, short=config.short, leverage=config.leverage)
    torch.testing.assert_close(inside, equity_outside(learner, rules), rtol=1e-9, atol=0)
    assert (turnover[1:].mean(0) > 1e-6).all(), "who does not trade proves nothing"
    assert turnover[1:].mean() > 1e-3
    assert ((inside - inside[0]).abs().amax(0) > 10).all()


def test_target_weights_of_scores_are_the_softmax_without_exploration() -> None:
    """Nothing in what cannot be traded, the rest in proportion to exp(score)."""
    market = random_market(7, bars=BARS)
    learner = agents(market, EnvironmentConfig(window=BARS, envs=1, group=1), "mlp")
    params = {name: view.detach() for name, view in learner.algorithm.parameters.views.items()}
    tradable = torch.tensor([True, False, True])
    held = torch.tensor([[0.2, 0.1, 0.3]], dtype=torch.float64).repeat(3, 1)
    worth = torch.full((3,), 1e6, dtype=torch.float64)
    arguments = (learner.algorithm.actor, params, market.features[9], tradable, held, worth, market.close[9])
    weights = target_weights(*arguments, EnvironmentConfig())
    account = torch.cat([torch.full((3, 1), 0.4, dtype=torch.float64), held], -1).view(3, 1, 1, 4)
    rows = market.features[9].double().expand(3, 1, 3, 2)
    powers = learner.algorithm.policy.forward(params, rows, account, None).mean.detach().view(3, 4).exp()
    powers[:, 2] = 0
    torch.testing.assert_close(weights, (powers / powers.sum(-1, keepdim=True))[:, 1:])
    assert weights.dtype == torch.float64
    assert torch.equal(weights, target_weights(*arguments, EnvironmentConfig()))


def test_members_act_each_on_its_own_account() -> None:
    market = random_market(7, bars=BARS)
    config = EnvironmentConfig(window=BARS, envs=1, group=1)
    learner = agents(market, config, "equivariant")
    params = {name: view.detach() for name, view in learner.algorithm.parameters.views.items()}
    held = torch.tensor([[0.2, 0.1, 0.3], [0.0, 0.0, 0.0], [0.9, 0.0, 0.0]], dtype=torch.float64)
    worth = torch.tensor([1e6, 2e6, 3e6], dtype=torch.float64)
    rest = (market.features[9], market.tradable[9])
    together = target_weights(learner.algorithm.actor, params, *rest, held, worth, market.close[9], config)
    for p in range(3):
        own = {name: value[p : p + 1] for name, value in params.items()}
        alone = target_weights(
            learner.algorithm.actor, own, *rest, held[p : p + 1], worth[p : p + 1], market.close[9], config
        )
        torch.testing.assert_close(together[p : p + 1], alone)
