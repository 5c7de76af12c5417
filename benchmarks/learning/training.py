"""Shared by the learning benchmarks: recipes, training one agent, and its returns on later bars."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from finrl_pod_envs.trading_envs import PortfolioEnv

from benchmarks.harness.rows import log_progress
from benchmarks.harness.simulated_markets import BASIS_POINT
from finrl_pod.rl.acting import run_members
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_registry import ALGORITHMS
from finrl_pod.settings.run import AgentConfig, EnvironmentConfig
from finrl_pod.types import Floats, MarketTensor

PROGRESS_EVERY = 10.0  # seconds


@dataclass(frozen=True)
class Recipe:
    """Environment, agent settings and sample budget of a training."""

    environment: EnvironmentConfig
    agent: AgentConfig
    samples: int

    def to_dict(self) -> dict[str, Any]:
        return {"samples": self.samples, "environment": asdict(self.environment), "agent": asdict(self.agent)}


@dataclass(frozen=True, eq=False)
class TrainedAgent:
    """A trained learner with its environment config, the samples it used and the seconds it took."""

    learner: Learner
    environment: EnvironmentConfig
    samples: int
    seconds: float


def train(market: MarketTensor, recipe: Recipe, first: int, last: int, seed: int, label: str) -> TrainedAgent:
    env = PortfolioEnv(market, recipe.environment, first=first, last=last)
    learner = Learner(env, recipe.agent, seed=seed)
    start = last_report = time.perf_counter()

    def progress(learner: Learner, metrics: dict[str, Any]) -> None:
        nonlocal last_report
        now = time.perf_counter()
        if now - last_report >= PROGRESS_EVERY:
            last_report = now
            samples = learner.samples[0]
            reward = float(metrics["reward"][0]) / BASIS_POINT
            rate = samples / (now - start)
            log_progress(f"{label}: {samples:,} of {recipe.samples:,} samples, {rate:,.0f}/s, {reward:.1f} bp a step")

    learner.learn(recipe.samples, callback=progress)
    return TrainedAgent(learner, env.config, learner.samples[0], time.perf_counter() - start)


def log_returns(agent: TrainedAgent, market: MarketTensor, first: int, last: int) -> Floats:
    """Return log returns per bar [last - first] of the agent without exploration, starting in cash, in float64."""
    learner = agent.learner
    algorithm = learner.algorithm
    ledger = run_members(algorithm.actor, algorithm.weights(), market, agent.environment, first, last)
    return np.asarray(ledger.log_returns[:, 0].cpu().numpy(), dtype=np.float64)


# The leak predicts one interval only: a small gamma suffices.
_OFF_POLICY: Mapping[str, Any] = {"gamma": 0.5, "learning_rate": 3e-3, "learning_starts": 2_000}
_REDQ: Mapping[str, int] = {"gradient_steps": 2, "critics": 5, "policy_delay": 2}
# Environments, samples, and settings that differ from the defaults. Off-policy algorithms draw batches of
# 256 samples: 16 days of 16 accounts each.
_RECIPES: Mapping[str, tuple[int, int, Mapping[str, Any]]] = {
    "a2c": (256, 500_000, {"horizon": 4, "learning_rate": 1e-2, "gamma": 0.5}),
    "analytic": (4096, 4_000_000, {}),
    "shac": (1024, 1_000_000, {"gamma": 0.5}),
    "ddpg": (64, 100_000, _OFF_POLICY),
    "td3": (64, 120_000, _OFF_POLICY),
    "sac": (64, 100_000, {**_OFF_POLICY, "temperature": 0.1}),
    "redq": (64, 80_000, {**_OFF_POLICY, "gamma": 0.0, "temperature": 0.1, **_REDQ}),
}


def recipe(algorithm: str) -> Recipe:
    envs, samples, overrides = _RECIPES[algorithm]
    agent = ALGORITHMS[algorithm].config_class(**{"algorithm": algorithm, **overrides})
    return Recipe(EnvironmentConfig(envs=envs, group=16), agent, samples)


RECIPE_NAMES = tuple(_RECIPES)
