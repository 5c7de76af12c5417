"""The league: who acts by which champion, priorities, and self-play towards an equilibrium."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from finrl_pod_app.multi_agent.training import execution_trades, exploitability
from finrl_pod_envs.multi_agent.execution import ExecutionMarket

from finrl_pod.errors import ConfigError
from finrl_pod.rl.multi_agent.training import JointPolicy, League, LeagueView, default_ppo, layout_of, train_agents
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import PPOConfig
from finrl_pod.settings.multi_agent import ExecutionMarketConfig

CONFIG = ExecutionMarketConfig(
    orders=(1.0, 0.0), permanent=3.0, temporary=1.0, horizon=1.0, steps=6, volatility=1.0, risk_aversion=0.0,
    max_rate=2.0,
)  # fmt: skip
AGENT = default_ppo(hidden=(8,), horizon=6, minibatches=2)


def market(members: int = 2, envs: int = 8) -> ExecutionMarket:
    return ExecutionMarket(CONFIG, envs=envs, members=tuple(range(members)))


def make(envs: int = 8, config: PPOConfig = AGENT, samples: int = 400, generations: int = 2) -> League:
    view = LeagueView(market(envs=envs), seed=1)
    return League(view, Learner(view, config, seed=1), samples=samples, generations=generations)


def learn(league: League) -> None:
    league.learner.learn(league.samples, callback=lambda *_: league.advance(), schedule=league.rate)


def test_opponents_act_by_the_champion_that_was_drawn_for_them() -> None:
    league = make()
    for generation in (1, 2):  # champions with other weights
        weights = {name: x + 0.3 * generation for name, x in league.learner.algorithm.weights().items()}
        league.view.add(weights, league.learner.algorithm.spec)
    view = league.view
    view.reset(0)
    assert view._opponent.unique().numel() == 3
    joint = view._champion_actions(view._joint)
    for copy in range(2):
        for e in range(8):
            for seat in range(2):
                champion = view.champions[int(view._opponent[copy, e, seat])]
                own = view._joint.own[copy, e, seat].view(1, 1, 1, -1)
                weights = {name: x[seat : seat + 1] for name, x in champion.items()}
                assert view._actor is not None
                action = view._actor.action(weights, own.new_zeros(1, 1, 0, 0), own, None)
                torch.testing.assert_close(joint[copy, e, seat], action.flatten())


def test_harder_champions_are_drawn_more() -> None:
    league = make(envs=2000)
    league.view.add(league.learner.algorithm.weights(), league.learner.algorithm.spec)
    league.view.returns = torch.tensor([[0.0, -1.0], [-1.0, 0.0]])
    league.view.reset(0)
    share = (league.view._opponent == 1).float().mean((1, 2))
    assert 0.7 < float(share[0]) < 0.8  # a quarter by the uniform share, half by the gap
    assert 0.2 < float(share[1]) < 0.3


@pytest.mark.slow
def test_self_play_leaves_little_to_gain_by_a_best_response() -> None:
    config = default_ppo(hidden=(16,), horizon=6, gae_lambda=1.0, minibatches=4)
    league = make(256, config, 60_000, generations=4)
    policy = JointPolicy(league.learner, layout_of(market(1, 1), "league", shared=False))
    before = exploitability(*(x[0] for x in execution_trades(policy, market(1, 1))), market(1, 1))
    learn(league)
    orders, trades = execution_trades(policy, market(1, 1))
    after = exploitability(orders[0], trades[0], market(1, 1))
    assert len(league.view.champions) == 5
    assert np.max(before) > 0.03
    assert np.max(after) < 0.02


def test_a_market_without_a_member_for_each_seat_is_refused() -> None:
    with pytest.raises(ConfigError, match="a member for each of its 2 agents"):
        train_agents(market(1), "league", AGENT, samples=100)


@pytest.mark.slow
def test_learning_rates_follow_the_schedule() -> None:
    weights = []
    for schedule in ("linear", "constant"):
        league = make(config=dataclasses.replace(AGENT, learning_rate_schedule=schedule))
        learn(league)
        weights.append(league.learner.algorithm.weights())
    assert any(not torch.equal(weights[0][name], x) for name, x in weights[1].items())
