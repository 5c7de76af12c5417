"""Samples a second of PPO end to end: rollout, advantages, all epochs of the update."""

from __future__ import annotations

import torch

from finrl_pod.config import AgentConfig
from finrl_pod.rl.learner import Learner
from finrl_pod_app.bench.rows import Row, over_runs
from finrl_pod_app.bench.speed import SpeedSettings, make_speed_env, rates

SAMPLES_A_RUN, MOST_ITERATIONS = 64_000, 16  # a run lasts about a second at any size
NEVER = 1e9  # a KL that is never reached: an early stop would spare work that is to be measured
LEARNING_RATE = 3e-4


def ppo_row(settings: SpeedSettings, device: torch.device) -> Row:
    """Environment steps a second, learned from in full."""
    settings.check()
    agent = AgentConfig(
        policy=settings.policy,
        hidden=settings.hidden,
        horizon=settings.horizon,
        epochs=settings.epochs,
        minibatches=settings.minibatches,
        learning_rate=LEARNING_RATE,
        learning_rate_schedule="constant",
        discount=0.99,
        gae_lambda=0.95,
        target_kl=NEVER,
    )
    env = make_speed_env(settings, device)
    learner = Learner(env, agent)
    iterations = min(max(SAMPLES_A_RUN // (settings.envs * settings.horizon), 1), MOST_ITERATIONS)
    samples = iterations * settings.envs * settings.horizon

    def work() -> int:
        learner.learn(samples)
        return samples

    values = rates("ppo_samples", work, settings.runs, device)
    config = {**settings.plain(), "samples_a_run": samples, "minibatches": settings.minibatches}
    return over_runs("ppo_samples", values, "samples/s", config)
