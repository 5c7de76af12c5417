"""Cost of look-back encoders: processor time a sample of PPO and of the analytic policy gradient.

    python -m benchmarks encoders --out benchmarks/encoders.json

4 agents of 256 environments in groups of 16, 20 assets, 13 features and the default look-back, on one thread. Larger
groups cost less a sample: a row is encoded once for all accounts that share it.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from benchmarks.harness.rows import Row, as_json, as_table, describe, document, median_row
from benchmarks.speed.speed_env import SpeedSettings, make_speed_env
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import AnalyticConfig
from finrl_pod.settings.run import PPOConfig

SETTINGS = SpeedSettings(
    envs=1024, members=4, group=16, assets=20, features=12, kind="portfolio", mandate="equal_weight"
)  # with the price, 13 features
Encoder = Literal["none", "convolution", "gru", "attention"]
ENCODERS: tuple[Encoder, ...] = ("none", "convolution", "gru", "attention")
AGENTS: dict[str, PPOConfig | AnalyticConfig] = {"ppo": PPOConfig(), "analytic": AnalyticConfig()}


def measure(name: str, encoder: Encoder, runs: int) -> Row:
    """Median over iterations of processor time a sample, after one that warms up."""
    agent = replace(AGENTS[name], encoder=encoder)
    learner = Learner(make_speed_env(SETTINGS, torch.device("cpu")), agent)
    samples = learner.iteration_samples * SETTINGS.members
    learner.learn(learner.iteration_samples)
    values = []
    for _ in range(runs):
        began = time.process_time()
        learner.learn(learner.iteration_samples)
        values.append((time.process_time() - began) / samples * 1e6)
        sys.stderr.write(f"{name}, {encoder}: {values[-1]:.1f} us a sample\n")
    config = {"agent": name, "encoder": encoder, "lookback": agent.lookback, "runs": runs, **SETTINGS.to_dict()}
    return median_row(f"{name}_{encoder}", values, "us of processor time a sample", config)


def main() -> None:
    """Measure and print, and write --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(name, encoder, options.runs) for name in AGENTS for encoder in ENCODERS]
    sys.stdout.write(as_table(rows))
    if options.out is not None:
        options.out.write_text(as_json(document(rows, describe(torch.device("cpu")))))
