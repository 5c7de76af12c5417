"""Account inputs besides cash and holdings are equal in training, scoring and deployment."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from finrl_pod_envs.trading_envs import make_env
from finrl_pod_strategies.policy import PolicyStrategy

from finrl_pod.data.tensor import build_market
from finrl_pod.evaluate.backtest import backtest, window_at
from finrl_pod.market.account_extras import account_extras
from finrl_pod.market.execution import MarketPeriod
from finrl_pod.market.rules import rules_of
from finrl_pod.rl.acting import run_members
from finrl_pod.rl.networks.policies import PolicySpec, make_policy
from finrl_pod.settings.run import EnvironmentConfig, GroupConfig, MandateConfig
from finrl_pod.types import AgentSnapshot, MarketTensor, Panel, Positions
from tests.data.panels import panel, random_panel

FEATURES = ("return_1", "return_5")
FIRST, LENGTH = 60, 80
MANDATE = MandateConfig(tilt=2.0, trade_speed=0.4)

# Settings of the environment, and the mandate: name -> (settings, mandate, numbers per asset and per account).
CASES: dict[str, tuple[dict[str, Any], MandateConfig | None, tuple[int, int]]] = {
    "nothing": ({}, None, (0, 0)),
    "moments": ({"reward": "differential_sharpe"}, None, (0, 2)),
    "delay": ({"delay": 3}, None, (2, 0)),
    "delay and moments": ({"delay": 2, "reward": "differential_sharpe"}, None, (1, 2)),
    "mandate": ({}, MANDATE, (0, 0)),
    "moments under a mandate": ({"reward": "differential_sharpe"}, MANDATE, (0, 2)),
    "delay under a mandate": (
        {"delay": 3},
        dataclasses.replace(MANDATE, decide_every=2),
        (2, 0),
    ),
    "turnover budget": ({}, dataclasses.replace(MANDATE, max_turnover=3.0), (0, 1)),
    "few names and groups": (
        {},
        dataclasses.replace(
            MANDATE,
            max_holdings=2,
            min_position=0.3,
            max_group_weight=0.6,
            groups=(GroupConfig("first", ("S0", "S1")), GroupConfig("second", ("S2",))),
        ),
        (1, 0),
    ),
    "whole shares": ({"whole_shares": True}, MANDATE, (1, 0)),
    "everything": (
        {"whole_shares": True, "delay": 2, "reward": "differential_sharpe"},
        dataclasses.replace(MANDATE, max_turnover=5.0),
        (2, 3),
    ),
}


def prices() -> Panel:
    """Four tickers, of which one starts late, on weekdays."""
    source = random_panel(3)
    columns = {name: getattr(source, name)[:, [0, 1, 4, 5]] for name in ("open", "high", "low", "volume")}
    days = np.busday_offset("2020-01-01", np.arange(len(source.times))).astype("datetime64[ns]")
    return dataclasses.replace(panel(source.close[:, [0, 1, 4, 5]], **columns), times=days)


def agent(market: MarketTensor, rules: EnvironmentConfig, mandate: MandateConfig | None, kind: str) -> AgentSnapshot:
    """A saved agent with large random weights, so that it reacts to every input."""
    assets = market.shape[1]
    size, action = (assets + 1, "softmax") if mandate is None else (assets, "tilt")
    per_asset, per_account = account_extras(rules, mandate)
    spec = PolicySpec(
        kind,
        assets,
        len(FEATURES),
        size,
        (8, 8),
        action,
        extra_per_asset=per_asset,
        extra_per_account=per_account,
    )
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: value + 0.5 * torch.randn(value.shape, generator=generator)
        for name, value in make_policy(spec).init(generator, torch.float64).items()
    }
    facts = {
        **dataclasses.asdict(spec),
        "algorithm": "ppo",
        "environment": dataclasses.asdict(rules),
        "mandate": None if mandate is None else dataclasses.asdict(mandate),
    }
    return AgentSnapshot("agent", None, facts, weights, {}, market.normaliser, {}, 0, "", 0, "0")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["equivariant", "linear", "mlp"])
@pytest.mark.parametrize("name", CASES)
def test_deployed_agents_decide_as_in_their_environment(name: str, kind: str) -> None:
    """Target weights of the environment, of the tournament's score, and of the strategy in a backtest."""
    changes, mandate, numbers = CASES[name]
    rules = EnvironmentConfig(envs=1, group=1, window=LENGTH, cost_bps=5.0, **changes)
    assert tuple(account_extras(rules, mandate)) == numbers
    source = prices()
    market = build_market(source, FEATURES, (20, 300))
    strategy = PolicyStrategy([agent(market, rules, mandate, kind)])
    (group,) = strategy.groups
    last = FIRST + LENGTH - 1
    env = make_env(market, rules, first=FIRST, last=last, dtype=torch.float64, mandate=mandate)
    assert tuple(env.extras) == numbers
    day, account = env.reset(0, stagger=False)
    equity = [rules.cash]
    for t in range(FIRST, last + 1):
        assert int(day) == t
        features, tradable = market.features[day].double(), market.tradable[day]
        mask = None if bool(tradable.all()) else tradable
        scores = group.actor.action(group.params, features, account.view(1, 1, 1, -1), mask)
        step = env.step(scores.view(1, 1, -1))
        equity.append(float(step.equity))
        day, account = step.observation
    ledger = run_members(group.actor, group.params, market, rules, FIRST, last + 1, mandate)
    result = backtest(strategy, source, MarketPeriod(market, FIRST, last + 1, rules_of(rules), rules.cash))
    tolerance = {"rtol": 1e-6}
    np.testing.assert_allclose(ledger.equity[:, 0].numpy(), equity, **tolerance)
    np.testing.assert_allclose(result.equity, equity, **tolerance)
    assert result.turnover.sum() > 0.5 or not any(numbers)


def test_actions_depend_on_every_account_input() -> None:
    """Checks that the test above can fail."""
    for name in CASES:
        changes, mandate, numbers = CASES[name]
        if not any(numbers):
            continue
        rules = EnvironmentConfig(**changes)
        market = build_market(prices(), FEATURES, (20, 300))
        for kind in ("equivariant", "mlp"):
            (group,) = PolicyStrategy([agent(market, rules, mandate, kind)]).groups
            features = market.features[None, None, FIRST].double()
            account = torch.full((1, 1, 2, group.actor.spec.own), 0.1, dtype=torch.float64)
            for i in range(5, account.shape[-1]):
                account[0, 0, 1] = account[0, 0, 0]
                account[0, 0, 1, i] += 0.5
                one, other = group.actor.action(group.params, features, account, None)[0, 0]
                assert (one - other).abs().max() > 1e-3, (name, kind, i)


def test_account_history_is_reset_after_a_missed_bar() -> None:
    changes, mandate, _ = CASES["moments"]
    rules, source = EnvironmentConfig(**changes), prices()
    market = build_market(source, FEATURES, (20, 300))
    strategy = PolicyStrategy([agent(market, rules, mandate, "mlp")])

    def decide(strategy: PolicyStrategy, t: int, equity: float) -> np.ndarray[Any, Any]:
        window = window_at(source, t, 10, market.raw_features[t].double().numpy())
        weights = strategy.target_weights(window, Positions(np.full(4, 0.2), 0.2, equity))
        assert weights is not None
        return weights

    fresh = decide(strategy.recreate(), FIRST + 2, 1.3e6)
    followed, interrupted = strategy.recreate(), strategy.recreate()
    for t, equity in ((FIRST, 1e6), (FIRST + 1, 1.2e6)):
        decide(followed, t, equity)
    decide(interrupted, FIRST, 1e6)
    assert np.abs(decide(followed, FIRST + 2, 1.3e6) - fresh).max() > 1e-6
    np.testing.assert_array_equal(decide(interrupted, FIRST + 2, 1.3e6), fresh)


@pytest.mark.parametrize("name", CASES)
def test_a_deployed_agent_continues_from_its_saved_state(name: str) -> None:
    """A strategy that is created again before every decision, and restored from JSON, decides as one that is not."""
    changes, mandate, _ = CASES[name]
    rules, source = EnvironmentConfig(**changes), prices()
    market = build_market(source, FEATURES, (20, 300))
    snapshot = agent(market, rules, mandate, "mlp")
    whole, saved = PolicyStrategy([snapshot]), None
    random = np.random.default_rng(5)
    equity, decisions = 1e6, 0
    for t in range(FIRST, FIRST + 12):
        equity *= 1 + 0.01 * random.normal()
        held = random.dirichlet(np.ones(5))
        positions = Positions(held[:4], float(held[4]), equity)
        window = window_at(source, t, whole.lookback, market.raw_features[t].double().numpy())
        again = PolicyStrategy([snapshot])
        again.restore(saved, source.symbols)
        expected, found = (each.target_weights(window, positions) for each in (whole, again))
        if expected is None or found is None:
            assert expected is found is None
        else:
            np.testing.assert_array_equal(expected, found)
            decisions += 1
        assert whole.state() == again.state()
        saved = json.loads(json.dumps(again.state(), allow_nan=False))
    assert decisions > 4
