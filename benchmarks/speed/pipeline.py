"""Benchmark of the pipeline: collecting and learning concurrently, compared with alternately."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv

from benchmarks.harness.rows import Row, median_row
from benchmarks.learning.training import log_progress
from finrl_pod.errors import ConfigError
from finrl_pod.rl.training.learner import Learner
from finrl_pod.rl.training.pipeline import Pipeline, PipelineStats
from finrl_pod.settings.algorithm_configs import SACConfig

LEARNING_STARTS = 500


@dataclass(frozen=True)
class PipelineSettings:
    """Settings of soft actor-critic with one gradient step per sample. width: of both hidden layers."""

    env: str = "gym:Hopper-v5"
    steps: int = 3000
    envs: int = 1
    width: int = 64
    runs: int = 3

    def check(self) -> None:
        """Raise ConfigError for a setting out of range."""
        for name, minimum in (("steps", 2 * LEARNING_STARTS), ("envs", 1), ("width", 1), ("runs", 1)):
            if getattr(self, name) < minimum:
                raise ConfigError(f"--{name} must be at least {minimum}, got {getattr(self, name)}")


def pipeline_rows(settings: PipelineSettings, device: torch.device) -> list[Row]:
    """Measure both modes, interleaved, with equal settings and budgets; rates exclude the warm-up."""
    settings.check()
    config = SACConfig(
        policy="mlp", hidden=(settings.width, settings.width), batch_size=256, buffer_size=settings.steps * 2,
        learning_starts=LEARNING_STARTS, gradient_steps=settings.envs, scale_rewards=False, max_grad_norm=1e9,
        gamma=0.99, learning_rate_schedule="constant",
    )  # fmt: skip
    make_env = functools.partial(GymnasiumVecEnv, settings.env, envs=settings.envs)
    make_here = functools.partial(make_env, device=device)
    each: dict[str, list[tuple[float, float]]] = {"sync": [], "async": []}
    figures: list[PipelineStats] = []
    for run in range(settings.runs):
        each["sync"].append(_alternating(make_here, config, settings.steps, run))
        rates, done = _concurrent(make_env, make_here, config, settings.steps, run)
        each["async"].append(rates)
        figures.append(done)
        log_progress(
            f"run {run + 1} of {settings.runs}: {each['sync'][-1][0]:,.0f} samples/s alternately, "
            f"{rates[0]:,.0f} concurrently"
        )
    known = {**asdict(settings), "threads": torch.get_num_threads(), "ratio": config.gradient_steps / settings.envs}
    rows = []
    for side, rates_of in each.items():
        rows += [
            median_row(f"pipeline_{side}_{unit}", [rates[i] for rates in rates_of], f"{unit}/s", known)
            for i, unit in enumerate(("samples", "updates"))
        ]
    gains = [b[0] / a[0] for a, b in zip(each["sync"], each["async"], strict=True)]
    rows.append(median_row("pipeline_gain", gains, "of the alternating samples/s", known))
    rows.append(median_row("pipeline_ratio", [f.ratio for f in figures], "updates per sample", known))
    rows.append(median_row("pipeline_staleness", [f.staleness for f in figures], "mean updates behind", known))
    rows.append(median_row("pipeline_most_stale", [float(f.most_stale) for f in figures], "max updates behind", known))
    return rows


def _alternating(
    make_env: Callable[[], GymnasiumVecEnv], config: SACConfig, steps: int, seed: int
) -> tuple[float, float]:
    with contextlib.closing(make_env()) as env:
        learner = Learner(env, config, seed=seed)
        learner.learn(LEARNING_STARTS)
        before, began = learner.samples[0], time.perf_counter()
        updates = getattr(learner.algorithm, "updates")  # noqa: B009  of every off-policy algorithm
        learner.learn(steps - before)
        spent = time.perf_counter() - began
        return (learner.samples[0] - before) / spent, (getattr(learner.algorithm, "updates") - updates) / spent  # noqa: B009


def _concurrent(
    make_env: Callable[[], GymnasiumVecEnv],
    make_here: Callable[[], GymnasiumVecEnv],
    config: SACConfig,
    steps: int,
    seed: int,
) -> tuple[tuple[float, float], PipelineStats]:
    with Pipeline(make_env, config, seed=seed, make_here=make_here) as pipeline:
        first = pipeline.learn(LEARNING_STARTS + config.gradient_steps)
        before = (pipeline.stats.samples, first.updates)
        began = time.perf_counter()
        done = pipeline.learn(steps)
        spent = time.perf_counter() - began
        return ((steps - LEARNING_STARTS - config.gradient_steps) / spent, (done.updates - before[1]) / spent), done
