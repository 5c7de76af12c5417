"""Throughput of many worker processes: this project's pool, Gymnasium's AsyncVectorEnv and EnvPool, in one run.

    python -m benchmarks pools --workers 64 --out benchmarks/pools.json

One environment for each process: `own`, `gymnasium`, and EnvPool's threads (if it is installed) on as many. In
`own_several` each process steps four, and in `own_cores` as many processes as cores share the environments;
AsyncVectorEnv can do neither.
Actions are drawn beforehand. The systems take turns, and a rate is the median of their turns.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv

from benchmarks.harness.rows import Row, as_json, as_table, describe, document, median_row

ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1", "Hopper-v5", "HalfCheetah-v5")
NO_ENVPOOL = "EnvPool is not installed"
Step = Callable[[int], object]


@contextlib.contextmanager
def own_pool(
    name: str, workers: int, actions: np.ndarray, each: int = 1, processes: int | None = None
) -> Iterator[Step]:
    """Yield a function that takes step i in all environments.

    each: environments for each of `workers`, which act alike. processes: that share them, `workers` by default.
    """
    env = GymnasiumVecEnv(f"gym:{name}", envs=each * workers, workers=processes or workers)
    actions = np.repeat(actions, each, 1)
    with contextlib.closing(env):
        env.reset(0)
        low, high = env.shapes.bounds if not env.actions else (0.0, 0.0)
        scaled = actions if env.actions else 2 * (actions - low) / (np.asarray(high) - low) - 1
        tensors = torch.as_tensor(scaled.reshape(len(actions), 1, each * workers, -1))
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
    """As `own_pool`, with EnvPool's threads, one per core."""
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
    "own_several": functools.partial(own_pool, each=SEVERAL),
    "own_cores": functools.partial(own_pool, processes=os.cpu_count()),
    "gymnasium": gymnasium_async,
    "envpool": envpool_threads,
}


def actions_of(name: str, workers: int, steps: int) -> np.ndarray:
    """Random actions [steps, workers, ...] of an environment's space."""
    with contextlib.closing(gymnasium.make(name)) as env:
        space = gymnasium.vector.utils.batch_space(env.action_space, workers)
        space.seed(1)
        return np.stack([np.asarray(space.sample()) for _ in range(steps)])


def measure(name: str, workers: int, steps: int, turns: int) -> tuple[list[Row], str]:
    """Rows of all systems on one environment, and why EnvPool is missing, if it is."""
    actions = actions_of(name, workers, steps)
    rates: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    missing = ""
    with contextlib.ExitStack() as stack:
        stepping: dict[str, Step] = {}
        for system, make in SYSTEMS.items():
            try:
                stepping[system] = stack.enter_context(make(name, workers, actions))
            except Exception as error:
                if system != "envpool":
                    raise
                missing = NO_ENVPOOL if isinstance(error, ImportError) else f"EnvPool failed: {error}"
        for turn in range(turns + 1):  # the first warms up
            for system, step in stepping.items():
                count = steps * workers * (SEVERAL if system == "own_several" else 1)
                began = time.perf_counter()
                for i in range(steps):
                    step(i)
                seconds = time.perf_counter() - began
                if turn:
                    rates[system].append(count / seconds)
                sys.stderr.write(f"{name} {system}: {count / seconds:,.0f} steps/s\n")
    config = {"env": name, "processes": workers, "steps": steps, "turns": turns}
    rows = [median_row(f"{system}_{name}", x, "steps/s", config) for system, x in rates.items() if x]
    for system in ("own", "own_several", "own_cores"):
        ratios = [a / b for a, b in zip(rates[system], rates["gymnasium"], strict=True)]
        rows.append(
            Row(
                f"ratio_{system}_{name}", statistics.median(ratios), min(ratios), max(ratios), f"{system} / gymnasium",
                {**config, "interval": "range of the turns"},
            )
        )  # fmt: skip
    return rows, missing


def main() -> None:
    """Measure and print, and write --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(ENVIRONMENTS))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    notes: set[str] = set()
    for name in arguments.only:
        found, missing = measure(name, arguments.workers, arguments.steps, arguments.turns)
        rows += found
        notes |= {missing} - {""}
    sys.stdout.write(as_table(rows))
    found_document = {**document(rows, describe(torch.device("cpu"))), "notes": sorted(notes)}
    if arguments.out:
        arguments.out.write_text(as_json(json.loads(json.dumps(found_document))), encoding="utf-8")
