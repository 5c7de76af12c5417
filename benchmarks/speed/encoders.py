"""Processor time per sample of PPO and of the analytic policy gradient with each look-back encoder.

4 agents of 256 environments in groups of 16, 20 assets, 13 features and the default look-back, on one thread. Larger
groups cost less per sample: a row is encoded once for all accounts that share it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Literal

import torch

from benchmarks.harness.rows import CPU, Row, log_progress, median_row
from benchmarks.speed.speed_env import SpeedSettings, make_speed_env
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import AnalyticConfig
from finrl_pod.settings.run import PPOConfig

SIZE = SpeedSettings(
    envs=1024, members=4, group=16, assets=20, features=12, kind="portfolio", mandate="equal_weight"
)  # with the price, 13 features
Encoder = Literal["none", "convolution", "gru", "attention"]
ENCODERS: tuple[Encoder, ...] = ("none", "convolution", "gru", "attention")
AGENTS: dict[str, PPOConfig | AnalyticConfig] = {"ppo": PPOConfig(), "analytic": AnalyticConfig()}


@dataclass(frozen=True)
class EncoderSettings:
    """Settings of `encoders`. runs: iterations after one that warms up; the median is reported."""

    runs: int = 3


def encoder_rows(settings: EncoderSettings, device: torch.device = CPU) -> Iterator[Row]:
    """Measure every agent with every encoder."""
    for name, agent in AGENTS.items():
        for encoder in ENCODERS:
            learner = Learner(make_speed_env(SIZE, device), replace(agent, encoder=encoder))
            samples = learner.iteration_samples * SIZE.members
            learner.learn(learner.iteration_samples)
            values = []
            for _ in range(settings.runs):
                start = time.process_time()
                learner.learn(learner.iteration_samples)
                values.append((time.process_time() - start) / samples * 1e6)
                log_progress(f"{name}, {encoder}: {values[-1]:.1f} us per sample")
            config = {"agent": name, "encoder": encoder, "lookback": agent.lookback, **asdict(SIZE)}
            yield median_row(
                f"{name}_{encoder}", values, "us of processor time a sample", {**config, "runs": settings.runs}
            )
