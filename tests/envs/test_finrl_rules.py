"""StockTradingEnv with FinRL's settings against an independent implementation of FinRL's rules."""

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
def test_random_actions_match_the_reference_at_every_step(steps: int, dtype: torch.dtype | None) -> None:
    """With the default dtypes (accounts float64, results float32) and with float64 throughout."""
    market = random_market(0, bars=steps + 1, assets=ASSETS, features=1, fill="same_close", volatility=0.015)
    env, reference = (
        StockTradingEnv(market, replace(FINRL, window=steps), dtype=dtype),
        FinrlAccount(market.close.numpy()),
    )
    env.reset(0, stagger=False)
    actions = torch.from_numpy(np.random.default_rng(5).uniform(-1, 1, (steps, 1, 1, ASSETS))).to(
        dtype or torch.float32
    )
    previous_total, max_error, steps_without_cash = FINRL.cash, 0.0, 0
    for t in range(steps):
        outcome = env.step(actions[t])
        total = reference.step(actions[t, 0, 0].double().numpy())
        max_error = max(max_error, abs(outcome.equity.item() - total) / total)
        steps_without_cash += reference.cash < reference.close[t].max()
        if t < steps - 1:
            assert env.state is not None
            assert torch.equal(env.state.shares[0, 0, 0], torch.from_numpy(reference.shares))
            assert env.state.cash.item() == pytest.approx(reference.cash, rel=1e-9, abs=1e-3)
        if dtype == torch.float64:
            assert outcome.reward.item() == pytest.approx((total - previous_total) * 1e-4, rel=1e-6, abs=1e-9)
        previous_total = total
    assert max_error < (1e-6 if dtype is None else 1e-10)
    assert steps_without_cash > steps / 20, "the cash must run out often enough for the order of buys to matter"
    assert bool(outcome.truncated)
