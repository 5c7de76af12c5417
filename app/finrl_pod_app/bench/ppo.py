"""Samples a second of PPO end to end: rollout, advantages, all epochs of the update."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.run import PPOConfig
from finrl_pod_app.bench.rows import Row, over_runs
from finrl_pod_app.bench.speed import SpeedSettings, make_speed_env, rates

SAMPLES_A_RUN, MOST_ITERATIONS = 128_000, 16  # a run lasts about a second at any size
NEVER = 1e9  # a KL that is never reached: an early stop would spare work that is to be measured
LEARNING_RATE = 3e-4


def ppo_row(settings: SpeedSettings, device: torch.device) -> Row:
    """Environment steps a second, learned from in full; of all members together."""
    settings.check()
    work, samples = _work(settings, device)
    began = time.perf_counter()
    work()
    first = time.perf_counter() - began
    values = rates("ppo_samples", work, settings.runs, device)
    return over_runs("ppo_samples", values, "samples/s", _config(settings, samples, first))


def population_rows(settings: SpeedSettings, device: torch.device) -> list[Row]:
    """The same environments and minibatches divided among many members, one member with all of them, and their ratio.

    The two take turns, so that a machine that slows down slows both.
    """
    settings.check()
    alone = replace(settings, members=1)
    (many, samples), (one, _) = _work(settings, device), _work(alone, device)
    many(), one()
    each: dict[int, list[float]] = {settings.members: [], 1: []}
    for _ in range(settings.runs):
        for members, work in ((settings.members, many), (1, one)):
            each[members] += rates(f"{members} members", work, 1, device, warm_up=False)
    ratios = [a / b for a, b in zip(each[settings.members], each[1], strict=True)]
    config = _config(settings, samples)
    return [
        over_runs("population_samples", each[settings.members], "samples/s", config),
        over_runs("population_samples_alone", each[1], "samples/s", _config(alone, samples)),
        over_runs("population_ratio", ratios, "of one member's rate", config),
    ]


def _work(settings: SpeedSettings, device: torch.device) -> tuple[Callable[[], int], int]:
    """A call that trains on so many samples, about a second's worth, and their number over all members."""
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
        target_kl=NEVER,
    )
    learner = Learner(make_speed_env(settings, device), agent)
    iterations = min(max(SAMPLES_A_RUN // (settings.envs * settings.horizon), 1), MOST_ITERATIONS)
    each = iterations * settings.envs_each * settings.horizon

    def work() -> int:
        learner.learn(each)
        return each * settings.members

    return work, each * settings.members


def _config(settings: SpeedSettings, samples: int, first: float | None = None) -> dict[str, Any]:
    known = {**settings.plain(), "samples_a_run": samples, "minibatches": settings.minibatches}
    return known if first is None else {**known, "first_call_seconds": round(first, 3)}
