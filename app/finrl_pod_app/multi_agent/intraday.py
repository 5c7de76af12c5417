"""Order execution within a session: a trained agent, and the shortfall of schedules on the same sessions.

Each session counts once: the mean of a purchase and a sale, in which the price path cancels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from finrl_pod_envs.intraday_execution import AgentSchedule, IntradayExecutionEnv

from finrl_pod.market.intraday import IntradaySessions, Schedule, execute
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import PPOConfig
from finrl_pod.settings.multi_agent import IntradayExecutionConfig

SAMPLES, ENVS = 1_000_000, 128
DRAWS, LEVEL = 10_000, 0.90


@dataclass(frozen=True)
class ShortfallSummary:
    """Mean implementation shortfall of a schedule and its difference from even slices, in basis points.

    low, high: bootstrap interval of the mean over sessions; difference_low, difference_high: interval of the paired
    difference.
    """

    mean: float
    low: float
    high: float
    difference: float
    difference_low: float
    difference_high: float


def train_execution(
    sessions: IntradaySessions, config: IntradayExecutionConfig, *, samples: int = SAMPLES, seed: int = 0
) -> AgentSchedule:
    """A PPO agent trained on these sessions, as a schedule."""
    env = IntradayExecutionEnv(sessions, config, envs=ENVS)
    agent = PPOConfig(
        policy="mlp", hidden=(32, 32), horizon=sessions.bars, gamma=1.0, gae_lambda=0.9, log_std_init=-1.5,
        learning_rate=2e-3, epochs=4,
    )  # fmt: skip
    learner = Learner(env, agent, seed=seed)
    learner.learn(samples)
    return AgentSchedule(env, learner.act)


def compare(
    sessions: IntradaySessions, schedules: Mapping[str, Schedule], config: IntradayExecutionConfig
) -> dict[str, ShortfallSummary]:
    """Shortfall of every schedule over the same sessions; "twap" must be among them."""
    costs = {
        name: torch.stack([execute(sessions, schedule, config, side=side).shortfall for side in (1, -1)])
        .mean(0)
        .numpy()
        for name, schedule in schedules.items()
    }
    summaries = {}
    for name, cost in costs.items():
        difference = cost - costs["twap"]
        summaries[name] = ShortfallSummary(
            float(cost.mean()), *mean_interval(cost), float(difference.mean()), *mean_interval(difference)
        )
    return summaries


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """Percentile interval of the mean of values [n], by a bootstrap."""
    rng = np.random.default_rng(0)
    means = values[rng.integers(0, len(values), (DRAWS, len(values)))].mean(1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
