"""Fill prices, tradability, delistings, turbulence and position limits."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.trading_envs import make_env
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.market.actions import scores_to_weights
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import MarketTensor
from tests.markets import random_market

CONFIG = EnvironmentConfig(window=1000, envs=1, group=1)


def make_started_env(market: MarketTensor, **settings: Any) -> MarketEnv:
    """A reset environment with one float64 account and one window over the whole market."""
    env = make_env(market, dataclasses.replace(CONFIG, **settings), dtype=torch.float64)
    env.reset(0, stagger=False)
    return env


def holdings(env: MarketEnv) -> torch.Tensor:
    assert env.state is not None
    return env.state.shares[0, 0, 0]


def all_in(env: MarketEnv, asset: int) -> torch.Tensor:
    action = torch.full((1, 1, env.action_size), -40.0)
    action[..., 1 + asset] = 40.0
    return action


@pytest.mark.parametrize("opens", [False, True])
def test_next_fills_are_sized_at_the_decision_close_and_filled_at_the_next_bar(opens: bool) -> None:
    market = random_market(0, opens=opens)
    env = make_started_env(market, cost_bps=0.0)
    outcome = env.step(torch.zeros(1, 1, 4, dtype=torch.float64))  # a quarter in each asset and in cash
    expected_shares = 0.25 * CONFIG.cash / market.close[0]
    assert torch.allclose(holdings(env), expected_shares)
    assert env.state is not None
    assert env.state.cash.item() == pytest.approx(CONFIG.cash - (expected_shares * market.fill[0]).sum().item())
    if not opens:
        assert torch.equal(market.fill[0], market.close[1])
    growth = 1 + (expected_shares * (market.fill[1] - market.fill[0])).sum().item() / CONFIG.cash
    assert outcome.reward.item() == pytest.approx(math.log(growth))


def test_same_close_fills_at_the_observed_close() -> None:
    market = random_market(0, fill="same_close")
    env = make_started_env(market, fill="same_close", cost_bps=0.0)
    outcome = env.step(all_in(env, 1))
    assert outcome.reward.item() == pytest.approx((market.close[1, 1] / market.close[0, 1]).log().item())


def test_next_fills_do_not_leak_the_next_close() -> None:
    """Perfect foresight of the next close pays with same_close fills and is worthless with next fills."""
    mean_rewards = {}
    for fill in ("next", "same_close"):
        market = random_market(3, bars=200, fill=fill)
        env = make_started_env(market, fill=fill, cost_bps=0.0)
        total = 0.0
        for t in range(190):
            best = int((market.close[t + 1] / market.close[t]).argmax())
            total += env.step(all_in(env, best)).reward.item()
        mean_rewards[fill] = total / 190
    assert mean_rewards["same_close"] > 0.01
    assert abs(mean_rewards["next"]) < 0.005


def test_asset_without_a_fill_price_is_neither_bought_nor_sold() -> None:
    market = random_market(0, starts={0: 3})
    fillable = market.fillable.clone()
    fillable[5:7, 1] = False
    market = dataclasses.replace(market, fillable=fillable)
    env = make_started_env(market)
    for _ in range(3):  # the score of asset 0 is ignored before its first bar
        env.step(all_in(env, 0))
        assert holdings(env)[0] == 0
    for _ in range(2):
        env.step(all_in(env, 1))
    held = holdings(env)[1].item()
    assert held > 0
    for _ in range(2):  # bars 5 and 6
        env.step(all_in(env, 2))
        assert holdings(env)[1].item() == held
    env.step(all_in(env, 2))
    assert holdings(env)[1].item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("kind", ["portfolio", "stock_trading"])
def test_delisted_asset_is_sold_at_its_last_close(kind: str) -> None:
    market = random_market(0, ends={0: 6})
    env = make_started_env(market, kind=kind, cost_bps=10.0)
    buy = all_in(env, 0) if kind == "portfolio" else torch.tensor([[[1.0, 0.0, 0.0]]])
    for _ in range(6):  # decisions at bars 0 to 5; the last fills at bar 6
        env.step(buy)
    held = holdings(env)[0].item()
    assert env.state is not None
    cash = env.state.cash.item()
    assert held > 0
    env.step(buy)  # bar 6 is the asset's last bar: the holding is sold whatever the action
    assert holdings(env)[0] == 0
    assert env.state.cash.item() == pytest.approx(cash + held * market.close[6, 0].item() * 0.999, abs=1.0)
    env.step(buy)
    assert holdings(env)[0] == 0


@pytest.mark.parametrize("kind", ["portfolio", "stock_trading"])
@pytest.mark.parametrize("gaps", [0.0, 0.2])
def test_all_holdings_are_sold_while_turbulence_exceeds_the_limit(kind: str, gaps: float) -> None:
    turbulence = torch.full((40,), 10.0).numpy()
    turbulence[:3], turbulence[5:8] = math.nan, 30.0
    market = random_market(0, gaps=gaps, turbulence=turbulence)
    env = make_started_env(market, kind=kind, turbulence_limit=20.0)
    buy = torch.ones(1, 1, env.action_size)
    for t in range(10):
        before = holdings(env).clone()
        env.step(buy)
        if 5 <= t < 8:
            sellable = market.fillable[t] | market.delisted[t]
            assert not holdings(env)[sellable].any()
            assert torch.equal(holdings(env)[~sellable], before[~sellable])
        elif gaps == 0:
            assert (holdings(env) > 0).all(), "NaN and values below the limit must not trigger sales"


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("leverage", [0.5, 1.0, 2.0])
def test_weights_of_scores_stay_within_the_leverage(short: bool, leverage: float) -> None:
    scores = 8 * torch.randn(50, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tradable = torch.rand(50, 5, generator=torch.Generator().manual_seed(1)) < 0.7
    tradable[0] = False
    weights = scores_to_weights(scores, tradable, short=short, leverage=leverage)
    assert weights.abs().sum(-1).max() <= leverage + 1e-12
    assert not weights[~tradable].any()
    assert bool((weights < 0).any()) == short
    assert torch.isfinite(weights).all()


def test_small_scores_are_used_as_weights_with_shorts() -> None:
    weights = scores_to_weights(torch.tensor([9.0, 0.3, -0.2]), torch.tensor([True, True]), short=True, leverage=1.0)
    assert weights.tolist() == pytest.approx([0.3, -0.2])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31 - 1),
    kind=st.sampled_from(["portfolio", "stock_trading"]),
    short=st.booleans(),
    leverage=st.sampled_from([0.5, 1.0, 2.0]),
    buy_allocation=st.sampled_from(["proportional", "sequential"]),
    whole=st.booleans(),
)
def test_position_limits_hold_after_every_fill(
    seed: int, kind: str, short: bool, leverage: float, buy_allocation: str, whole: bool
) -> None:
    """Fills at the decision's close, so that prices do not change between the limit and the fill."""
    market = random_market(seed, fill="same_close", gaps=0.1, volatility=0.01)
    env = make_started_env(
        market,
        kind=kind,
        fill="same_close",
        short=short,
        leverage=leverage,
        buy_allocation=buy_allocation,
        whole_shares=whole,
        hmax=4000.0,
    )
    noise = torch.Generator().manual_seed(seed)
    max_exposure = 0.0
    for t in range(15):
        assert env.state is not None
        before, cash_before = holdings(env).clone(), env.state.cash.item()
        action = (1 if kind == "portfolio" else 0.3) * torch.randn(1, 1, env.action_size, generator=noise)
        outcome = env.step(action)
        assert env.state is not None
        cash, shares, price = env.state.cash.item(), holdings(env), market.close[t]
        account_value = cash + (shares * price).sum().item()
        gross = (shares.abs() * price).sum().item()
        if not short:
            assert shares.min() >= 0
            floor = -1e-6 - max(leverage - 1, 0) * (account_value + outcome.cost.item())
            assert cash >= min(floor, cash_before)  # losses may leave a larger debt than a new loan may be
        max_exposure = max(max_exposure, gross / account_value)
        # Exposure above the limit from price moves or untradable assets may remain but must not grow.
        held = (before.abs() * price).sum().item()
        part_of_a_share = price.sum().item() if whole else 0.0
        assert gross <= max(leverage * (account_value + outcome.cost.item()), held) * (1 + 1e-9) + part_of_a_share
    assert max_exposure > 0.1 * leverage
