"""Small markets with leaked future returns: agents exploit the leak and have no edge without one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.harness.simulated_markets import prices
from benchmarks.learning.leaked_signal import (
    EQUIVARIANT,
    MLP,
    capture,
    excess_over_equal_weight,
    oracle_growth,
    placebo,
)
from benchmarks.learning.training import Recipe
from finrl_pod.data.panel import make_panel
from finrl_pod.data.tensor import build_market, leaked_return
from finrl_pod.evaluate.significance import mean_interval
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import MarketTensor, Panel

CPU = torch.device("cpu")
BARS, ASSETS, TRAIN_LAST = 1200, 5, 799
SMALL = EnvironmentConfig(envs=128, group=16)


@pytest.fixture(scope="module")
def random_walk() -> tuple[Panel, MarketTensor]:
    times = np.datetime64("2015-01-01", "ns") + np.arange(BARS) * np.timedelta64(1, "D")
    returns = np.random.default_rng(11).normal(0, 0.02, (BARS, ASSETS))
    panel = make_panel(times, list("ABCDE"), {"close": prices(returns)})
    return panel, build_market(panel, ("return_1",), (0, TRAIN_LAST))


def test_oracle_growth_equals_a_plain_loop(random_walk: tuple[Panel, MarketTensor]) -> None:
    panel, market = random_walk
    close, first, last, rate = panel.close, TRAIN_LAST + 1, market.steps, 0.001
    cash, shares, held = 1e6, 0.0, 0
    for t in range(first, last):
        # Sized at the close of t, filled at the close of t+1, for the return from t+1 to t+2.
        best = int(np.argmax(close[t + 2] / close[t + 1]))
        target_shares = (cash + shares * close[t, held]) / close[t, best]
        if best != held:
            cash, shares, held = cash + shares * close[t + 1, held] * (1 - rate), 0.0, best
        price, change = close[t + 1, held], target_shares - shares
        change = min(change, cash / (price * (1 + rate)))
        cash -= change * price * (1 + rate if change > 0 else 1 - rate)
        shares += change
    growth = np.log((cash + shares * close[last, held]) / 1e6) / (last - first)
    oracle = oracle_growth(market, leaked_return(market), first, last, ExecutionRules(rate))
    assert oracle == pytest.approx(growth, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "min_share"), [(EQUIVARIANT, 0.90), (MLP, 0.85)], ids=["equivariant", "mlp"])
def test_agents_exploit_a_leaked_future_return(
    random_walk: tuple[Panel, MarketTensor], recipe: Recipe, min_share: float
) -> None:
    small = replace(recipe, environment=SMALL, samples=100_000)
    share, oracle, trained = capture(random_walk[1], TRAIN_LAST, small, 0, CPU, "leaked")
    assert trained.learner.alive == [True]
    assert oracle > 0
    assert min_share < share <= 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shifted", "shuffled"])
def test_uninformative_leak_earns_nothing(random_walk: tuple[Panel, MarketTensor], kind: str) -> None:
    small = replace(EQUIVARIANT, environment=SMALL, samples=60_000)
    excess, _ = excess_over_equal_weight(
        *random_walk, placebo(random_walk[1], kind, 0), TRAIN_LAST, small, 0, CPU, kind
    )
    low = mean_interval(excess, 0.95).low
    assert low <= 0
