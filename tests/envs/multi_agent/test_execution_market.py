"""The execution market: costs against the exact game, background traders, rewards and their sums."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from finrl_pod_envs.multi_agent.execution import ExecutionMarket

from finrl_pod.errors import ConfigError, InputError
from finrl_pod.settings.multi_agent import ExecutionMarketConfig

DOUBLE = torch.float64
SMALL = ExecutionMarketConfig(
    orders=(2.0, -1.0, 0.5), steps=6, horizon=1.5, permanent=0.4, temporary=0.7, own=0.2, volatility=0.8,
    risk_aversion=0.6,
)  # fmt: skip
E = 5


def market(config: ExecutionMarketConfig = SMALL, envs: int = E, members: tuple[int, ...] = (0,)) -> ExecutionMarket:
    return ExecutionMarket(config, envs=envs, members=members, dtype=DOUBLE)


def episode(env: ExecutionMarket, scale: float = 0.3, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Trades [E, M, N steps], summed rewards and profits [E, M] of member 0 and asset 0 under random actions."""
    env.reset(seed)
    stream = torch.Generator().manual_seed(1)
    trades, rewards, profits = [], 0.0, 0.0
    for j in range(env.config.steps):
        before = env.left.clone()
        shape = (env.members, env.envs, env.agents, env.action_size)
        out = env.step(scale * torch.randn(shape, generator=stream, dtype=DOUBLE))
        after = torch.zeros_like(before) if j == env.config.steps - 1 else env.left
        trades.append((before - after)[0, :, :, 0])
        rewards, profits = rewards + out.reward[0], profits + out.profit[0]
    return torch.stack(trades, -1).numpy(), (rewards * env.reward_unit).numpy(), profits.numpy()  # type: ignore[attr-defined]


@pytest.mark.parametrize("cooperation", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("within_step", [0.0, 0.5])
def test_rewards_add_up_to_the_exact_objective(cooperation: float, within_step: float) -> None:
    env = market(dataclasses.replace(SMALL, cooperation=cooperation, within_step=within_step))
    trades, rewards, _ = episode(env)
    orders = np.array(SMALL.orders)
    np.testing.assert_allclose(trades.sum(-1), np.broadcast_to(orders, (E, 3)))
    own = env.game().objectives(orders, trades)
    expected = (1 - cooperation) * own + cooperation * own.sum(-1, keepdims=True)
    np.testing.assert_allclose(rewards, -expected, rtol=1e-10)


def test_realised_profit_has_the_mean_and_variance_of_the_game() -> None:
    config = dataclasses.replace(SMALL, risk_aversion=0.0, orders=(2.0,))
    env = market(config, envs=20_000)
    env.reset(0)
    profit = torch.zeros(20_000, dtype=DOUBLE)
    for _ in range(config.steps):
        profit += env.step(torch.zeros(1, 20_000, 1, 1)).profit[0, :, 0]
    even = np.full((1, config.steps), 2.0 / config.steps)
    cost = env.game().objectives(np.array([2.0]), even)[0]
    remaining = 2.0 * (1 - np.arange(1, config.steps + 1) / config.steps)
    deviation = config.volatility * np.sqrt(env.tau * (remaining**2).sum())
    assert float(profit.mean()) == pytest.approx(-cost, abs=4 * deviation / np.sqrt(20_000))
    assert float(profit.std()) == pytest.approx(deviation, rel=0.02)


def test_action_zero_trades_even_slices() -> None:
    env = market()
    trades, _, _ = episode(env, scale=0.0)
    np.testing.assert_allclose(trades, np.repeat(np.array(SMALL.orders)[:, None] / 6, 6, 1)[None].repeat(E, 0))


def test_assets_do_not_affect_each_other() -> None:
    two = market(dataclasses.replace(SMALL, assets=2))
    two.reset(0)
    action = torch.zeros(1, E, 3, 2, dtype=DOUBLE)
    action[..., 1] = 0.5
    out = two.step(action)
    one = market()
    one.reset(0)
    first = one.step(action[..., :1]).reward
    one.reset(0)
    torch.testing.assert_close(out.reward, first + one.step(action[..., 1:]).reward)


def test_market_maker_charges_its_spread_and_its_quotes_recover() -> None:
    base = dataclasses.replace(SMALL, orders=(2.0,), permanent=0.0, temporary=0.0, own=0.0, volatility=0.0)
    base = dataclasses.replace(base, risk_aversion=0.0)
    _, spread, _ = episode(market(dataclasses.replace(base, maker_spread=0.1)), scale=0.0)
    np.testing.assert_allclose(spread, -0.1 * 2.0)

    def cost(recovery: float) -> float:
        env = market(dataclasses.replace(base, maker_skew=0.5, maker_recovery=recovery))
        return float(-episode(env, scale=0.0)[1][0, 0])

    assert cost(0.0) == pytest.approx(0.5 * 2.0**2 / 2)  # no recovery: permanent impact
    assert cost(0.0) > cost(1.0) > cost(10.0) > 0.5 * 2.0**2 / 2 / 6 * 0.99


def test_random_orders_differ_by_market_and_follow_the_seed() -> None:
    config = dataclasses.replace(SMALL, order_std=1.0)
    env = market(config)
    env.reset(3)
    first = env.left.clone()
    assert first.unique().numel() == first.numel()
    env.reset(3)
    assert torch.equal(env.left, first)
    both = market(config, members=(0, 7))
    both.reset(3)
    assert torch.equal(both.left[:1], first)  # a member draws the same alone and among others


def test_bad_orders_and_actions_are_refused() -> None:
    with pytest.raises(ConfigError, match="nothing is to be traded"):
        market(dataclasses.replace(SMALL, orders=(0.0, 0.0)))
    with pytest.raises(ConfigError, match="orders is out of its range"):
        market(dataclasses.replace(SMALL, orders=()))
    env = market()
    env.reset(0)
    with pytest.raises(InputError, match="shape"):
        env.step(torch.zeros(1, E, 3, 2))
