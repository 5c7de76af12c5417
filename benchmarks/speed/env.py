"""Benchmark of market environments: steps/s under random actions."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict

import torch

from benchmarks.harness.rows import CPU, Row, measure_rates, median_row
from benchmarks.speed.speed_env import SpeedSettings, make_speed_env
from finrl_pod.memory import keep_freed_memory

ACTION_POOL_SIZE = 16  # action tensors drawn in advance, so that drawing is not measured
# about a second per run at any size
SAMPLES_PER_RUN = 2_000_000
MIN_STEPS = 4
MAX_STEPS = 200


SIZE = SpeedSettings(envs=8192, observation="flat")  # the size and observations that other libraries report


def env_rows(settings: SpeedSettings = SIZE, device: torch.device = CPU) -> list[Row]:
    """Measure environment steps/s; observation="flat" also writes every flat observation at each step."""
    settings.check()
    keep_freed_memory()
    env = make_speed_env(settings, device)
    generator = torch.Generator(device).manual_seed(1)
    pool = (
        torch.rand(ACTION_POOL_SIZE, env.members, env.envs, env.action_size, generator=generator, device=device) * 2 - 1
    )
    steps = min(max(SAMPLES_PER_RUN // settings.envs, MIN_STEPS), MAX_STEPS)
    env.reset(0)
    env.reuse_buffers(True)  # as a worker does
    shape = (env.members, env.envs, env.observation_size)
    rows = torch.empty(shape, device=device) if settings.observation == "flat" else None

    @torch.no_grad()
    def work() -> int:
        for i in range(steps):
            env.step(pool[i % ACTION_POOL_SIZE], rows)
        return steps * settings.envs

    values = measure_rates("env_steps", work, settings.runs, device)
    writing_bound = None
    if rows is not None:
        writing_bound = statistics.median(measure_rates("rows_filled", fill_rows(rows, steps), settings.runs, device))
    config = {
        **asdict(settings),
        "steps_a_run": steps,
        "flat_size": env.observation_size,
        "whole_shares": env.config.whole_shares,
        "fill": env.config.fill,
        "accounts": str(env.dtype).removeprefix("torch."),
        # upper bound: steps/s if only the flat observations were written
        "bound_of_writing": writing_bound,
    }
    return [median_row("env_steps", values, "steps/s", config)]


def fill_rows(rows: torch.Tensor, steps: int) -> Callable[[], int]:
    """Return work that writes rows [P, E, S] once per step and returns the number of rows written."""

    def work() -> int:
        for _ in range(steps):
            rows.fill_(1.0)
        return steps * rows.shape[0] * rows.shape[1]

    return work
