"""Collecting and learning at once: the ratio that is held, what is stale, and that nothing stays behind."""

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
def test_updates_stay_at_their_ratio_to_samples(updates: int) -> None:
    config = SACConfig(**SMALL, gradient_steps=updates)
    heard: list[Any] = []
    with Pipeline(PENDULUM, config, seed=1) as pipeline:
        start = pipeline._acting_weights().clone()
        metrics = pipeline.learn(600, after=lambda _, episodes: heard.extend(episodes))
        child = psutil.Process(pipeline._process.pid)
        assert child.is_running()
    assert not child.is_running()
    assert metrics.updates == (600 - 40) * updates // 2
    assert 600 <= metrics.samples <= 600 + 2 * (AHEAD + 2)
    assert abs(metrics.updates - (metrics.samples - 40) * updates / 2) <= (AHEAD + 2) * updates
    assert 0 <= metrics.staleness <= metrics.most_stale <= 3 * AHEAD * updates
    assert (pipeline._acting_weights() - start).abs().max() > 1e-3
    assert [episode[2] for episode in heard] == [200] * len(heard)
    assert len(heard) >= 2
    written = pipeline.algorithm.replay.data
    assert (written["reward"] < 0).all(), "the ring has come round, and every place was written"
    assert torch.isfinite(written["row"]).all()


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_the_rate_of_learning_falls_with_the_updates(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SACConfig(**SMALL, gradient_steps=1, learning_rate_schedule=schedule)  # type: ignore[arg-type]
    with Pipeline(PENDULUM, config, seed=1) as pipeline:
        learn, seen = pipeline.algorithm.learn, []

        def watched(count: int, factor: float) -> None:
            seen.append((pipeline.algorithm.updates, factor))
            learn(count, factor)

        monkeypatch.setattr(pipeline.algorithm, "learn", watched)
        pipeline.learn(240)
    total = (240 - 40) // 2
    assert len(seen) > 3
    for updates, factor in seen:
        assert factor == pytest.approx(1 - updates / total if schedule == "linear" else 1.0)


def test_the_ring_gives_the_newest_and_spares_the_oldest() -> None:
    ring = SharedReplay({"x": torch.zeros(1, 10)}, 3, torch.device("cpu"))
    ring.add({"x": torch.arange(1.0, 7).view(1, -1)})
    assert ring.count == 6
    ring.add({"x": torch.arange(7.0, 15).view(1, -1)})
    assert ring.count == 7
    drawn = ring.take(torch.arange(7).view(1, 1, 7))["x"]
    assert drawn.flatten().tolist() == [14, 13, 12, 11, 10, 9, 8]


def test_a_collector_that_is_killed_ends_the_run_in_one_sentence() -> None:
    def kill(pipeline: Pipeline, _: Any) -> None:
        pipeline._process.kill()
        pipeline._process.join()

    with (
        Pipeline(PENDULUM, SACConfig(**SMALL), seed=1) as pipeline,
        pytest.raises(RunError, match="collector process ended with exit code -9"),
    ):
        pipeline.learn(10_000_000, after=kill)


def test_a_collector_leaves_sigterm_to_who_started_it() -> None:
    def end(pipeline: Pipeline, _: Any) -> None:
        assert pipeline._process.pid is not None
        os.kill(pipeline._process.pid, signal.SIGTERM)

    with Pipeline(PENDULUM, SACConfig(**SMALL), seed=1) as pipeline:
        assert pipeline.learn(300, after=end).samples >= 300


def test_a_collector_that_is_killed_with_the_lock_in_its_hand_is_noticed() -> None:
    with Pipeline(PENDULUM, SACConfig(**SMALL), seed=1) as pipeline:
        pipeline.learn(100)
        pipeline._lock.acquire()
        pipeline._process.kill()
        pipeline._process.join()
        with pytest.raises(RunError, match="ended with exit code -9"):
            pipeline._publish_weights()


def test_a_ring_that_shared_memory_has_no_room_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(x: torch.Tensor) -> None:
        raise RuntimeError("No space left on device (28)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    with pytest.raises(ConfigError, match=r"agent\.buffer_size of 200 transitions does not fit into shared memory"):
        Pipeline(PENDULUM, SACConfig(**SMALL), seed=1)


def hangs_in_the_collector(home: int) -> GymnasiumVecEnv:
    """Pendulum, which is never created in another process than `home`."""
    if os.getpid() != home:
        time.sleep(600)
    return PENDULUM()


def test_a_collector_that_hangs_at_its_start_ends_the_run_at_the_limit() -> None:
    hanging = functools.partial(hangs_in_the_collector, os.getpid())
    with (
        Pipeline(hanging, SACConfig(**SMALL), seed=1, timeout=0.5) as pipeline,
        pytest.raises(RunError, match=r"the collector has sent no sample for 0\.5 s, the limit"),
    ):
        pipeline.learn(100)


def test_errors_of_the_collector_are_raised_here() -> None:
    broken = functools.partial(GymnasiumVecEnv, "gym:tests.envs.gymnasium_pool.faulty_envs:Short-v0")
    with (
        Pipeline(broken, SACConfig(**SMALL), seed=1) as pipeline,
        pytest.raises(RunError, match=r"observation of shape \(2,\), its observation_space has \(3,\)"),
    ):
        pipeline.learn(1000)


def test_invalid_pipelines_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs an off-policy algorithm, got ppo"):
        Pipeline(PENDULUM, PPOConfig())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"agent\.buffer_size must be at least 32"):
        Pipeline(PENDULUM, SACConfig(**{**SMALL, "buffer_size": 20}))
