"""Benchmark of PPO end to end: samples/s over rollout, advantages and all epochs of the update."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import torch

from benchmarks.harness.rows import CPU, Row, measure_rates, median_row
from benchmarks.speed.speed_env import SpeedSettings, make_speed_env
from finrl_pod.rl.training.graphs import WARM_UP
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.run import PPOConfig

# about a second per run at any size
SAMPLES_PER_RUN = 128_000
MAX_ITERATIONS = 16
UNREACHABLE_KL = 1e9  # no early stopping: it would skip work that is to be measured
LEARNING_RATE = 3e-4
POPULATION = SpeedSettings(policy="equivariant", members=32)


def ppo_rows(settings: SpeedSettings, device: torch.device = CPU) -> list[Row]:
    settings.check()
    work, samples = _work(settings, device)
    start = time.perf_counter()
    work()
    first = time.perf_counter() - start
    values = measure_rates("ppo_samples", work, settings.runs, device)
    return [median_row("ppo_samples", values, "samples/s", _config(settings, samples, first))]


def population_rows(settings: SpeedSettings = POPULATION, device: torch.device = CPU) -> list[Row]:
    """Measure samples/s of many members, of one member with the same total of samples, and the ratio.

    Runs are interleaved, so that changes in machine speed affect both.
    """
    settings.check()
    single = replace(settings, members=1)
    (train_many, samples) = _work(settings, device)
    (train_single, _) = _work(single, device)
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


def _work(settings: SpeedSettings, device: torch.device) -> tuple[Callable[[], int], int]:
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
