"""Learning in bfloat16 and in float32, by the programs of a GPU.

Trains PPO twice from the same seeds, with activations and stored accounts in float32 and in bfloat16: an MLP and the
default policy under a mandate on the leaked future, and the default policy under a mandate on the planted signal.
Without --device cuda the programs run in torch on the CPU and round to bfloat16 at the same places.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from finrl_pod_envs.trading_envs import PortfolioEnv

from benchmarks.harness.rows import CPU, Row, log_progress, median_row
from benchmarks.harness.simulated_markets import BASIS_POINT, REWARD_LAG
from benchmarks.learning.leaked_signal import MLP, capture_row, sample_market
from benchmarks.learning.planted import RECIPE as PLANTED_RECIPE
from benchmarks.learning.planted import attainable_growth, planted_market
from benchmarks.learning.training import Recipe
from finrl_pod.data.tensor import leaked_return, to_device, with_extra_feature
from finrl_pod.market.rules import rules_of
from finrl_pod.native.device import as_on_device
from finrl_pod.rl.acting.member_accounts import run_members
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig, PPOConfig
from finrl_pod.types import MarketTensor

TILT = MandateConfig(base="equal_weight", tilt=2.0, trade_speed=1.0)
SLOW_TILT = replace(TILT, trade_speed=0.15)  # near the best fraction of the grid in planted.py
LEAKED = Recipe(
    EnvironmentConfig(envs=256, group=16),
    PPOConfig(horizon=16, epochs=2, minibatches=4, learning_rate=1e-2, gamma=0.5, gae_lambda=0.9),
    samples=300_000,
)
PLANTED = replace(PLANTED_RECIPE, samples=2_000_000)


@dataclass(frozen=True)
class PrecisionSettings:
    """Settings of `precision`. samples: training samples of every agent; None for the numbers of its recipe."""

    seeds: int = 3
    samples: int | None = None


def growth_under_mandate(
    market: MarketTensor, train_last: int, recipe: Recipe, mandate: MandateConfig, seed: int
) -> float:
    """Train under `mandate` up to bar `train_last`; return the mean log growth per bar afterwards."""
    env = PortfolioEnv(market, recipe.environment, first=market.first, last=train_last - REWARD_LAG, mandate=mandate)
    learner = Learner(env, recipe.agent, seed=seed)
    learner.learn(recipe.samples)
    algorithm = learner.algorithm
    ledger = run_members(
        algorithm.actor, algorithm.weights(), market, env.config, train_last + 1, market.steps, mandate=mandate
    )
    return float(ledger.log_returns.mean())


def leaked_row(name: str, recipe: Recipe, seeds: int, device: torch.device) -> Row:
    """Log growth per bar out of sample of the default policy under `TILT`, in basis points."""
    _, market, train_last = sample_market()
    leaky = to_device(with_extra_feature(market, "leak", leaked_return(market), (0, train_last)), device)
    growth = []
    for seed in range(seeds):
        growth.append(growth_under_mandate(leaky, train_last, recipe, TILT, seed) / BASIS_POINT)
        log_progress(f"{name} seed {seed}: {growth[-1]:.2f} bp a bar")
    return median_row(name, growth, "bp a bar", {**recipe.to_dict(), "each": growth})


def planted_row(name: str, recipe: Recipe, seeds: int, device: torch.device) -> Row:
    """Share of the attainable growth that the default policy under `SLOW_TILT` reaches, each seed in its market."""
    shares = []
    for seed in range(seeds):
        market, train_last = planted_market(seed)
        best = attainable_growth(market, train_last + 1, market.steps, rules_of(recipe.environment)).best
        shares.append(growth_under_mandate(to_device(market, device), train_last, recipe, SLOW_TILT, seed) / best)
        log_progress(f"{name} seed {seed}: {shares[-1]:.3f} of the attainable growth")
    return median_row(name, shares, "fraction of the attainable growth", {**recipe.to_dict(), "each": shares})


def precision_rows(settings: PrecisionSettings, device: torch.device = CPU) -> Iterator[Row]:
    """Measure every task in both precisions."""
    tasks = (
        ("leaked_ppo_mlp", capture_row, MLP),
        ("leaked_ppo_mandate", leaked_row, LEAKED),
        ("planted_ppo_mandate", planted_row, PLANTED),
    )
    for name, measure, recipe in tasks:
        for dtype in ("float32", "bfloat16"):
            agent = replace(recipe.agent, activation_dtype=dtype)  # type: ignore[call-arg]
            precise = replace(recipe, agent=agent, samples=settings.samples or recipe.samples)
            with as_on_device() if device.type == "cpu" else nullcontext():
                yield measure(f"{name}, {dtype}", precise, settings.seeds, device)
