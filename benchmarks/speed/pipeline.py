"""Benchmark of the pipeline: collecting and learning concurrently, compared with alternately."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv

from benchmarks.harness.options import check_minimum
from benchmarks.harness.rows import CPU, Row, log_progress, median_row
from finrl_pod.rl.algorithms.off_policy import OffPolicy
from finrl_pod.rl.training.learner import Learner
from finrl_pod.rl.training.pipeline import Pipeline, PipelineStats
from finrl_pod.settings.algorithm_configs import SACConfig

LEARNING_STARTS = 500


@dataclass(frozen=True)
class PipelineSettings:
    """Settings of soft actor-critic with one gradient step per sample. width: units of both hidden layers."""

    env: str = "gym:Hopper-v5"
    steps: int = 3000
    envs: int = 1
    width: int = 64
    runs: int = 3


def pipeline_rows(settings: PipelineSettings, device: torch.device = CPU) -> list[Row]:
    """Measure both modes, interleaved, with equal settings and budgets; rates exclude the warm-up."""
    check_minimum(settings, steps=2 * LEARNING_STARTS, envs=1, width=1, runs=1)
    config = SACConfig(
        policy="mlp", hidden=(settings.width, settings.width), batch_size=256, buffer_size=settings.steps * 2,
        learning_starts=LEARNING_STARTS, gradient_steps=settings.envs, scale_rewards=False, max_grad_norm=1e9,
        gamma=0.99, learning_rate_schedule="constant",
    )  # fmt: skip
    make_env = functools.partial(GymnasiumVecEnv, settings.env, envs=settings.envs)
    make_here = functools.partial(make_env, device=device)
    rates_by_side: dict[str, list[tuple[float, float]]] = {"sync": [], "async": []}
    figures: list[PipelineStats] = []
    for run in range(settings.runs):
        rates_by_side["sync"].append(_alternating(make_here, config, settings.steps, run))
        rates, stats = _concurrent(make_env, make_here, config, settings.steps, run)
        rates_by_side["async"].append(rates)
        figures.append(stats)
        log_progress(
            f"run {run + 1} of {settings.runs}: {rates_by_side['sync'][-1][0]:,.0f} samples/s alternately, "
            f"{rates[0]:,.0f} concurrently"
        )
    ratio = config.gradient_steps / settings.envs
    common_config = {**asdict(settings), "threads": torch.get_num_threads(), "ratio": ratio}
    rows = []
    for side, rates_of in rates_by_side.items():
        rows += [
            median_row(f"pipeline_{side}_{unit}", [rates[i] for rates in rates_of], f"{unit}/s", common_config)
            for i, unit in enumerate(("samples", "updates"))
        ]
    gains = [b[0] / a[0] for a, b in zip(rates_by_side["sync"], rates_by_side["async"], strict=True)]
    figures_by_name = {
        "gain": (gains, "of the alternating samples/s"),
        "ratio": ([stats.ratio for stats in figures], "updates per sample"),
        "staleness": ([stats.staleness for stats in figures], "mean updates behind"),
        "most_stale": ([float(stats.most_stale) for stats in figures], "max updates behind"),
    }
    rows += [median_row(f"pipeline_{name}", *figure, common_config) for name, figure in figures_by_name.items()]
    return rows


def _alternating(
    make_env: Callable[[], GymnasiumVecEnv], config: SACConfig, steps: int, seed: int
) -> tuple[float, float]:
    with contextlib.closing(make_env()) as env:
        learner = Learner(env, config, seed=seed)
        learner.learn(LEARNING_STARTS)
        counts_before = learner.samples[0]
        start = time.perf_counter()
        algorithm = learner.algorithm
        assert isinstance(algorithm, OffPolicy)
        updates = algorithm.updates
        learner.learn(steps - counts_before)
        seconds = time.perf_counter() - start
        return (learner.samples[0] - counts_before) / seconds, (algorithm.updates - updates) / seconds


def _concurrent(
    make_env: Callable[[], GymnasiumVecEnv],
    make_here: Callable[[], GymnasiumVecEnv],
    config: SACConfig,
    steps: int,
    seed: int,
) -> tuple[tuple[float, float], PipelineStats]:
    with Pipeline(make_env, config, seed=seed, make_here=make_here) as pipeline:
        warm_up = LEARNING_STARTS + config.gradient_steps
        updates = pipeline.learn(warm_up).updates
        start = time.perf_counter()
        stats = pipeline.learn(steps)
        seconds = time.perf_counter() - start
        return ((steps - warm_up) / seconds, (stats.updates - updates) / seconds), stats
