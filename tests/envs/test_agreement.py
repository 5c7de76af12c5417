"""Environments in float32 and float64 against a plain Python loop, on random markets with gaps and delistings."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.trading_envs import make_env
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.evaluate.backtest import simulate
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import MarketTensor
from tests.envs.reference_env import ReferenceEnv
from tests.markets import random_market

STEPS, ENVS = 12, 3
configs = st.builds(
    EnvironmentConfig,
    kind=st.sampled_from(["portfolio", "stock_trading"]),
    buy_allocation=st.sampled_from(["proportional", "sequential"]),
    fill=st.sampled_from(["next", "same_close"]),
    cost_bps=st.sampled_from([0.0, 10.0, 200.0]),
    leverage=st.sampled_from([1.0, 1.5]),
    hmax=st.sampled_from([100.0, 5000.0]),
    window=st.just(STEPS),
    envs=st.just(ENVS),
    group=st.sampled_from([1, 3]),
)
seeds = st.integers(0, 2**31 - 1)


def market_with_gaps(seed: int, config: EnvironmentConfig) -> MarketTensor:
    """Missing bars, one asset that is delisted and one that is listed within the range."""
    return random_market(
        seed,
        bars=20,
        fill=config.fill,
        opens=seed % 2 == 0,
        gaps=0.1,
        ends={0: 9},
        starts={1: 6},
        volatility=0.03,
    )


def reset_to_full_windows(env: MarketEnv, seed: int) -> list[int]:
    """Reset without staggered starts; return the bar of each of the E accounts."""
    bar = env.reset(seed, stagger=False).bar[0]
    return bar.repeat_interleave(env.accounts).tolist()


def random_actions(seed: int, env: MarketEnv) -> torch.Tensor:
    scale = 3.0 if env.config.kind == "portfolio" else 1.2  # beyond 1, so that clipping is covered
    noise = torch.randn(STEPS, 1, ENVS, env.action_size, generator=torch.Generator().manual_seed(seed))
    return noise * scale


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(seed=seeds, config=configs)
def test_fractional_shares_match_the_reference_at_every_step(seed: int, config: EnvironmentConfig) -> None:
    market = market_with_gaps(seed, config)
    single, double = make_env(market, config), make_env(market, config, dtype=torch.float64)
    bars = reset_to_full_windows(single, seed)
    assert reset_to_full_windows(double, seed) == bars
    references = [ReferenceEnv(market, config, bar) for bar in bars]
    for action in random_actions(seed, single):
        outcomes = single.step(action), double.step(action.double())
        expected = [p.step(action[0, e].double().tolist()) for e, p in enumerate(references)]
        for outcome, env, tolerance in zip(outcomes, (single, double), (1e-5, 1e-9), strict=True):
            assert outcome.equity.dtype == env.dtype
            for e, (growth, fills) in enumerate(expected):
                account_value = references[e].value(references[e].close[references[e].bar])
                assert outcome.equity[0, e].item() == pytest.approx(account_value, rel=tolerance)
                assert outcome.reward[0, e].item() == pytest.approx(growth, abs=tolerance)
                # costs depend on differences of holdings, so the tolerance is relative to the account value
                assert outcome.cost[0, e].item() == pytest.approx(fills.cost, abs=tolerance * account_value)
                holdings = outcome.final_observation.account[0, e].double() * (
                    account_value if config.kind == "portfolio" else config.cash
                )
                close = references[e].close[references[e].bar]
                assert holdings[0].item() == pytest.approx(references[e].cash, abs=2 * tolerance * account_value)
                for asset, shares in enumerate(references[e].shares):
                    assert holdings[1 + asset].item() == pytest.approx(
                        shares * close[asset], abs=2 * tolerance * account_value
                    )


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(seed=seeds, config=configs)
def test_whole_shares_match_the_reference_up_to_one_share_per_asset(seed: int, config: EnvironmentConfig) -> None:
    """Both dtypes start each step from the same state, so that a rounding difference does not accumulate."""
    config = dataclasses.replace(config, whole_shares=True, leverage=1.0)
    market = market_with_gaps(seed, config)
    single, double = make_env(market, config, dtype=torch.float32), make_env(market, config, dtype=torch.float64)
    references = [ReferenceEnv(market, config, bar) for bar in reset_to_full_windows(double, seed)]
    reset_to_full_windows(single, seed)
    for action in random_actions(seed, single)[:-1]:
        assert double.state is not None
        single.set_state(double.state._replace(cash=double.state.cash.float(), shares=double.state.shares.float()))
        single.step(action)
        double.step(action.double())
        for e, account in enumerate(references):
            account.step(action[0, e].double().tolist())
        assert single.state is not None
        assert double.state is not None
        exact = double.state.shares.reshape(ENVS, -1)
        assert torch.equal(exact, exact.round())
        assert torch.equal(exact, torch.tensor([p.shares for p in references], dtype=torch.float64))
        flips = (single.state.shares.reshape(ENVS, -1).double() - exact).abs()
        # At most one share of each asset, plus what its value buys: several shares of a cheap asset.
        prices = double.fill[double.state.bar - 1].repeat_interleave(double.accounts, 1)[0]
        assert torch.all((flips * prices).sum(-1) <= 2 * prices.sum(-1))


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(seed=seeds, config=configs)
def test_backtest_matches_the_environment(seed: int, config: EnvironmentConfig) -> None:
    """The float64 backtest of the weights that the scores imply has the environment's equity and costs."""
    config = dataclasses.replace(config, kind="portfolio", envs=1, group=1)
    market = market_with_gaps(seed, config)
    env = make_env(market, config)
    (first,) = reset_to_full_windows(env, seed)
    actions = random_actions(seed, env)[:, :, :1]
    steps = [env.step(action) for action in actions]

    def decide(t: int, cash: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        score = actions[t - first, 0, 0].double().exp()
        score[1:] *= market.tradable[t]
        return (score[1:] / score.sum() * config.leverage).unsqueeze(0)

    ledger = simulate(market, decide, first, first + STEPS, env.rules, config.cash)
    shift = 0 if config.fill == "same_close" else 1  # offset of the bar at which a decision's fill is recorded
    expected_costs = ledger.costs[shift : shift + STEPS, 0]
    # With same_close fills the backtest values a trade at bar t, after costs; the environment one bar later.
    expected_equity = ledger.equity[1:, 0] + (ledger.costs[1:, 0] if config.fill == "same_close" else 0.0)
    for t, outcome in enumerate(steps):
        assert outcome.equity.item() == pytest.approx(expected_equity[t].item(), rel=1e-5)
        assert outcome.cost.item() == pytest.approx(expected_costs[t].item(), abs=1e-5 * expected_equity[t].item())
    holdings = steps[-1].final_observation.account[0, 0].double() * steps[-1].equity.double().item()
    assert holdings[0].item() == pytest.approx(ledger.cash[0].item(), abs=2e-5 * expected_equity[-1].item())
    values = ledger.shares[0] * market.close[first + STEPS]
    assert torch.allclose(holdings[1:], values, rtol=0, atol=2e-5 * expected_equity[-1].item())
