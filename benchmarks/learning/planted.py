"""Planted signal: a simulated market with a weak persistent signal that is only worth trading slowly.

The attainable growth belongs to the best policy of a grid that uses the true signal: target weights softmax(beta *
signal), approached by the fraction kappa per day. Full rebalancing, kappa = 1, costs more than it earns.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.harness.rows import Row, log_progress, median_row
from benchmarks.harness.simulated_markets import BASIS_POINT, REWARD_LAG, planted
from benchmarks.learning.training import Recipe, log_returns, train
from finrl_pod.data.panel import make_panel
from finrl_pod.data.tensor import build_market, to_device, with_extra_feature
from finrl_pod.evaluate.backtest import simulate
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.market.rules import rules_of
from finrl_pod.settings.run import EnvironmentConfig, PPOConfig
from finrl_pod.types import MarketTensor, Tensor

BETAS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
KAPPAS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
# half for training, half for testing
BARS = 20_000
ASSETS = 20
INFORMATION_COEFFICIENT = 0.05  # correlation of the signal with the return it predicts

RECIPE = Recipe(EnvironmentConfig(envs=512, group=16), PPOConfig(learning_rate=1e-2), samples=4_000_000)


@dataclass(frozen=True)
class AttainableGrowth:
    """Mean log growth per bar of the best policy (at beta, kappa), the best with kappa = 1, and equal weight."""

    best: float
    beta: float
    kappa: float
    full_rebalance: float
    equal: float


def planted_market(
    seed: int, bars: int = BARS, assets: int = ASSETS, information_coefficient: float = INFORMATION_COEFFICIENT
) -> tuple[MarketTensor, int]:
    """Return a market with the features return_1 and signal, and the last bar of its training half."""
    data = planted(seed, bars, assets, information_coefficient=information_coefficient)
    train_last = bars // 2 - 1
    times = np.datetime64("1970-01-01", "ns") + np.arange(bars) * np.timedelta64(1, "D")
    symbols = [f"S{n:02d}" for n in range(assets)]
    panel = make_panel(times, symbols, {"close": data.close}, name="planted", source=f"planted signal, seed {seed}")
    market = build_market(panel, ("return_1",), (0, train_last))
    return with_extra_feature(market, "signal", data.signal, (0, train_last)), train_last


def attainable_growth(market: MarketTensor, first: int, last: int, rules: ExecutionRules) -> AttainableGrowth:
    """Return the growth of the grid of policies over bars first to last."""
    beta = torch.tensor(BETAS, dtype=torch.float64).repeat_interleave(len(KAPPAS)).unsqueeze(1)
    kappa = torch.tensor(KAPPAS, dtype=torch.float64).repeat(len(BETAS)).unsqueeze(1)
    signal = market.raw_features[..., market.feature_names.index("signal")].double()
    # An additional account with equal weight at every bar: beta = 0, kappa = 1.
    beta = torch.cat([beta, torch.zeros(1, 1)])
    kappa = torch.cat([kappa, torch.ones(1, 1)])

    def decide(t: int, cash: Tensor, shares: Tensor) -> Tensor:
        values = shares * market.close[t]
        weights = values / (cash + values.sum(-1)).unsqueeze(-1)
        return weights + kappa * (torch.softmax(beta * signal[t], -1) - weights)

    growth = simulate(market, decide, first, last, rules, 1e6, batch=len(beta)).log_returns.mean(0)
    best = int(growth[:-1].argmax())
    full_rebalance = float(growth[:-1][kappa[:-1, 0] == 1].max())
    return AttainableGrowth(
        float(growth[best]), float(beta[best]), float(kappa[best]), full_rebalance, float(growth[-1])
    )


def attained_fraction(
    market: MarketTensor, train_last: int, recipe: Recipe, seed: int, device: torch.device, label: str
) -> tuple[float, dict[str, Any]]:
    """Train on the first half, evaluate on the second; return the fraction of the attainable growth, and details."""
    first = train_last + 1
    last = market.steps
    reference = attainable_growth(market, first, last, rules_of(recipe.environment))
    device_market = to_device(market, device)
    agent = train(device_market, recipe, market.first, train_last - REWARD_LAG, seed, label)
    growth = float(log_returns(agent, device_market, first, last).mean())
    fraction = growth / reference.best
    return fraction, {
        "fraction": fraction,
        "agent_bp_a_day": growth / BASIS_POINT,
        "attainable_bp_a_day": reference.best / BASIS_POINT,
        "full_rebalance_bp_a_day": reference.full_rebalance / BASIS_POINT,
        "equal_weight_bp_a_day": reference.equal / BASIS_POINT,
        "beta": reference.beta,
        "kappa": reference.kappa,
        "samples": agent.samples,
        "seconds": round(agent.seconds, 1),
    }


def planted_row(name: str, recipe: Recipe, seeds: int, device: torch.device) -> Row:
    """Measure the fraction of the attainable growth out of sample, each seed in a separate market."""
    runs = []
    for seed in range(seeds):
        fraction, run = attained_fraction(*planted_market(seed), recipe, seed, device, f"{name} seed {seed}")
        log_progress(f"{name} seed {seed}: fraction {fraction:.3f} in {run['seconds']:.0f} s")
        runs.append(run)
    config = {
        **recipe.to_dict(),
        "samples": runs[0]["samples"],
        "seconds": statistics.median(run["seconds"] for run in runs),
        "runs": runs,
        "world": {"bars": BARS, "assets": ASSETS, "information_coefficient": INFORMATION_COEFFICIENT},
        "grid": {"beta": BETAS, "kappa": KAPPAS},
    }
    return median_row(name, [run["fraction"] for run in runs], "fraction of the attainable growth", config)
