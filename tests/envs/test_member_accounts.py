"""Accounts of members through the compiled step against `run_members`, which simulates them bar by bar."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import pytest
import torch
from finrl_pod_envs import member_accounts
from finrl_pod_envs.member_accounts import simulate_ensemble, simulate_members
from finrl_pod_envs.rollout import can_roll_out
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from finrl_pod.evaluate.backtest import AccountCurves, simulate
from finrl_pod.evaluate.metrics import bars_per_year
from finrl_pod.market.account_extras import account_extras
from finrl_pod.market.mandate import (
    MandateBar,
    MandateTable,
    VirtualHoldings,
    decide,
    desired_weights,
    initial_budget,
    scores_of,
    tilted,
)
from finrl_pod.market.rules import rules_of
from finrl_pod.native.prebuild import find_compiler
from finrl_pod.rl.acting import BarActions, DecisionInputs, MeanActor, asset_scores, run_members
from finrl_pod.rl.networks.layers import Params
from finrl_pod.rl.networks.policies import MlpPolicy, PolicySpec
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import MarketTensor, Tensor
from tests.envs.kernel_settings import KERNEL_SETTINGS
from tests.mandates import fitting, mandates, with_random_base
from tests.markets import random_market, turbulent_market

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler")

MEMBERS = 3
BARS = 30
UNCOVERED = (  # by the kernel
    {"delay": 2},
    {"cash_rates": (("2020-01-01", 0.05),)},
    {"participation": 0.1},
    {"per_share": 0.01},
    {"buy_allocation": "sequential"},
)


def members_of(
    market: MarketTensor, config: EnvironmentConfig, mandate: MandateConfig, kind: str, seed: int
) -> tuple[MeanActor, Params]:
    """Members of random weights in float64."""
    assets = market.shape[1]
    tilts = mandate.base != "none"
    per_asset, per_account = account_extras(config, mandate)
    spec = PolicySpec(
        kind,
        assets,
        market.shape[2],
        assets if tilts else assets + 1,
        (16,),
        action="tilt" if tilts else "softmax",
        extra_per_asset=per_asset,
        extra_per_account=per_account,
    )
    actor = MeanActor(spec)
    generator = torch.Generator().manual_seed(seed)
    shapes = actor.policy.init(generator, torch.float64)
    params = {
        name: torch.randn(MEMBERS, *x.shape, generator=generator, dtype=torch.float64) for name, x in shapes.items()
    }
    return actor, params


def check(curves: AccountCurves, expected: AccountCurves, cash: float) -> None:
    assert (curves.first, curves.last) == (expected.first, expected.last)
    torch.testing.assert_close(curves.equity, expected.equity, rtol=1e-9, atol=0, equal_nan=True)
    torch.testing.assert_close(curves.turnover, expected.turnover, rtol=0, atol=1e-9)
    torch.testing.assert_close(curves.costs, expected.costs, rtol=0, atol=1e-9 * cash)
    assert (curves.risk_free is None) == (expected.risk_free is None)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**31 - 1),
    config=st.builds(EnvironmentConfig, kind=st.just("portfolio"), **KERNEL_SETTINGS),
    policy=st.sampled_from(["linear", "mlp", "equivariant"]),
    assets=st.sampled_from([1, 3, 8, 11]),
    gaps=st.booleans(),
    mandate=mandates,
    last=st.sampled_from([20, BARS - 2, BARS - 1]),
)
def test_compiled_accounts_equal_run_members(
    seed: int,
    config: EnvironmentConfig,
    policy: str,
    assets: int,
    gaps: bool,
    mandate: MandateConfig,
    last: int,
) -> None:
    market = turbulent_market(seed, BARS, assets, config.fill, gaps, spreads=True)
    if mandate.base == "random":
        market = with_random_base(market, seed)
    mandate = fitting(mandate, assets)
    actor, params = members_of(market, config, mandate, policy, seed)
    terms = (actor, params, market, config, 4, last, mandate)
    with pytest.MonkeyPatch.context() as patch:
        is_uncovered = member_accounts._differs_in_turmoil(market, config, 4, last, mandate)
        if not is_uncovered:
            patch.setattr(member_accounts, "run_members", lambda *_: pytest.fail("not compiled"))
        curves = simulate_members(*terms)
    check(curves, run_members(*terms), config.cash)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31 - 1),
    fill=st.sampled_from(["next", "same_close"]),
    assets=st.sampled_from([1, 4, 11]),
    gaps=st.booleans(),
    mandate=mandates,
)
def test_compiled_ensemble_equals_decisions_on_the_mean(
    seed: int, fill: Literal["next", "same_close"], assets: int, gaps: bool, mandate: MandateConfig
) -> None:
    market = with_random_base(turbulent_market(seed, BARS, assets, fill, gaps), seed)
    mandate = fitting(dataclasses.replace(mandate, base="random", max_weight=1.0), assets)
    config = EnvironmentConfig(fill=fill, half_spread_bps=5.0)
    actors = [members_of(market, config, mandate, kind, seed) for kind in ("linear", "equivariant")]
    groups = [(actor, params, range(MEMBERS * i, MEMBERS * i + MEMBERS)) for i, (actor, params) in enumerate(actors)]
    shares = np.random.default_rng(seed).dirichlet(np.ones(2 * MEMBERS))
    curves = simulate_ensemble(groups, shares, market, config, 4, BARS - 1, mandate)
    assert curves is not None
    table = MandateTable(market, mandate, bars_per_year(market.times), torch.float64)
    rules = (mandate, 1.0, table.bars_per_year)
    states: list[VirtualHoldings] = []

    def trade(t: int, cash: torch.Tensor, holdings: torch.Tensor) -> torch.Tensor:
        values = holdings * market.close[t]
        held = values / (cash + values.sum(-1)).unsqueeze(-1)
        state = states[-1] if states else VirtualHoldings.initial(held, market.close[t], mandate)
        state = state.moved(market.close[t], 1, mandate, table.bars_per_year)
        extras = None
        if mandate.max_turnover:
            assert state.budget is not None
            extras = (state.budget / initial_budget(mandate)).expand(MEMBERS, 1)
        inputs = DecisionInputs(
            market.features[t : t + 1], market.tradable[t : t + 1], held.expand(MEMBERS, -1), extras
        )
        scores = [asset_scores(actor, params, inputs, config) for actor, params in actors]
        bar = table.at(t)
        target = torch.from_numpy(shares) @ desired_weights(torch.cat(scores), bar, held, *rules)
        decision = decide(target.unsqueeze(0), bar, held, state.weights, state.budget, *rules)
        states.append(VirtualHoldings(decision.virtual, market.close[t], decision.budget))
        return torch.where(decision.trades, decision.weights, held)

    check(curves, simulate(market, trade, 4, BARS - 1, rules_of(config), config.cash), config.cash)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31 - 1),
    config=st.builds(EnvironmentConfig, kind=st.just("portfolio"), **KERNEL_SETTINGS),
    policy=st.sampled_from(["linear", "equivariant"]),
    assets=st.sampled_from([1, 3, 8, 11]),
    gaps=st.booleans(),
    mandate=mandates,
)
def test_rollouts_equal_steps_bar_by_bar(
    seed: int, config: EnvironmentConfig, policy: str, assets: int, gaps: bool, mandate: MandateConfig
) -> None:
    """In float32; without a mandate, with observed budgets and of an ensemble with limits only steps are compiled."""
    last = BARS - 1
    market = turbulent_market(seed, BARS, assets, config.fill, gaps, spreads=True)
    if mandate.base == "random":
        market = with_random_base(market, seed)
    mandate = fitting(mandate, assets)
    actor, params = members_of(market, config, mandate, policy, seed)
    params = {name: x.float() for name, x in params.items()}
    env = member_accounts._compiled_env(market, config, 4, last, mandate, MEMBERS)
    policies = [BarActions(actor, params, market, last - 1)]
    assume(env is not None and can_roll_out(env, policies))
    assert env is not None
    stepped = member_accounts._step_through(policies[0], env, 4, last)
    rolled = member_accounts._roll(env, policies, 4, last)
    assert (rolled is None) == (stepped is None)
    for name in ("equity", "turnover", "costs"):
        assert torch.equal(getattr(rolled, name), getattr(stepped, name))
    account_env = member_accounts._compiled_env(market, config, 4, last, mandate, 1)
    assert account_env is not None
    assert account_env.mandate_table is not None
    assume(member_accounts._can_roll_ensemble(account_env, policies))
    shares = np.random.default_rng(seed).dirichlet(np.ones(MEMBERS))
    groups = [(actor, params, range(MEMBERS))]
    means = member_accounts._EnsembleActions(groups, shares, account_env, account_env.mandate_table, last - 1)
    expected = member_accounts._step_through(means, account_env, 4, last)
    assert expected is not None
    curves = simulate_ensemble(groups, shares, market, config, 4, last, mandate)
    assert curves is not None
    check(curves, expected, config.cash)


def test_an_average_beyond_all_tilts_has_no_scores() -> None:
    bar = MandateBar(torch.full((1, 3), 1 / 3), torch.ones(1, 3, dtype=torch.bool), torch.ones(1, 1, dtype=torch.bool))
    mandate = MandateConfig(tilt=0.5)
    weights = torch.tensor([[0.5, 0.3, 0.2]])
    scores = scores_of(weights, bar, mandate)
    assert scores is not None
    torch.testing.assert_close(tilted(scores, bar, torch.zeros(1, 3), mandate, 1.0), weights)
    assert scores_of(torch.tensor([[0.8, 0.1, 0.1]]), bar, mandate) is None


@pytest.mark.parametrize("changes", UNCOVERED, ids=lambda changes: next(iter(changes)))
def test_other_rules_are_those_of_run_members(changes: dict[str, object]) -> None:
    market = random_market(assets=4, bars=BARS, volumes=True)
    config = dataclasses.replace(EnvironmentConfig(), **changes)  # type: ignore[arg-type]
    mandate = MandateConfig()
    actor, params = members_of(market, config, mandate, "linear", 0)
    terms = (actor, params, market, config, 0, BARS - 1, mandate)
    assert torch.equal(simulate_members(*terms).equity, run_members(*terms).equity)


def test_a_ruined_account_is_not_reset() -> None:
    market = random_market(assets=2, bars=BARS)
    falling = market.close[:1] * 0.7 ** torch.arange(BARS, dtype=torch.float64).unsqueeze(1)
    market = dataclasses.replace(market, close=falling, fill=torch.cat([falling[1:], falling[-1:]]))
    config = EnvironmentConfig()
    mandate = MandateConfig()
    actor, params = members_of(market, config, mandate, "linear", 0)
    terms = (actor, params, market, config, 0, BARS - 1, mandate)
    curves = simulate_members(*terms)
    assert float(curves.equity.min()) < 0.01 * config.cash
    check(curves, run_members(*terms), config.cash)


def test_equity_of_a_member_without_finite_scores_is_nan() -> None:
    market = random_market(assets=4, bars=BARS)
    config = EnvironmentConfig()
    mandate = MandateConfig()
    actor, params = members_of(market, config, mandate, "equivariant", 0)
    params["score_w"][1] = torch.nan  # type: ignore[index]
    terms = (actor, params, market, config, 0, BARS - 1, mandate)
    curves = simulate_members(*terms)
    assert curves.equity.isnan().all(0).tolist() == [False, True, False]
    others = run_members(*terms)
    torch.testing.assert_close(curves.equity, others.equity, rtol=1e-9, atol=0, equal_nan=True)


def test_a_policy_derived_from_a_built_in_one_acts_by_its_own_mean() -> None:
    class Opposite(MlpPolicy):
        def mean(self, params: Params, features: Tensor, account: Tensor, tradable: Tensor | None) -> Tensor:
            return -super().mean(params, features, account, tradable)

    market = random_market(seed=1)
    actor, params = members_of(market, EnvironmentConfig(), MandateConfig(), "mlp", 0)
    features = torch.randn(MEMBERS, 2, market.shape[1], market.shape[2], dtype=torch.float64)
    assert actor.market_part(params, features, None) is not None
    actor.policy = Opposite(actor.spec)
    assert actor.market_part(params, features, None) is None
