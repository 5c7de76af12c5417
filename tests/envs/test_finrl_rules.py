"""StockTradingEnv with FinRL's settings follows FinRL's rules, step by step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from finrl_pod_envs.trading_envs import StockTradingEnv

from finrl_pod.settings.run import EnvironmentConfig
from tests.envs.finrl_reference import FinrlAccount
from tests.markets import random_market

ASSETS = 30
FINRL = EnvironmentConfig(
    kind="stock_trading",
    fill="same_close",
    buy_allocation="sequential",
    whole_shares=True,
    reward="change",
    envs=1,
    group=1,
)


@pytest.mark.parametrize(
    ("steps", "dtype"), [(300, torch.float64), pytest.param(2_000, None, marks=pytest.mark.slow)], ids=["300", "2000"]
)
def test_random_steps(steps: int, dtype: torch.dtype | None) -> None:
    """By default (accounts in float64, outcomes in float32) and in float64 throughout."""
    market = random_market(0, bars=steps + 1, assets=ASSETS, features=1, fill="same_close", volatility=0.015)
    env, oracle = StockTradingEnv(market, replace(FINRL, window=steps), dtype=dtype), FinrlAccount(market.close.numpy())
    env.reset(0, stagger=False)
    actions = torch.from_numpy(np.random.default_rng(5).uniform(-1, 1, (steps, 1, 1, ASSETS))).to(
        dtype or torch.float32
    )
    before, worst, bought_out = FINRL.cash, 0.0, 0
    for t in range(steps):
        outcome = env.step(actions[t])
        total = oracle.step(actions[t, 0, 0].double().numpy())
        worst = max(worst, abs(outcome.equity.item() - total) / total)
        bought_out += oracle.cash < oracle.close[t].max()
        if t < steps - 1:
            assert env.state is not None
            assert torch.equal(env.state.shares[0, 0, 0], torch.from_numpy(oracle.shares))
            assert env.state.cash.item() == pytest.approx(oracle.cash, rel=1e-9, abs=1e-3)
        if dtype == torch.float64:
            assert outcome.reward.item() == pytest.approx((total - before) * 1e-4, rel=1e-6, abs=1e-9)
        before = total
    assert worst < (1e-6 if dtype is None else 1e-10)
    assert bought_out > steps / 20, "the random agent must have run out of cash, or the order of buys was not tried"
    assert bool(outcome.truncated)
