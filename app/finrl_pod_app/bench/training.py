"""Train one agent by a recipe and follow it over later bars: what the learning benchmarks share."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from finrl_pod_envs.portfolio import PortfolioEnv

from finrl_pod.config import AgentConfig, EnvironmentConfig
from finrl_pod.pod.scoring import run_members
from finrl_pod.rl.learner import Learner
from finrl_pod.types import Floats, MarketTensor

BASIS_POINT = 1e-4
PROGRESS_EVERY = 10.0  # seconds


def say(line: str) -> None:
    """A progress line: standard error, so that standard output holds the result alone."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


@dataclass(frozen=True)
class Recipe:
    """How one agent is trained."""

    environment: EnvironmentConfig
    agent: AgentConfig
    samples: int

    def plain(self) -> dict[str, Any]:
        """As JSON knows it."""
        return {"samples": self.samples, "environment": asdict(self.environment), "agent": asdict(self.agent)}


@dataclass(frozen=True, eq=False)
class Trained:
    """A learner, the environment steps it took and the seconds they took."""

    learner: Learner
    samples: int
    seconds: float


def train(market: MarketTensor, recipe: Recipe, first: int, last: int, seed: int, label: str) -> Trained:
    """One agent on decisions first..last of the market."""
    env = PortfolioEnv(market, recipe.environment, first=first, last=last)
    learner = Learner(env, recipe.agent, seed=seed)
    began = shown = time.perf_counter()

    def progress(agent: Learner, metrics: dict[str, Any]) -> None:
        nonlocal shown
        now = time.perf_counter()
        if now - shown >= PROGRESS_EVERY:
            shown = now
            done, reward = agent.samples[0], float(metrics["reward"][0]) / BASIS_POINT
            rate = done / (now - began)
            say(f"{label}: {done:,} of {recipe.samples:,} samples, {rate:,.0f}/s, {reward:.1f} bp a step")

    learner.learn(recipe.samples, callback=progress)
    return Trained(learner, learner.samples[0], time.perf_counter() - began)


def log_returns(trained: Trained, market: MarketTensor, first: int, last: int) -> Floats:
    """[last - first] log returns a bar of the agent without exploration, from cash, in the float64 engine."""
    learner = trained.learner
    algorithm = learner.algorithm
    ledger = run_members(algorithm.actor, algorithm.weights(), market, learner.env.config, first, last)
    return np.asarray(ledger.log_returns[:, 0].cpu().numpy(), dtype=np.float64)
