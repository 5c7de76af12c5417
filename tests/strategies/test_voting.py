"""Votes on discrete actions and on weights, against numpy and counting, and in ensembles."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from finrl_pod_envs.trading_envs import make_env
from finrl_pod_strategies.policy import PolicyStrategy, majority, median_weights
from hypothesis import given
from hypothesis import strategies as st

from finrl_pod.evaluate.backtest import window_at
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import DQNConfig
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import Positions
from tests.strategies.test_policy import FIT, RULES, agent, market_of, prices

HELD = Positions(np.array([0.1, 0.2, 0.0, 0.3, 0.1, 0.1]), 0.2, 1e6)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9))
def test_majority_wins_and_ties_go_to_the_first_member(choices: list[int]) -> None:
    counted = Counter(choices)
    most = max(counted.values())
    expected = next(choice for choice in choices if counted[choice] == most)
    assert majority(choices, np.full(len(choices), 1 / len(choices))) == expected


def test_votes_count_with_their_share() -> None:
    assert majority([3, 1, 1], np.array([0.6, 0.2, 0.2])) == 3
    assert majority([3, 1, 1], np.array([0.4, 0.3, 0.3])) == 1


@given(st.integers(1, 7), st.integers(0, 2**31 - 1))
def test_equal_shares_give_the_median(members: int, seed: int) -> None:
    weights = np.random.default_rng(seed).dirichlet(np.ones(5), members)[:, :4]
    median, shares = np.median(weights, 0), np.full(members, 1 / members)
    most = weights.sum(1).max()
    np.testing.assert_allclose(median_weights(weights, shares), median * min(1, most / median.sum()), rtol=1e-12)


def test_shares_are_weights_of_the_median() -> None:
    weights = np.array([[0.1, 0.5], [0.2, 0.1], [0.4, 0.3]])
    repeated = np.median(weights[[0, 1, 1, 2, 2, 2]], 0)
    np.testing.assert_allclose(median_weights(weights, np.array([1, 2, 3]) / 6), repeated)


def test_medians_never_exceed_the_largest_gross_exposure() -> None:
    weights = np.array([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5]])
    np.testing.assert_allclose(median_weights(weights, np.full(3, 1 / 3)), np.full(3, 1 / 3))
    short = np.array([[-0.6, 0.4], [-0.6, 0.4], [0.2, 0.1]])
    np.testing.assert_allclose(median_weights(short, np.full(3, 1 / 3)), [-0.6, 0.4])


def test_ensemble_votes_on_weights() -> None:
    rules, source = RULES["portfolio"], prices()
    market = market_of(source, rules)
    agents = [agent(market, rules, seed, kind=kind) for seed, kind in enumerate(("mlp", "equivariant", "mlp"))]
    window = window_at(source, 320, 1, market.raw_features[320].double().numpy())
    member_weights = np.array([PolicyStrategy([member]).target_weights(window, HELD) for member in agents])
    voted = PolicyStrategy(agents, rule="vote").target_weights(window, HELD)
    assert voted is not None
    np.testing.assert_allclose(voted, median_weights(member_weights, np.full(3, 1 / 3)), rtol=1e-5)
    assert np.abs(voted - member_weights.mean(0)).max() > 1e-3


def test_discrete_ensemble_takes_the_majority_action() -> None:
    rules, source = EnvironmentConfig(kind="discrete", envs=8, group=4, window=40), prices()
    market = market_of(source, rules)
    env = make_env(market, rules, first=FIT[0], last=FIT[1])
    config = DQNConfig(hidden=(8, 8), buffer_size=1000)
    agents = [Learner(env, config, seed=seed).snapshot(id=f"g00s{seed:02d}") for seed in range(2)]
    three_members = [agents[0], dataclasses.replace(agents[0], id="again"), agents[1]]
    disagreements = 0
    for t in range(300, 330):
        window = window_at(source, t, 1, market.raw_features[t].double().numpy())
        one, other = (PolicyStrategy([member]).target_weights(window, HELD) for member in agents)
        voted = PolicyStrategy(three_members, rule="vote").target_weights(window, HELD)
        assert one is not None
        assert other is not None
        disagreements += not np.allclose(one, other)
        np.testing.assert_allclose(voted, one, rtol=1e-9)
        reweighted = PolicyStrategy(three_members, (0.2, 0.2, 0.6), rule="vote").target_weights(window, HELD)
        np.testing.assert_allclose(reweighted, other, rtol=1e-9)
    assert disagreements > 0, "the test needs agents that disagree"


@pytest.mark.parametrize("rule", ["mean", "vote"])
def test_single_member_equals_itself_under_any_rule(rule: str) -> None:
    rules, source = RULES["portfolio"], prices()
    market = market_of(source, rules)
    window = window_at(source, 320, 1, market.raw_features[320].double().numpy())
    single = agent(market, rules)
    expected = PolicyStrategy([single]).target_weights(window, HELD)
    np.testing.assert_allclose(PolicyStrategy([single], rule=rule).target_weights(window, HELD), expected)  # type: ignore[arg-type]
