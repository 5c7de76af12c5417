"""Trained agents as a strategy: their backtest equals the tournament's scores and the environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from finrl_pod_strategies.policy import PolicyStrategy
from finrl_pod_strategies.scheduled import ScheduledStrategy

from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError, RunError
from finrl_pod.evaluate.backtest import Ledger, backtest, simulate, window_at
from finrl_pod.market.execution import MarketPeriod
from finrl_pod.market.rules import rules_of
from finrl_pod.rl.acting import MeanActor, run_members
from finrl_pod.rl.networks.inputs import make_lookback_encoder
from finrl_pod.rl.networks.policies import PolicySpec, make_policy
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import AgentSnapshot, MarketTensor, Panel, Positions
from tests.data.panels import END, panel, random_panel

FEATURES = ("return_1", "return_5", "volatility_21")
FIT, FIRST, LAST = (60, 250), 300, 400

RULES = {
    "portfolio": EnvironmentConfig(),
    "with shorts": EnvironmentConfig(short=True, leverage=1.5),
    "borrowed": EnvironmentConfig(leverage=1.5, cost_bps=3.0),
    "shares": EnvironmentConfig(kind="stock_trading", hmax=3_000.0),
    "whole shares": EnvironmentConfig(kind="stock_trading", hmax=3_000.0, whole_shares=True),
    "shares with shorts": EnvironmentConfig(kind="stock_trading", hmax=3_000.0, short=True),
    "calm": EnvironmentConfig(turbulence_limit=8.0),
    "same close": EnvironmentConfig(fill="same_close"),
}


def prices() -> Panel:
    """Six tickers: one is delisted, one has gaps, one is listed late."""
    return random_panel(3)


def market_of(source: Panel, rules: EnvironmentConfig) -> MarketTensor:
    return build_market(source, FEATURES, FIT, rules.fill, turbulence=rules.turbulence_limit > 0)


def agent(
    market: MarketTensor,
    rules: EnvironmentConfig,
    seed: int = 0,
    kind: str = "equivariant",
    encoder: str = "none",
    **changes: Any,
) -> AgentSnapshot:
    """A saved agent with large random weights, so that it trades. With an encoder it reads 40 bars."""
    assets = market.shape[1]
    size = assets if rules.kind == "stock_trading" else assets + 1
    action = "softmax" if rules.kind == "portfolio" and not rules.short else "direct"
    past = ("none", 1, 0) if encoder == "none" else (encoder, 40, 4)
    spec = PolicySpec(kind, assets, len(market.feature_names), size, (8, 8), action, "tanh", *past)
    generator = torch.Generator().manual_seed(seed)
    weights = make_policy(spec).init(generator, torch.float32)
    if lookback := make_lookback_encoder(spec):
        weights |= lookback.init(generator, torch.float32)
    weights = {name: value + 0.5 * torch.randn(value.shape, generator=generator) for name, value in weights.items()}
    facts = {**dataclasses.asdict(spec), "algorithm": "ppo", "environment": dataclasses.asdict(rules)}
    facts["mandate"] = None
    values: dict[str, Any] = {
        "id": f"g00s{seed:02d}", "parent": None, "spec": facts, "weights": weights, "optimiser": {},
        "normaliser": market.normaliser, "hyperparameters": {}, "samples": 0, "data_sha256": "", "seed": 0,
        "version": "0",
    }  # fmt: skip
    return AgentSnapshot(**{**values, **changes})


def scored(agents: Sequence[AgentSnapshot], market: MarketTensor, rules: EnvironmentConfig) -> Ledger:
    """Equity of these agents as the tournament computes it."""
    (group,) = PolicyStrategy(agents).groups
    return run_members(group.actor, group.params, market, rules, FIRST, LAST)


def backtest_result(strategy: PolicyStrategy, source: Panel, rules: EnvironmentConfig) -> Any:
    market = build_market(source, strategy.feature_names, (0, len(source.times) - 1), rules.fill)
    return backtest(strategy, source, MarketPeriod(market, FIRST, LAST, rules_of(rules), rules.cash))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["equivariant", "linear", "mlp"])
@pytest.mark.parametrize("name", RULES)
def test_backtest_equals_the_tournaments_score(name: str, kind: str) -> None:
    rules, source = RULES[name], prices()
    market = market_of(source, rules)
    single = agent(market, rules, kind=kind)
    ledger = scored([single], market, rules)
    result = backtest_result(PolicyStrategy([single]), source, rules)
    np.testing.assert_allclose(result.equity, ledger.equity[:, 0].numpy(), rtol=1e-9)
    np.testing.assert_allclose(result.weights, ledger.weights[:, 0].numpy(), atol=1e-9)
    assert result.turnover.sum() > 0.5
    assert len(np.unique(result.equity)) > 50


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["equivariant", "linear", "mlp"])
def test_backtest_of_a_look_back_agent_equals_the_tournaments_score(kind: str) -> None:
    """Also on the first bars, whose windows are shorter than the encoder's."""
    rules, source = RULES["portfolio"], prices()
    market = market_of(source, rules)
    single = agent(market, rules, kind=kind, encoder="gru")
    strategy = PolicyStrategy([single])
    assert (strategy.lookback, strategy.feature_lookback) == (40, 40)
    (group,) = strategy.groups
    ledger = run_members(group.actor, group.params, market, rules, 5, LAST)
    result = backtest(strategy, source, MarketPeriod(market, 5, LAST, rules_of(rules), rules.cash))
    np.testing.assert_allclose(result.equity, ledger.equity[:, 0].numpy(), rtol=1e-9)
    plain = {name: x if "lookback" not in name else torch.zeros_like(x) for name, x in group.params.items()}
    without = run_members(group.actor, plain, market, rules, 5, LAST)
    assert not np.allclose(result.equity, without.equity[:, 0].numpy()), "the past decides too"


def test_agents_with_and_without_encoders_form_an_ensemble() -> None:
    rules, source = RULES["portfolio"], prices()
    market = market_of(source, rules)
    agents = [agent(market, rules, seed, encoder=kind) for seed, kind in enumerate(("none", "gru", "gru"))]
    held = Positions(np.array([0.1, 0.2, 0.0, 0.3, 0.1, 0.1]), 0.2, 1e6)
    rows = market.raw_features[281:321].double().numpy()
    window = window_at(source, 320, 40, rows)
    last_bar = window_at(source, 320, 1, rows[-1])
    member_weights = [PolicyStrategy([member]).target_weights(window, held) for member in agents]
    np.testing.assert_array_equal(member_weights[0], PolicyStrategy([agents[0]]).target_weights(last_bar, held))
    np.testing.assert_allclose(
        PolicyStrategy(agents).target_weights(window, held), np.mean(member_weights, axis=0), rtol=1e-5
    )
    schedule = [(source.times[0], PolicyStrategy(agents[1:])), (source.times[320], PolicyStrategy(agents[:1]))]
    scheduled = ScheduledStrategy(schedule)
    assert scheduled.feature_lookback == 40
    np.testing.assert_array_equal(scheduled.target_weights(window, held), member_weights[0])


def test_batched_members_equal_single_members() -> None:
    rules = RULES["portfolio"]
    market = market_of(prices(), rules)
    agents = [agent(market, rules, seed) for seed in range(3)]
    together = scored(agents, market, rules)
    for p, member in enumerate(agents):
        np.testing.assert_allclose(
            together.equity[:, p].numpy(), scored([member], market, rules).equity[:, 0].numpy(), rtol=1e-6
        )


@pytest.mark.parametrize("shares", [None, (0.7, 0.2, 0.1)])
def test_ensemble_averages_its_members(shares: tuple[float, ...] | None) -> None:
    rules, source = RULES["portfolio"], prices()
    market = market_of(source, rules)
    agents = [agent(market, rules, seed) for seed in range(3)]
    ensemble, singles = PolicyStrategy(agents, shares), [PolicyStrategy([member]) for member in agents]
    window = window_at(source, 320, 1, market.raw_features[320].double().numpy())
    held = Positions(np.array([0.1, 0.2, 0.0, 0.3, 0.1, 0.1]), 0.2, 1e6)
    member_weights = np.array([strategy.target_weights(window, held) for strategy in singles])
    expected = np.average(member_weights, axis=0, weights=shares)
    assert np.ptp(member_weights, axis=0).max() > 0.05
    np.testing.assert_allclose(ensemble.target_weights(window, held), expected, rtol=1e-5)


def test_members_of_different_kinds_form_an_ensemble() -> None:
    """Each group of members is one batch, and shares are those of the members, in any order."""
    rules, source, shares = RULES["portfolio"], prices(), (0.5, 0.2, 0.2, 0.1)
    market = market_of(source, rules)
    kinds = ("mlp", "equivariant", "mlp", "equivariant")
    agents = [agent(market, rules, seed, kind=kind) for seed, kind in enumerate(kinds)]
    window = window_at(source, 320, 1, market.raw_features[320].double().numpy())
    held = Positions(np.array([0.1, 0.2, 0.0, 0.3, 0.1, 0.1]), 0.2, 1e6)
    member_weights = np.array([PolicyStrategy([member]).target_weights(window, held) for member in agents])
    ensemble = PolicyStrategy(agents, shares)
    assert [group.members for group in ensemble.groups] == [[0, 2], [1, 3]]
    np.testing.assert_allclose(
        ensemble.target_weights(window, held), np.average(member_weights, axis=0, weights=shares), rtol=1e-5
    )


def test_decisions_depend_on_the_account() -> None:
    rules, source = RULES["portfolio"], prices()
    market = market_of(source, rules)
    strategy = PolicyStrategy([agent(market, rules)])
    window = window_at(source, 320, 1, market.raw_features[320].double().numpy())
    cash = strategy.target_weights(window, Positions(np.zeros(6), 1.0, 1e6))
    full = strategy.target_weights(window, Positions(np.eye(6)[0], 0.0, 1e6))
    assert cash is not None
    assert full is not None
    assert np.abs(cash - full).max() > 0.01


@pytest.mark.parametrize("name", ["portfolio", "with shorts"])
def test_assets_without_a_price_have_zero_weight(name: str) -> None:
    rules, source = RULES[name], prices()
    market = market_of(source, rules)
    strategy = PolicyStrategy([agent(market, rules)])
    checked = 0
    for t in range(FIRST, LAST):
        window = window_at(source, t, 1, market.raw_features[t].double().numpy())
        weights = strategy.target_weights(window, Positions(np.zeros(6), 1.0, 1e6))
        assert weights is not None
        unavailable = ~source.tradable[t]
        assert (weights[unavailable] == 0).all()
        assert np.isfinite(weights).all()
        checked += int(unavailable.sum())
    assert checked >= LAST - END - 1


def test_untradable_holdings_are_kept_outside_the_limit() -> None:
    """Shorts at full leverage: a target for an asset without a price must not shrink the others' trades."""
    rules = EnvironmentConfig(kind="stock_trading", hmax=1e6, short=True)
    source = prices()
    market = market_of(source, rules)
    strategy = PolicyStrategy([agent(market, rules)])
    t = next(t for t in range(FIRST, LAST) if not source.tradable[t, 3] and source.tradable[t, :3].all())
    window = window_at(source, t, 1, market.raw_features[t].double().numpy())
    held = np.zeros(6)
    held[3] = 0.25
    weights = strategy.target_weights(window, Positions(held, 0.75, 1e6))
    assert weights is not None
    assert weights[3] == pytest.approx(0.25)
    # All of the leverage is used by assets that are held or tradable.
    assert np.abs(weights).sum() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("limit", [4.0, 8.0])
def test_everything_is_sold_above_the_turbulence_limit(limit: float) -> None:
    rules, source = EnvironmentConfig(turbulence_limit=limit), prices()
    market = market_of(source, rules)
    strategy = PolicyStrategy([agent(market, rules)])
    assert strategy.feature_names == (*FEATURES, "turbulence")
    result = backtest_result(strategy, source, rules)
    assert market.turbulence is not None
    turbulent = market.turbulence[FIRST:LAST].numpy() > limit  # decided at t, held from the fill of t + 1 on
    assert 3 < turbulent.sum() < LAST - FIRST
    stuck = (source.tradable[FIRST:LAST] & ~source.tradable[FIRST + 1 : LAST + 1]).any(1)  # cannot fill at t + 1
    stuck |= ~source.tradable[FIRST:LAST, 3]  # the asset with gaps may be held through a gap
    assert (result.weights[1:][turbulent & ~stuck] == 0).all()
    assert (np.abs(result.weights[1:]).sum(1)[~turbulent] > 0).all()


def test_environment_applies_the_same_turbulence_limit() -> None:
    from finrl_pod_envs.trading_envs import make_env

    source = panel(random_panel(4).close[:, [0, 4, 5]])
    rules = EnvironmentConfig(turbulence_limit=5.0, envs=1, group=1, window=90)
    market = market_of(source, rules)
    assert market.turbulence is not None
    env = make_env(market, rules, first=FIRST, last=FIRST + 89)
    observation = env.reset(0, stagger=False)
    result = backtest_result(PolicyStrategy([agent(market, rules)]), source, rules)
    turbulent = market.turbulence > rules.turbulence_limit
    scores = torch.tensor([[[-4.0, 1.0, 1.0, 1.0]]])
    for t in range(FIRST, FIRST + 89):
        assert int(observation.bar) == t
        observation = env.step(scores).observation
        held = float(observation.account[0, 0, 1:].sum())
        assert (held == 0) == bool(turbulent[t])
        assert (result.weights[t + 1 - FIRST].sum() == 0) == bool(turbulent[t])


SAME_CLOSE = {
    "portfolio": {},
    "with shorts": {"short": True, "leverage": 1.5},
    "shares": {"kind": "stock_trading", "hmax": 3_000.0},
    "shares in FinRL's order": {"kind": "stock_trading", "hmax": 3_000.0, "buy_allocation": "sequential"},
    # Far from the limit: if prices move an account beyond it, only the backtest reduces positions.
    "shares with shorts": {"kind": "stock_trading", "hmax": 300.0, "short": True, "leverage": 4.0},
    "half invested": {"kind": "stock_trading", "hmax": 3_000.0, "leverage": 0.5},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAME_CLOSE)
def test_backtest_equals_the_environment(name: str) -> None:
    """Filled at the observed close, an agent's account is the same in its environment and in the backtest.

    But for tickers that end: an environment spends the proceeds of the forced sale at once, a strategy a bar later.
    """
    from finrl_pod_envs.trading_envs import make_env

    length = 90
    rules = EnvironmentConfig(**{"fill": "same_close", "envs": 1, "group": 1, "window": length, **SAME_CLOSE[name]})  # type: ignore[arg-type]
    source = panel(random_panel(3).close[:, [0, 1, 3, 4, 5]])
    market = market_of(source, rules)
    strategy = PolicyStrategy([agent(market, rules)])
    (group,) = strategy.groups
    env = make_env(market, rules, first=FIRST, last=FIRST + length - 1, dtype=torch.float64)
    bar, account = env.reset(0, stagger=False)
    equity = [rules.cash]
    for t in range(FIRST, FIRST + length):
        assert int(bar) == t
        features, tradable = market.features[t][None, None], market.tradable[t][None, None]
        action = group.actor.action(group.params, features, account.float().view(1, 1, 1, -1), tradable)
        out = env.step(action.view(1, 1, -1))
        bar, account = out.observation
        equity.append(float(out.equity))
    result = backtest(strategy, source, MarketPeriod(market, FIRST, FIRST + length, rules_of(rules), rules.cash))
    # The engine marks a bar's equity after its fill, the environment before it: the costs of a bar lie between them.
    before = result.equity[1:] + result.costs[1:]
    np.testing.assert_allclose(before, equity[1:], rtol=2e-5)
    assert result.costs.sum() > 100


def test_equivariant_agent_trades_another_number_of_symbols() -> None:
    rules = RULES["portfolio"]
    trained = agent(market_of(prices(), rules), rules)
    few = panel(random_panel(8).close[:, [0, 4, 5]])
    strategy = PolicyStrategy([trained])
    strategy.check_universe(few.symbols)
    result = backtest_result(strategy, few, rules)
    assert result.weights.shape == (LAST - FIRST + 1, 3)
    assert result.turnover.sum() > 0.5


def test_equivariant_agent_ignores_the_order_of_symbols() -> None:
    rules, order = RULES["portfolio"], [5, 4, 0]
    close = random_panel(8).close
    strategy = PolicyStrategy([agent(market_of(prices(), rules), rules)])
    one = backtest_result(strategy, panel(close[:, [0, 4, 5]]), rules)
    other = backtest_result(strategy, panel(close[:, order]), rules)
    np.testing.assert_allclose(other.equity, one.equity, rtol=1e-5)
    np.testing.assert_allclose(other.weights[:, ::-1], one.weights, atol=1e-5)


def test_mlp_refuses_another_number_of_symbols() -> None:
    rules = RULES["portfolio"]
    strategy = PolicyStrategy([agent(market_of(prices(), rules), rules, kind="mlp")], name="mine")
    strategy.check_universe(["A"] * 6)
    with pytest.raises(
        RunError, match=r"mine was trained on 6 symbols .* got 3; train an equivariant or linear policy"
    ):
        strategy.check_universe(["A", "B", "C"])


def test_mismatched_agents_are_refused() -> None:
    rules = RULES["portfolio"]
    market = market_of(prices(), rules)
    one = agent(market, rules)
    with pytest.raises(RunError, match="at least one agent"):
        PolicyStrategy([])
    other_norm = dataclasses.replace(market.normaliser, clip=5.0)
    for other in (
        agent(market, rules, 1, normaliser=other_norm),
        agent(market, EnvironmentConfig(leverage=2.0), 1),
    ):
        with pytest.raises(RunError, match="agents g00s00 and g00s01 cannot form an ensemble"):
            PolicyStrategy([one, other])


def test_market_without_the_features_is_refused() -> None:
    rules, source = RULES["portfolio"], prices()
    strategy = PolicyStrategy([agent(market_of(source, rules), rules)])
    bare = build_market(source, ("return_1",), FIT)
    with pytest.raises(InputError, match="needs the features return_5, volatility_21"):
        backtest(strategy, source, MarketPeriod(bare, FIRST, LAST, rules_of(rules), 1e6))
    with pytest.raises(RunError, match="needs the features of the decision bar"):
        strategy.target_weights(window_at(source, 320, 1), Positions(np.zeros(6), 1.0, 1e6))


def test_saved_agents_make_the_same_decisions(tmp_path: Any) -> None:
    from finrl_pod.tournament import snapshots

    rules, source = RULES["portfolio"], prices()
    original = agent(market_of(source, rules), rules)
    loaded = snapshots.load(snapshots.save(tmp_path, original))
    ensemble = PolicyStrategy([original, loaded])  # an agent in memory and a loaded one have the same kind
    np.testing.assert_array_equal(
        backtest_result(PolicyStrategy([loaded]), source, rules).equity,
        backtest_result(PolicyStrategy([original]), source, rules).equity,
    )
    assert ensemble.ensemble_weights.tolist() == [0.5, 0.5]


def test_run_members_equals_manual_decisions() -> None:
    """`run_members` equals equal weights passed to the engine directly."""
    rules = RULES["portfolio"]
    market = market_of(panel(random_panel(4).close[:, [0, 4, 5]]), rules)
    spec = PolicySpec("equivariant", 3, 3, 4, (4, 4))
    initial = make_policy(spec).init(torch.Generator(), torch.float32)
    params = {name: torch.zeros(1, *value.shape) for name, value in initial.items()}
    ledger = run_members(MeanActor(spec), params, market, rules, FIRST, LAST)
    quarter = torch.full((1, 3), 0.25, dtype=torch.float64)
    expected = simulate(market, lambda t, cash, shares: quarter, FIRST, LAST, rules_of(rules), rules.cash)
    np.testing.assert_allclose(ledger.equity.numpy(), expected.equity.numpy(), rtol=1e-6)


def test_agent_of_another_version_is_refused() -> None:
    market = market_of(prices(), RULES["portfolio"])
    saved = agent(market, RULES["portfolio"])
    for spec in (
        {name: value for name, value in saved.spec.items() if name != "action"},
        {**saved.spec, "environment": {"kind": "portfolio", "unknown": 1}},
    ):
        with pytest.raises(RunError, match="cannot read; train it again"):
            PolicyStrategy([dataclasses.replace(saved, spec=spec)])
