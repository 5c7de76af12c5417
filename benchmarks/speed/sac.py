"""Benchmark of soft actor-critic: updates/s from a full replay buffer, compared with Stable-Baselines3 if installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.harness.options import check_minimum
from benchmarks.harness.rows import CPU, Row, measure_rates, median_row
from finrl_pod.rl.algorithms.factory import make_algorithm
from finrl_pod.rl.algorithms.off_policy import OffPolicy
from finrl_pod.settings.algorithm_configs import SACConfig
from finrl_pod.types import EnvStep

# of Hopper
OBSERVATION_SIZE = 11
ACTION_SIZE = 3
BUFFER_SIZE = 10_000  # transitions
HIDDEN_LAYERS = ((256, 256), (64, 64))
MEMBERS = 8
SECONDS_PER_RUN = 1.0


@dataclass(frozen=True)
class SacSettings:
    """Settings of `sac`. batch: samples per update. runs: repetitions; the median is reported."""

    batch: int = 256
    runs: int = 5


class _EnvShape:
    """An environment that has only sizes and cannot be stepped."""

    def __init__(self, members: int, device: torch.device) -> None:
        self.members = members
        self.envs = 1
        self.member_ids = tuple(range(members))
        self.action_kind = "direct"
        self.action_size = ACTION_SIZE
        self.actions = 0
        self.observation_size = OBSERVATION_SIZE
        self.device = device

    def reset(self, seed: int) -> torch.Tensor:
        raise NotImplementedError

    def step(self, action: torch.Tensor) -> EnvStep:
        raise NotImplementedError


Work = Callable[[int], int]  # runs the given number of updates and returns it


def sac_rows(settings: SacSettings, device: torch.device = CPU) -> list[Row]:
    """Measure updates/s of each network size for one member and several, and the ratio to Stable-Baselines3.

    Runs are interleaved, so that a change of machine speed affects all; ratios compare neighbouring runs.
    """
    check_minimum(settings, batch=1, runs=1)
    common_config = asdict(settings) | {
        "observation_size": OBSERVATION_SIZE,
        "action_size": ACTION_SIZE,
        "threads": torch.get_num_threads(),
    }
    has_sb3 = importlib.util.find_spec("stable_baselines3") is not None
    rows: list[Row] = []
    for hidden in HIDDEN_LAYERS:
        name = f"sac_{hidden[0]}"
        sides: dict[str, Work] = {name: _train_ours(settings, 1, hidden, device)}
        if has_sb3:
            sides[f"sb3_{name}"] = _train_sb3(settings, hidden, device)
        if hidden == HIDDEN_LAYERS[-1]:
            sides[f"{name}_x{MEMBERS}"] = _train_ours(settings, MEMBERS, hidden, device)
        rates_by_side = _measure_sides(sides, settings.runs, device)
        config = {**common_config, "hidden": list(hidden)}
        rows += [median_row(f"{side}_updates", values, "updates/s", config) for side, values in rates_by_side.items()]
        if has_sb3:
            ratios = [a / b for a, b in zip(rates_by_side[name], rates_by_side[f"sb3_{name}"], strict=True)]
            rows.append(median_row(f"{name}_over_sb3", ratios, "of Stable-Baselines3's rate", config))
        if hidden == HIDDEN_LAYERS[-1]:
            times = [a / b for a, b in zip(rates_by_side[name], rates_by_side[f"{name}_x{MEMBERS}"], strict=True)]
            rows.append(
                median_row(f"{name}_x{MEMBERS}_time", times, "times one member's", {**config, "members": MEMBERS})
            )
    return rows


def _measure_sides(sides: dict[str, Work], runs: int, device: torch.device) -> dict[str, list[float]]:
    """Measure updates/s of each implementation, alternating after about `SECONDS_PER_RUN`."""
    counts = {}
    for side, work in sides.items():
        work(20)
        rate = measure_rates(f"{side}, warm-up", partial(work, 50), 1, device, warm_up=False)[0]
        counts[side] = max(10, int(SECONDS_PER_RUN * rate))
    rates_by_side: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(runs):
        for side, work in sides.items():
            rates_by_side[side] += measure_rates(side, partial(work, counts[side]), 1, device, warm_up=False)
    return rates_by_side


def _train_ours(settings: SacSettings, members: int, hidden: tuple[int, ...], device: torch.device) -> Work:
    config = SACConfig(
        policy="mlp", hidden=hidden, batch_size=settings.batch, buffer_size=BUFFER_SIZE, learning_starts=0,
        learning_rate=3e-4, gamma=0.99, scale_rewards=False, max_grad_norm=1e9,
    )  # fmt: skip
    algorithm = make_algorithm(config, _EnvShape(members, device))
    assert isinstance(algorithm, OffPolicy)
    generator = torch.Generator(device).manual_seed(0)
    items = {
        key: torch.randn(members, BUFFER_SIZE, *x.shape[2:], generator=generator, device=device).to(x.dtype)
        for key, x in algorithm.replay.data.items()
    }
    algorithm.replay.add({**items, "action": items["action"].tanh(), "terminated": items["reward"] > 2})

    def work(updates: int) -> int:
        algorithm.learn(updates, 1.0)
        return updates

    return work


def _train_sb3(settings: SacSettings, hidden: tuple[int, ...], device: torch.device) -> Work:
    import gymnasium
    from stable_baselines3 import SAC
    from stable_baselines3.common.logger import configure

    class SpacesOnly(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-10, 10, (OBSERVATION_SIZE,), np.float32)
        action_space = gymnasium.spaces.Box(-1, 1, (ACTION_SIZE,), np.float32)

    model = SAC(
        "MlpPolicy", SpacesOnly(), batch_size=settings.batch, buffer_size=BUFFER_SIZE,
        policy_kwargs={"net_arch": list(hidden)}, device=device, seed=0,
    )  # fmt: skip
    model.set_logger(configure(None, []))
    rng = np.random.default_rng(0)
    for _ in range(BUFFER_SIZE):
        obs, next_obs = rng.standard_normal((2, 1, OBSERVATION_SIZE)).astype(np.float32)
        action = np.tanh(rng.standard_normal((1, ACTION_SIZE))).astype(np.float32)
        reward = rng.standard_normal(1)
        assert model.replay_buffer is not None
        model.replay_buffer.add(obs, next_obs, action, reward, reward > 2, [{}])

    def work(updates: int) -> int:
        model.train(gradient_steps=updates, batch_size=settings.batch)
        return updates

    return work
