"""Benchmarks of a market: steps/s of the environment under random actions, and samples/s of PPO end to end."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import torch

from benchmarks.harness.rows import CPU, Row, measure_rates, median_row, synchronize
from benchmarks.speed.speed_env import SpeedSettings, make_speed_env
from finrl_pod.memory import keep_freed_memory
from finrl_pod.rl.training.graphs import WARM_UP
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.run import PPOConfig

ACTION_POOL_SIZE = 16  # action tensors drawn in advance, so that drawing is not measured
# about a second per run at any size
STEPS_PER_RUN = 2_000_000
MIN_STEPS = 4
MAX_STEPS = 200
SAMPLES_PER_RUN = 128_000
MAX_ITERATIONS = 16
UNREACHABLE_KL = 1e9  # no early stopping: it would skip work that is to be measured
LEARNING_RATE = 3e-4
SIZE = SpeedSettings(envs=8192, observation="flat")  # the size and observations that other libraries report
POPULATION = SpeedSettings(policy="equivariant", members=32)


def env_rows(settings: SpeedSettings = SIZE, device: torch.device = CPU) -> list[Row]:
    """Measure environment steps/s; observation="flat" also writes every flat observation at each step."""
    settings.check()
    keep_freed_memory()
    env = make_speed_env(settings, device)
    generator = torch.Generator(device).manual_seed(1)
    pool = (
        torch.rand(ACTION_POOL_SIZE, env.members, env.envs, env.action_size, generator=generator, device=device) * 2 - 1
    )
    steps = min(max(STEPS_PER_RUN // settings.envs, MIN_STEPS), MAX_STEPS)
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

        def fill_rows() -> int:
            for _ in range(steps):
                rows.fill_(1.0)
            return steps * env.members * env.envs

        writing_bound = statistics.median(measure_rates("rows_filled", fill_rows, settings.runs, device))
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


def ppo_rows(settings: SpeedSettings, device: torch.device = CPU) -> list[Row]:
    settings.check()
    start = time.perf_counter()
    work, samples = training_work(settings, device)
    work()
    synchronize(device)
    first = time.perf_counter() - start
    values = measure_rates("ppo_samples", work, settings.runs, device)
    return [median_row("ppo_samples", values, "samples/s", _config(settings, samples, first))]


def population_rows(settings: SpeedSettings = POPULATION, device: torch.device = CPU) -> list[Row]:
    """Measure samples/s of many members, of one member with the same total of samples, and the ratio.

    Runs are interleaved, so that changes in machine speed affect both.
    """
    settings.check()
    single = replace(settings, members=1)
    (train_many, samples) = training_work(settings, device)
    (train_single, _) = training_work(single, device)
    train_many(), train_single()
    rates: dict[int, list[float]] = {settings.members: [], 1: []}
    for _ in range(settings.runs):
        for members, work in ((settings.members, train_many), (1, train_single)):
            rates[members] += measure_rates(f"{members} members", work, 1, device, warm_up=False)
    ratios = [a / b for a, b in zip(rates[settings.members], rates[1], strict=True)]
    config = _config(settings, samples)
    return [
        median_row("population_samples", rates[settings.members], "samples/s", config),
        median_row("population_samples_alone", rates[1], "samples/s", _config(single, samples)),
        median_row("population_ratio", ratios, "of one member's rate", config),
    ]


def training_work(settings: SpeedSettings, device: torch.device) -> tuple[Callable[[], int], int]:
    """Return a function that trains for about a second, and the samples it processes over all members."""
    agent = PPOConfig(
        policy=settings.policy,
        hidden=settings.hidden,
        horizon=settings.horizon,
        epochs=settings.epochs,
        minibatches=settings.minibatches,
        learning_rate=LEARNING_RATE,
        learning_rate_schedule="constant",
        gamma=0.99,
        gae_lambda=0.95,
        target_kl=UNREACHABLE_KL,
        matmul_precision=settings.matmul_precision,
        activation_dtype=settings.activation_dtype,
    )
    learner = Learner(make_speed_env(settings, device), agent)
    if device.type == "cuda":  # the iteration after the warm-up is captured
        learner.learn((WARM_UP + 1) * learner.iteration_samples)
    iterations = min(max(SAMPLES_PER_RUN // (settings.envs * settings.horizon), 1), MAX_ITERATIONS)
    samples = iterations * settings.envs_each * settings.horizon

    def work() -> int:
        learner.learn(samples)
        return samples * settings.members

    return work, samples * settings.members


def _config(settings: SpeedSettings, samples: int, first: float | None = None) -> dict[str, Any]:
    config = {**asdict(settings), "samples_a_run": samples, "minibatches": settings.minibatches}
    return config if first is None else {**config, "first_call_seconds": round(first, 3)}
