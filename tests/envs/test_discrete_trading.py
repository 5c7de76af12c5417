"""DiscreteTradingEnv against a plain loop, and what a choice means outside the environment."""

from __future__ import annotations

import dataclasses

import gymnasium
import numpy as np
import pytest
import torch
from finrl_pod_envs.gym import GymMarketEnv, GymVectorEnv
from finrl_pod_envs.trading_envs import DiscreteTradingEnv

from finrl_pod.errors import ConfigError, InputError
from finrl_pod.evaluate.simulate import simulate
from finrl_pod.market.actions import choices_as_weights, number_of_choices, weight_change
from finrl_pod.market.rules import rules_of
from finrl_pod.settings.run import EnvironmentConfig
from tests.markets import random_market

N, LOT, COST = 3, 0.3, 0.001
CONFIG = EnvironmentConfig(kind="discrete", window=30, envs=1, group=1, trade_fraction=LOT)


def test_a_choice_picks_an_asset_and_a_move() -> None:
    assert number_of_choices(N) == 7
    table = weight_change(torch.arange(7), N, LOT)
    buys, sells = torch.eye(N, dtype=torch.float64) * LOT, -torch.eye(N, dtype=torch.float64) * LOT
    assert torch.equal(table, torch.cat([torch.zeros(1, N, dtype=torch.float64), buys, sells]))


def test_an_episode_equals_a_plain_loop() -> None:
    """Sized on the close of the decision, filled at the next, no more bought than paid for, no more sold than held."""
    market = random_market(2, bars=40, assets=N)
    env = DiscreteTradingEnv(market, CONFIG, first=0, last=29, dtype=torch.float64)
    env.reset(0, stagger=False)
    choices = np.random.default_rng(3).integers(0, 7, 30)
    close = market.close.numpy()
    cash, shares, cut = 1e6, np.zeros(N), 0
    for t, choice in enumerate(choices):
        worth, price = cash + shares @ close[t], close[t + 1]
        if 1 <= choice <= N:
            n = choice - 1
            most = cash / (price[n] * (1 + COST))
            bought = min(LOT * worth / close[t, n], most)
            cut += bought == most
            shares[n] += bought
            cash -= bought * price[n] * (1 + COST)
        elif choice > N:
            n = choice - N - 1
            sold = min(LOT * worth / close[t, n], shares[n])
            shares[n] -= sold
            cash += sold * price[n] * (1 - COST)
        out = env.step(torch.tensor([[[choice]]]))
        assert float(out.equity) == pytest.approx(cash + shares @ close[t + 1], rel=1e-12)
    assert cut > 0, "the cash should have run out at least once"


@pytest.mark.parametrize(("lot", "tolerance"), [(0.04, 1e-9), (LOT, 3e-3)])
def test_outside_the_environment_the_same_choices_lead_to_the_same_account(lot: float, tolerance: float) -> None:
    """Exactly so while the cash lasts: a purchase it does not pay for is cut at the decision's price, inside at the
    fill's."""
    market, config = random_market(2, bars=40, assets=N, gaps=0.1), dataclasses.replace(CONFIG, trade_fraction=lot)
    env = DiscreteTradingEnv(market, config, first=0, last=29, dtype=torch.float64)
    env.reset(0, stagger=False)
    choices = torch.from_numpy(np.random.default_rng(3).integers(0, 7, 30))
    inside = [float(env.step(choice.view(1, 1, 1)).equity) for choice in choices]

    def decide(t: int, cash: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        values = shares * market.close[t]
        held = values / (cash + values.sum(-1, keepdim=True))
        return choices_as_weights(
            choices[t].view(1), held, market.tradable[t], trade_fraction=lot, rules=rules_of(CONFIG)
        )

    outside = simulate(market, decide, 0, 30, rules_of(CONFIG), CONFIG.cash).equity[1:, 0]
    np.testing.assert_allclose(inside, outside.numpy(), rtol=tolerance)
    assert np.ptp(inside) > 1000


@pytest.mark.parametrize("choice", [-1.0, 7.0, 1.5])
def test_invalid_choices_are_rejected(choice: float) -> None:
    env = DiscreteTradingEnv(random_market(2, assets=N), CONFIG)
    env.reset(0)
    with pytest.raises(InputError, match=r"actions must be whole numbers from 0 to 6, got numbers from"):
        env.step(torch.full((1, 1, 1), choice))


@pytest.mark.parametrize("changes", [{"short": True}, {"leverage": 2.0}])
def test_shorts_and_leverage_are_refused(changes: dict[str, float]) -> None:
    config = EnvironmentConfig(kind="discrete", **changes)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="supports neither shorts nor leverage"):
        DiscreteTradingEnv(random_market(2), config)


def test_gymnasium_action_space_is_discrete() -> None:
    market = random_market(2, assets=N)
    single, vector = GymMarketEnv(market, CONFIG), GymVectorEnv(market, CONFIG, envs=2)
    assert single.action_space == gymnasium.spaces.Discrete(7)
    assert vector.action_space == gymnasium.spaces.MultiDiscrete([7, 7])
    single.reset(seed=1)
    vector.reset(seed=1)
    _, _, _, _, info = single.step(single.action_space.sample())
    assert info["equity"] > 0
    assert vector.step(np.array([1, 0]))[0].shape == (2, *single.observation_space.shape)
