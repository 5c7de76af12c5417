"""The collector process: update ratio, staleness, schedules, failures and clean-up."""

from __future__ import annotations

import functools
import os
import signal
import time
from typing import Any

import psutil
import pytest
import torch
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv

from finrl_pod.errors import ConfigError, RunError
from finrl_pod.rl.training.pipeline import AHEAD, Pipeline, SharedReplay
from finrl_pod.settings.algorithm_configs import PPOConfig, SACConfig

pytestmark = pytest.mark.slow

PENDULUM = functools.partial(GymnasiumVecEnv, "gym:Pendulum-v1", envs=2)
SMALL: dict[str, Any] = {"policy": "mlp", "hidden": (16,), "batch_size": 16, "buffer_size": 200, "learning_starts": 40}


@pytest.mark.parametrize("updates", [1, 4])
def test_ratio_of_updates_to_samples(updates: int) -> None:
    config = SACConfig(**SMALL, gradient_steps=updates)
    episodes_seen: list[Any] = []
    with Pipeline(PENDULUM, config, seed=1) as pipeline:
        start = pipeline._acting_weights().clone()
        metrics = pipeline.learn(600, after=lambda _, episodes: episodes_seen.extend(episodes))
        collector = psutil.Process(pipeline._process.pid)
        assert collector.is_running()
    assert not collector.is_running()
    assert metrics.updates == (600 - 40) * updates // 2
    assert 600 <= metrics.samples <= 600 + 2 * (AHEAD + 2)
    assert abs(metrics.updates - (metrics.samples - 40) * updates / 2) <= (AHEAD + 2) * updates
    assert 0 <= metrics.staleness <= metrics.most_stale <= 3 * AHEAD * updates
    assert (pipeline._acting_weights() - start).abs().max() > 1e-3
    assert [episode[2] for episode in episodes_seen] == [200] * len(episodes_seen)
    assert len(episodes_seen) >= 2
    data = pipeline.algorithm.replay.data
    assert (data["reward"] < 0).all(), "the buffer has wrapped around, so that every item is written"
    assert torch.isfinite(data["row"]).all()


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_learning_rate_schedule_follows_the_updates(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SACConfig(**SMALL, gradient_steps=1, learning_rate_schedule=schedule)  # type: ignore[arg-type]
    with Pipeline(PENDULUM, config, seed=1) as pipeline:
        learn, factors = pipeline.algorithm.learn, []

        def recording_learn(count: int, factor: float) -> None:
            factors.append((pipeline.algorithm.updates, factor))
            learn(count, factor)

        monkeypatch.setattr(pipeline.algorithm, "learn", recording_learn)
        pipeline.learn(240)
    total = (240 - 40) // 2
    assert len(factors) > 3
    for updates, factor in factors:
        assert factor == pytest.approx(1 - updates / total if schedule == "linear" else 1.0)


def test_shared_replay_reserves_space_for_items_being_written() -> None:
    replay = SharedReplay({"x": torch.zeros(1, 10)}, 3, torch.device("cpu"))
    replay.add({"x": torch.arange(1.0, 7).view(1, -1)})
    assert replay.count == 6
    replay.add({"x": torch.arange(7.0, 15).view(1, -1)})
    assert replay.count == 7
    taken = replay.take(torch.arange(7).view(1, 1, 7))["x"]
    assert taken.flatten().tolist() == [14, 13, 12, 11, 10, 9, 8]


def test_killed_collector_raises_run_error() -> None:
    def kill(pipeline: Pipeline, _: Any) -> None:
        pipeline._process.kill()
        pipeline._process.join()

    with (
        Pipeline(PENDULUM, SACConfig(**SMALL), seed=1) as pipeline,
        pytest.raises(RunError, match="collector process ended with exit code -9"),
    ):
        pipeline.learn(10_000_000, after=kill)


def test_collector_ignores_sigterm() -> None:
    def send_sigterm(pipeline: Pipeline, _: Any) -> None:
        assert pipeline._process.pid is not None
        os.kill(pipeline._process.pid, signal.SIGTERM)

    with Pipeline(PENDULUM, SACConfig(**SMALL), seed=1) as pipeline:
        assert pipeline.learn(300, after=send_sigterm).samples >= 300


def test_collector_killed_while_holding_the_lock_is_detected() -> None:
    with Pipeline(PENDULUM, SACConfig(**SMALL), seed=1) as pipeline:
        pipeline.learn(100)
        pipeline._link.lock.acquire()
        pipeline._process.kill()
        pipeline._process.join()
        with pytest.raises(RunError, match="ended with exit code -9"):
            pipeline._publish_weights()


def test_replay_larger_than_shared_memory_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_no_space(x: torch.Tensor) -> None:
        raise RuntimeError("No space left on device (28)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", raise_no_space)
    with pytest.raises(ConfigError, match=r"agent\.buffer_size of 200 transitions does not fit into shared memory"):
        Pipeline(PENDULUM, SACConfig(**SMALL), seed=1)


def pendulum_hanging_outside(home: int) -> GymnasiumVecEnv:
    """Pendulum whose creation hangs in every process other than `home`."""
    if os.getpid() != home:
        time.sleep(600)
    return PENDULUM()


def test_hanging_collector_raises_run_error_after_the_timeout() -> None:
    hanging = functools.partial(pendulum_hanging_outside, os.getpid())
    with (
        Pipeline(hanging, SACConfig(**SMALL), seed=1, timeout=0.5) as pipeline,
        pytest.raises(RunError, match=r"the collector has sent no sample for 0\.5 s, the limit"),
    ):
        pipeline.learn(100)


def test_collector_errors_are_raised_by_learn() -> None:
    faulty_env = functools.partial(GymnasiumVecEnv, "gym:tests.envs.gymnasium_pool.faulty_envs:Short-v0")
    with (
        Pipeline(faulty_env, SACConfig(**SMALL), seed=1) as pipeline,
        pytest.raises(RunError, match=r"observation of shape \(2,\), its observation_space has \(3,\)"),
    ):
        pipeline.learn(1000)


def test_invalid_pipelines_are_rejected() -> None:
    with pytest.raises(ConfigError, match="needs an off-policy algorithm, got ppo"):
        Pipeline(PENDULUM, PPOConfig())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"agent\.buffer_size must be at least 32"):
        Pipeline(PENDULUM, SACConfig(**{**SMALL, "buffer_size": 20}))
