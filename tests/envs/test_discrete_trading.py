"""DiscreteTradingEnv against a plain loop, and the same actions in a backtest."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from finrl_pod_envs import trading_envs
from finrl_pod_envs.gym import GymMarketEnv, GymVectorEnv
from finrl_pod_envs.trading_envs import DiscreteTradingEnv

from finrl_pod.errors import ConfigError, InputError
from finrl_pod.evaluate.backtest import simulate
from finrl_pod.market import actions
from finrl_pod.market.actions import TRADE_FRACTION, choice_directions, choices_as_weights, number_of_choices
from finrl_pod.market.rules import rules_of
from finrl_pod.settings.run import EnvironmentConfig
from tests.markets import random_market

N, LOT, COST = 3, TRADE_FRACTION, 0.001
CONFIG = EnvironmentConfig(kind="discrete", window=30, envs=1, group=1)


def test_each_action_holds_buys_or_sells_one_asset() -> None:
    assert number_of_choices(N) == 7
    table = choice_directions(torch.arange(7), N) * LOT
    buys, sells = torch.eye(N, dtype=torch.float64) * LOT, -torch.eye(N, dtype=torch.float64) * LOT
    assert torch.equal(table, torch.cat([torch.zeros(1, N, dtype=torch.float64), buys, sells]))


def test_episode_matches_a_plain_loop() -> None:
    """Trades are sized at the decision's close and filled at the next one, limited by cash and holdings."""
    market = random_market(2, bars=40, assets=N)
    env = DiscreteTradingEnv(market, CONFIG, first=0, last=29, dtype=torch.float64)
    env.reset(0, stagger=False)
    choices = np.random.default_rng(3).integers(0, 7, 30)
    close = market.close.numpy()
    cash, shares, limited_buys = 1e6, np.zeros(N), 0
    for t, choice in enumerate(choices):
        account_value, price = cash + shares @ close[t], close[t + 1]
        if 1 <= choice <= N:
            n = choice - 1
            affordable = cash / (price[n] * (1 + COST))
            bought = min(LOT * account_value / close[t, n], affordable)
            limited_buys += bought == affordable
            shares[n] += bought
            cash -= bought * price[n] * (1 + COST)
        elif choice > N:
            n = choice - N - 1
            sold = min(LOT * account_value / close[t, n], shares[n])
            shares[n] -= sold
            cash += sold * price[n] * (1 - COST)
        outcome = env.step(torch.tensor([[[choice]]]))
        assert float(outcome.equity) == pytest.approx(cash + shares @ close[t + 1], rel=1e-12)
    assert limited_buys > 0, "the cash must run out at least once"


@pytest.mark.parametrize(("lot", "tolerance"), [(0.04, 1e-9), (LOT, 3e-3)])
def test_backtest_of_the_same_actions_has_the_same_equity(
    lot: float, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact while cash suffices: the backtest limits buys at the decision's price, the environment at the fill's."""
    for module in (actions, trading_envs):
        monkeypatch.setattr(module, "TRADE_FRACTION", lot)
    market = random_market(2, bars=40, assets=N, gaps=0.1)
    env = DiscreteTradingEnv(market, CONFIG, first=0, last=29, dtype=torch.float64)
    env.reset(0, stagger=False)
    choices = torch.from_numpy(np.random.default_rng(3).integers(0, 7, 30))
    env_equity = [float(env.step(choice.view(1, 1, 1)).equity) for choice in choices]

    def decide(t: int, cash: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        values = shares * market.close[t]
        held = values / (cash + values.sum(-1, keepdim=True))
        return choices_as_weights(choices[t].view(1), held, market.tradable[t], rules=rules_of(CONFIG))

    backtest_equity = simulate(market, decide, 0, 30, rules_of(CONFIG), CONFIG.cash).equity[1:, 0]
    np.testing.assert_allclose(env_equity, backtest_equity.numpy(), rtol=tolerance)
    assert np.ptp(env_equity) > 1000


@pytest.mark.parametrize("choice", [-1.0, 7.0, 1.5])
def test_invalid_actions_are_rejected(choice: float) -> None:
    env = DiscreteTradingEnv(random_market(2, assets=N), CONFIG)
    env.reset(0)
    with pytest.raises(InputError, match=r"actions must be whole numbers from 0 to 6, got numbers from"):
        env.step(torch.full((1, 1, 1), choice))


@pytest.mark.parametrize("changes", [{"short": True}, {"leverage": 2.0}])
def test_shorts_and_leverage_are_rejected(changes: dict[str, float]) -> None:
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
