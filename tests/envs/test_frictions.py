"""Costs, volume limits, interest, fees, delistings and delays are the same in environments and in backtests."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from finrl_pod_envs.trading_envs import make_env
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.errors import ConfigError, InputError
from finrl_pod.evaluate.backtest import simulate
from finrl_pod.evaluate.variations import Job, simulate_recorded
from finrl_pod.market.rules import rules_of
from finrl_pod.market.venue import Venue
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import MarketTensor
from tests.markets import random_market

STEPS = 14
configs = st.builds(
    EnvironmentConfig,
    fill=st.sampled_from(["next", "same_close"]),
    cost_bps=st.sampled_from([0.0, 10.0]),
    half_spread=st.sampled_from(["constant", "from data"]),
    half_spread_bps=st.sampled_from([0.0, 5.0]),
    per_share=st.sampled_from([0.0, 0.05]),
    per_share_minimum=st.sampled_from([0.0, 2.0]),
    impact=st.sampled_from([0.0, 1.0]),
    participation=st.sampled_from([0.05, 1.0]),
    borrow_fee=st.sampled_from([0.0, 0.1]),
    delisting_return=st.sampled_from([0.0, -0.3, -1.0]),
    cash_rates=st.sampled_from([(), (("2020-01-03", 0.05), ("2020-01-09", -0.01))]),
    delay=st.sampled_from([1, 2, 4]),
    turbulence_limit=st.sampled_from([0.0, 0.8]),
    short=st.booleans(),
    leverage=st.sampled_from([0.5, 1.0, 1.5]),
    window=st.just(STEPS),
    envs=st.just(1),
    group=st.just(1),
)
seeds = st.integers(0, 2**31 - 1)


def market_for(seed: int, config: EnvironmentConfig) -> MarketTensor:
    gaps = {"gaps": 0.1, "ends": {0: 9}, "starts": {1: 6}}
    turbulence = np.random.default_rng(seed).random(22)
    options = {
        "fill": config.fill,
        "opens": seed % 2 == 0,
        "volumes": True,
        "spreads": True,
        "dividends": seed % 3 == 0,
        "volatility": 0.03,
        "turbulence": turbulence,
    }
    return random_market(seed, bars=22, **options, **gaps)


def weights_of(action: torch.Tensor, tradable: torch.Tensor, config: EnvironmentConfig) -> torch.Tensor:
    """Independent implementation of the mapping from scores to weights."""
    score = action.double()
    if config.short:
        assets = score[1:] * tradable
        return assets * config.leverage / max(float(assets.abs().sum()), config.leverage)
    exponentials = score.exp()
    exponentials[1:] *= tradable
    return exponentials[1:] / exponentials.sum() * config.leverage


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(seed=seeds, config=configs)
def test_environment_and_backtest_have_the_same_equity_and_costs(seed: int, config: EnvironmentConfig) -> None:
    if config.half_spread == "from data":
        config = dataclasses.replace(config, half_spread_bps=0.0)
    if config.fill == "same_close":
        # The two value a delisting at the same close one bar apart; it is tested separately.
        config = dataclasses.replace(config, delay=1, delisting_return=0.0)
    market = market_for(seed, config)
    env = make_env(market, config, dtype=torch.float64)
    single = make_env(market, config)
    first = int(env.reset(seed, stagger=False).bar[0, 0])
    assert int(single.reset(seed, stagger=False).bar[0, 0]) == first
    noise = torch.randn(STEPS, 1, 1, env.action_size, generator=torch.Generator().manual_seed(seed)) * 2
    outcomes = [(env.step(action.double()), single.step(action)) for action in noise]

    turbulence = market.turbulence
    assert turbulence is not None

    def decide(t: int, cash: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        weights = weights_of(noise[t - first, 0, 0], market.tradable[t], config).unsqueeze(0)
        return (
            torch.zeros_like(weights)
            if config.turbulence_limit and turbulence[t] > config.turbulence_limit
            else weights
        )

    ledger = simulate(market, decide, first, first + STEPS, env.rules, config.cash)
    shift = 0 if config.fill == "same_close" else 1
    expected_costs = ledger.costs[shift : shift + STEPS, 0]
    # With same_close fills the backtest values a trade at bar t, after costs; the environment one bar later.
    expected_equity = ledger.equity[1:, 0] + (ledger.costs[1:, 0] if config.fill == "same_close" else 0.0)
    for t, (in_float64, in_float32) in enumerate(outcomes):
        if bool(in_float64.terminated):
            break  # the environment resets, the backtest continues
        equity, costs = expected_equity[t].item(), expected_costs[t].item()
        assert in_float64.equity.item() == pytest.approx(equity, rel=1e-9)
        assert in_float64.cost.item() == pytest.approx(costs, abs=1e-9 * abs(equity))
        # An order close to the minimum order size may pay its minimum fee in one dtype only.
        assert in_float32.equity.item() == pytest.approx(equity, rel=2e-5, abs=3 * config.per_share_minimum)
    if ledger.cost_parts:
        total = torch.stack(list(ledger.cost_parts.values())).sum(0)
        assert torch.allclose(total, ledger.costs, rtol=1e-9, atol=1e-6 * config.cash * 1e-3)


def make_config(changes: dict[str, Any] | None = None) -> EnvironmentConfig:
    return EnvironmentConfig(**{"cost_bps": 0.0, "cash": 1000.0, "window": 8, "envs": 1, "group": 1, **(changes or {})})


def test_rewards_include_interest_on_cash() -> None:
    market = random_market(3, bars=12)
    config = make_config({"cash_rates": (("2019-01-01", 0.365),), "window": 9})
    env = make_env(market, config, dtype=torch.float64)
    env.reset(0, stagger=False)
    outcome = [env.step(torch.tensor([[[50.0, 0.0, 0.0, 0.0]]], dtype=torch.float64)) for _ in range(9)]
    # All in cash at 0.1% per day: each reward is one day's interest.
    assert [o.reward.item() for o in outcome] == pytest.approx([np.log(1.001)] * 9)
    assert outcome[-1].equity.item() == pytest.approx(1000 * 1.001**9)


def test_costs_by_era_fall_with_the_decades() -> None:
    days = ["1979-12-31", "1980-01-02", "1989-12-29", "1990-01-02", "2000-12-29", "2001-01-02"]
    market = dataclasses.replace(random_market(1, bars=6), times=np.array(days, dtype="datetime64[ns]"))
    rules = rules_of(make_config({"half_spread": "by era", "cost_bps": 10.0}))
    rates = Venue(market, rules, torch.float64).cost_rates
    assert rates is not None
    assert (1e4 * rates).round().tolist() == [[bps] * market.shape[1] for bps in (80, 50, 50, 30, 30, 10)]
    table = torch.full((1, 6, market.shape[1]), 0.9 / market.shape[1], dtype=torch.float64)
    ledger = simulate(market, lambda t, c, s: table[:, t], 0, 5, rules, 1000.0)
    assert ledger.costs[1, 0].item() == pytest.approx(1000 * 0.9 * 0.008, rel=0.02)  # the first purchase
    recorded = simulate_recorded(market, table, [Job(0, 0, 5, rules)], 1000.0)
    np.testing.assert_allclose(recorded.equity[0], ledger.equity[:, 0])
    with pytest.raises(ConfigError, match='"by era" charges no constant'):
        rules_of(make_config({"half_spread": "by era", "half_spread_bps": 1.0}))


def test_ratios_use_the_cash_rates_of_a_market_and_accounts_do_not_earn_them() -> None:
    market = dataclasses.replace(random_market(1, bars=8), cash_rates=(("2020-01-03", 0.0365),))
    rules = rules_of(make_config())
    table = torch.full((1, 8, market.shape[1]), 1 / market.shape[1], dtype=torch.float64)
    ledger = simulate(market, lambda t, c, s: table[:, t], 0, 7, rules, 1000.0)
    expected = pytest.approx([0, 0, 1e-4, 1e-4, 1e-4, 1e-4, 1e-4])
    assert ledger.risk_free is not None
    assert ledger.risk_free.tolist() == expected
    assert ledger.carry is None
    plain = simulate(dataclasses.replace(market, cash_rates=()), lambda t, c, s: table[:, t], 0, 7, rules, 1000.0)
    torch.testing.assert_close(ledger.equity, plain.equity, rtol=0, atol=0)
    for changes in ({}, {"short": True}):  # in the kernel, in torch
        recorded = simulate_recorded(market, table, [Job(0, 0, 7, rules_of(make_config(changes)))], 1000.0)
        assert recorded.risk_free[0] is not None
        assert recorded.risk_free[0].tolist() == expected
    zero = rules_of(make_config({"cash_rates": (("2019-01-01", 0.0),)}))
    assert simulate(market, lambda t, c, s: None, 0, 7, zero, 1000.0).risk_free is None


def test_cash_earns_the_daily_rate_and_shorts_pay_the_borrow_fee() -> None:
    market = random_market(1, bars=8, assets=1, volatility=1e-9)
    rates = (("2020-01-03", 0.0365), ("2020-01-05", 0.073))
    idle = simulate(market, lambda t, c, s: None, 0, 7, rules_of(make_config({"cash_rates": rates})), 1000.0)
    assert idle.risk_free is not None
    assert idle.risk_free.tolist() == pytest.approx([0, 0, 1e-4, 1e-4, 2e-4, 2e-4, 2e-4])
    assert idle.equity[-1, 0].item() == pytest.approx(1000 * 1.0001**2 * 1.0002**3)
    fees = rules_of(make_config({"borrow_fee": 0.365, "short": True}))
    short = simulate(market, lambda t, c, s: torch.tensor([[-0.5]]) if t == 0 else None, 0, 7, fees, 1000.0)
    # Filled at bar 1: six days at 0.1% of 500.
    assert short.equity[-1, 0].item() == pytest.approx(1000 - 6 * 0.5, rel=1e-6)
    assert short.carry is not None
    assert short.carry.sum().item() == pytest.approx(-3.0, rel=1e-6)


@pytest.mark.parametrize("fill", ["next", "same_close"])
@pytest.mark.parametrize(("delisting_return", "recovery"), [(0.0, 1.0), (-0.3, 0.7), (-1.0, 1e-6)])
def test_delisting_pays_the_delisting_return(delisting_return: float, recovery: float, fill: str) -> None:
    market = random_market(5, bars=10, assets=2, ends={0: 5}, volumes=True, fill=fill)
    rules = rules_of(make_config({"delisting_return": delisting_return, "participation": 1.0, "fill": fill}))
    plan = torch.tensor([[0.5, 0.0]], dtype=torch.float64)
    ledger = simulate(market, lambda t, c, s: plan if t == 0 else None, 0, 9, rules, 1.0)
    last = market.close[5, 0] * (0.5 / market.close[0, 0])
    cash = 1 - 0.5 / market.close[0, 0] * market.fill[0, 0]
    assert ledger.equity[-1, 0].item() == pytest.approx((cash + last * recovery).item())
    assert ledger.shares.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_delay_only_shifts_decisions(delay: int) -> None:
    market, delayed_rules = random_market(7, bars=30), rules_of(make_config({"delay": delay}))
    targets = torch.rand(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 3
    delayed = simulate(market, lambda t, c, s: targets[t : t + 1], 2, 25, delayed_rules, 1000.0)
    shifted = simulate(
        market,
        lambda t, c, s: targets[t - delay + 1].unsqueeze(0),
        2 + delay - 1,
        25,
        rules_of(make_config()),
        1000.0,
    )
    assert torch.equal(delayed.equity[delay - 1 :], shifted.equity)
    assert delayed.equity[:delay].unique().tolist() == [1000.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"participation": 0.1}, "need prices with volumes"),
        ({"impact": 1.0}, "impact needs environment.participation"),
        ({"participation": 1.5}, "participation is out of its range, got 1.5"),
        ({"delisting_return": -1.1}, "delisting_return is out of its range"),
        ({"delay": 0}, "delay is out of its range"),
        ({"delay": 2, "fill": "same_close"}, "the same close has no delay"),
        ({"per_share": 0.01, "buy_allocation": "sequential"}, "supports proportional costs only"),
        ({"participation": 0.1, "buy_allocation": "sequential"}, "supports proportional costs only"),
        ({"cash_rates": (("soon", 0.01),)}, "got the date 'soon'"),
        ({"cash_rates": (("2020-01-01", 2.0),)}, "annual rates such as 0.02"),
        ({"cash_rates": (("2020-01-02", 0.0), ("2020-01-01", 0.01))}, "in order of their dates"),
        ({"half_spread_bps": 9_999.0, "cost_bps": 5.0}, "must stay below 10000"),
        ({"half_spread": "from data"}, "needs prices with spreads"),
        ({"half_spread": "from data", "half_spread_bps": 1.0}, "half_spread_bps = 1 is one"),
        ({"half_spread": "from data", "cost_bps": 6_000.0}, "must stay below 5000"),
    ],
)
def test_conflicting_settings_are_rejected(changes: dict[str, Any], message: str) -> None:
    config = make_config(changes)
    market = random_market(0, bars=12, fill=config.fill)
    with pytest.raises((ConfigError, InputError), match=message):
        make_env(market, config)
    with pytest.raises((ConfigError, InputError), match=message):
        simulate(market, lambda t, c, s: None, 0, 8, rules_of(config), 1000.0)


def test_trades_in_shares_are_not_delayed() -> None:
    with pytest.raises(ConfigError, match="needs environment"):
        make_env(random_market(0, bars=12), make_config({"delay": 2, "kind": "stock_trading"}))


def test_default_settings_use_proportional_costs_only() -> None:
    assert rules_of(EnvironmentConfig()).frictions is None


def test_a_symbol_without_a_spread_is_named() -> None:
    market, config = random_market(0, bars=12, spreads=True), make_config({"half_spread": "from data"})
    make_env(market, config)
    assert market.half_spread is not None
    market.half_spread[3:5, 1] = torch.nan
    for build in (lambda: make_env(market, config), lambda: Venue(market, rules_of(config), torch.float64)):
        with pytest.raises(InputError, match="S1 has none for 2 of its fills, first for the decision of 2020-01-04"):
            build()
