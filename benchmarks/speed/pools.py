"""Throughput of many worker processes: GymnasiumVecEnv, AsyncVectorEnv and EnvPool, in one run.

One environment for each process: `own`, `gymnasium`, and threads of EnvPool (if it is installed) on as many. In
`own_several` each process steps four, and in `own_cores` as many processes as cores share the environments;
AsyncVectorEnv can do neither.
Actions are drawn beforehand. The systems take turns, and a rate is the median of their turns.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv

from benchmarks.harness.rows import Row, log_progress, median_row

ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1", "Hopper-v5", "HalfCheetah-v5")
Step = Callable[[int], object]


@contextlib.contextmanager
def own_pool(
    name: str, workers: int, actions: np.ndarray, copies: int = 1, processes: int | None = None
) -> Iterator[Step]:
    """Yield a function that takes step i in all environments.

    copies: number of environments with equal actions for each of `workers`. processes: number of processes that share
    all environments; `workers` by default.
    """
    env = GymnasiumVecEnv(f"gym:{name}", envs=copies * workers, workers=processes or workers)
    actions = np.repeat(actions, copies, 1)
    with contextlib.closing(env):
        env.reset(0)
        low, high = env.shapes.bounds if not env.actions else (0.0, 0.0)
        scaled_actions = actions if env.actions else 2 * (actions - low) / (np.asarray(high) - low) - 1
        tensors = torch.as_tensor(scaled_actions.reshape(len(actions), 1, copies * workers, -1))
        tensors = tensors.long() if env.actions else tensors.float()
        yield lambda i: env.step(tensors[i])


@contextlib.contextmanager
def gymnasium_async(name: str, workers: int, actions: np.ndarray) -> Iterator[Step]:
    """As `own_pool`, with AsyncVectorEnv in its default settings (shared memory for observations)."""
    env = gymnasium.vector.AsyncVectorEnv([lambda: gymnasium.make(name) for _ in range(workers)])
    try:
        env.reset(seed=0)
        yield lambda i: env.step(actions[i])
    finally:
        env.close()


@contextlib.contextmanager
def envpool_threads(name: str, workers: int, actions: np.ndarray) -> Iterator[Step]:
    """As `own_pool`, with threads of EnvPool, one per core."""
    import envpool

    env: Any = envpool.make_gymnasium(name, num_envs=workers, seed=0)
    try:
        env.reset()
        yield lambda i: env.step(actions[i])
    finally:
        env.close()


SEVERAL = 4
SYSTEMS: Mapping[str, Callable[[str, int, np.ndarray], contextlib.AbstractContextManager[Step]]] = {
    "own": own_pool,
    "own_several": functools.partial(own_pool, copies=SEVERAL),
    "own_cores": functools.partial(own_pool, processes=os.cpu_count()),
    "gymnasium": gymnasium_async,
    "envpool": envpool_threads,
}


def actions_of(name: str, workers: int, steps: int) -> np.ndarray:
    """Random actions [steps, workers, ...] of an action space."""
    with contextlib.closing(gymnasium.make(name)) as env:
        space = gymnasium.vector.utils.batch_space(env.action_space, workers)
        space.seed(1)
        return np.stack([np.asarray(space.sample()) for _ in range(steps)])


@dataclass(frozen=True)
class PoolSettings:
    """Settings of `pools`. workers: processes. steps: number of steps in a turn. only: names of environments."""

    workers: int = 64
    steps: int = 100
    turns: int = 5
    only: tuple[str, ...] = ENVIRONMENTS


def pool_rows(settings: PoolSettings) -> Iterator[Row]:
    """Rates of all systems on each environment, and ratios to AsyncVectorEnv in the same turn."""
    for name in settings.only:
        rates, config = measure(name, settings)
        for system, values in rates.items():
            if values:
                yield median_row(f"{system}_{name}", values, "steps/s", config)
        for system in ("own", "own_several", "own_cores"):
            ratios = [
                own_rate / other_rate for own_rate, other_rate in zip(rates[system], rates["gymnasium"], strict=True)
            ]
            yield median_row(f"ratio_{system}_{name}", ratios, f"{system} / gymnasium", config)


def measure(name: str, settings: PoolSettings) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Rates of all systems on one environment, and the config of their rows."""
    workers = settings.workers
    actions = actions_of(name, workers, settings.steps)
    rates: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    config: dict[str, Any] = {"env": name, "processes": workers, "steps": settings.steps, "turns": settings.turns}
    with contextlib.ExitStack() as stack:
        steppers: dict[str, Step] = {}
        for system, make in SYSTEMS.items():
            try:
                steppers[system] = stack.enter_context(make(name, workers, actions))
            except Exception as error:
                if system != "envpool":
                    raise
                is_missing = isinstance(error, ImportError)
                config["envpool"] = "not installed" if is_missing else f"failed: {error}"
        for turn in range(settings.turns + 1):  # the first warms up
            for system, step in steppers.items():
                count = settings.steps * workers * (SEVERAL if system == "own_several" else 1)
                start = time.perf_counter()
                for i in range(settings.steps):
                    step(i)
                rate = count / (time.perf_counter() - start)
                if turn:
                    rates[system].append(rate)
                log_progress(f"{name} {system}: {rate:,.0f} steps/s")
    return rates, config
