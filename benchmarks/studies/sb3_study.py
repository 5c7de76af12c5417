"""Compare our algorithms with Stable-Baselines3's: equal steps, hyperparameters published by RL Baselines3 Zoo.

    python -m benchmarks sb3                                   # everything; hours
    python -m benchmarks sb3 --only ppo/CartPole-v1 --seeds 2  # a part
    python -m benchmarks sb3 --table                           # existing results

Every finished training is a line of `benchmarks/sb3_study.jsonl`: algorithm, environment, seed, side, steps, score,
seconds, versions. Existing ones are not repeated, so a study can be interrupted, and two processes can share the file
(each line is appended in one write). Both sides run alternately in this process, on one thread.

The score is the mean return of 20 episodes without exploration with the final weights (no best checkpoint is picked);
both sides use the same evaluation seeds. The table shows each side's interquartile mean over the seeds (Agarwal et al.
2021) and the difference with its 90% bootstrap interval; *not worse* means that the interval reaches zero. Seconds
cover training only, as CPU time, which other load hardly changes, and as wall-clock time.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv
from finrl_pod_envs.gymnasium_pool.spaces import to_action

from benchmarks.harness.results import FOLDER, Row, append, read
from benchmarks.studies.zoo_settings import SOURCE, STAGES, Cell, linear, ours
from finrl_pod.evaluate.seed_statistics import difference_interval, interquartile_mean
from finrl_pod.rl.training.learner import Learner

RESULTS_FILE = FOLDER / "sb3_study.jsonl"
OURS, THEIRS = "finrl_pod", "stable_baselines3"
EPISODES, FIRST_EPISODE = 20, 1_000_000  # evaluation seeds, far from the training seeds
LEVEL = 0.90
PACKAGES = ("finrl_pod", "stable_baselines3", "torch", "gymnasium", "mujoco")

Act = Callable[[np.ndarray], Any]


def main() -> int:
    options = _options()
    torch.set_num_threads(1)
    if not options.table:
        load()
        for cell, seed, side in _schedule(options.only, options.seeds, options.steps):
            if any(_matches(row, cell, seed, side) for row in read(options.results)):
                continue
            sys.stderr.write(
                f"{time.strftime('%H:%M:%S')} {_algorithm_of(cell, side)} {cell.env} seed {seed}, {side}\n"
            )
            append(options.results, _run(cell, seed, side))
    sys.stdout.write(table([row for row in read(options.results) if options.steps in (0, row["asked"])]))
    return 0


def _schedule(only: Sequence[str], seeds: int, steps: int) -> Iterator[tuple[Cell, int, str]]:
    for stage in ([dataclasses.replace(cell, steps=steps or cell.steps) for cell in stage] for stage in STAGES):
        for seed in range(max(cell.seeds for cell in stage)):
            for cell in stage:
                selected = not only or f"{cell.algorithm}/{cell.env}" in only
                if selected and seed < min(cell.seeds, seeds or cell.seeds):
                    yield cell, seed, OURS
                    yield cell, seed, THEIRS


def _algorithm_of(cell: Cell, side: str) -> str:
    """Name of the algorithm that a side runs."""
    return cell.algorithm if side == OURS else cell.against


def _matches(row: Row, cell: Cell, seed: int, side: str) -> bool:
    expected = (_algorithm_of(cell, side), cell.env, seed, side, cell.steps, _digest(cell))
    return expected == tuple(row[name] for name in ("algorithm", "env", "seed", "side", "asked", "settings"))


def _digest(cell: Cell) -> str:
    """Hash of the Zoo's entry: results of other hyperparameters are not counted."""
    return hashlib.sha256(json.dumps(cell.zoo, sort_keys=True).encode()).hexdigest()[:12]


@functools.cache
def _commit() -> str:
    """Commit of this checkout; use a separate `git worktree` to keep it fixed during a study."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def load() -> None:
    """Import and initialise lazily loaded code, so that no training is charged for it."""
    importlib.import_module("stable_baselines3")
    number = torch.zeros(1, requires_grad=True)
    number.grad = torch.ones(1)
    torch.optim.Adam([number]).step()  # loads the compiler


def _run(cell: Cell, seed: int, side: str) -> Row:
    train = train_ours if side == OURS else train_theirs
    wall_start, cpu_start = time.perf_counter(), time.process_time()
    steps, act = train(cell, seed)
    seconds, cpu = time.perf_counter() - wall_start, time.process_time() - cpu_start
    returns = evaluate(act, cell.env)
    return {
        "algorithm": _algorithm_of(cell, side), "env": cell.env, "seed": seed, "side": side,
        "asked": cell.steps, "steps": steps,
        "score": float(np.mean(returns)), "returns": returns,
        "seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2),
        "settings": _digest(cell), "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }  # fmt: skip


def evaluate(act: Act, name: str) -> list[float]:
    """Return the returns of 20 complete episodes."""
    env = gymnasium.make(name)
    returns = []
    for episode in range(EPISODES):
        row, _ = env.reset(seed=FIRST_EPISODE + episode)
        total, over = 0.0, False
        while not over:
            row, reward, terminated, truncated, _ = env.step(act(row))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    return returns


# ---------------------------------------------------------------------- the two sides


def train_ours(cell: Cell, seed: int, **changes: Any) -> tuple[int, Act]:
    """Train our algorithm; returns (steps taken, policy). changes: settings that override the Zoo's entry."""
    name = f"gym:{cell.env}"
    high = GymnasiumVecEnv(name).shapes.high
    agent, envs = ours(cell, half_range=high[0] if high else 1.0)
    env = GymnasiumVecEnv(name, envs=envs)
    learner = Learner(env, dataclasses.replace(agent, **changes), seed=seed, threads=1)
    learner.learn(cell.steps)
    env.close()

    def act(row: np.ndarray) -> Any:
        action = learner.act(torch.from_numpy(np.asarray(row, dtype=np.float32)).view(1, 1, -1))
        return to_action(action[0, 0].numpy(), env.shapes)

    return learner.samples[0], act


def train_theirs(cell: Cell, seed: int) -> tuple[int, Act]:
    """Train Stable-Baselines3's algorithm as the Zoo's script does; returns (steps taken, policy)."""
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.vec_env import VecNormalize

    settings = dict(cell.zoo)
    for name in ("learning_rate", "clip_range"):
        if name in settings:
            value, decays = linear(settings[name])
            settings[name] = _linear_decay(value) if decays else value
    env: Any = make_vec_env(cell.env, n_envs=settings.pop("n_envs", 1), seed=seed)
    if settings.pop("normalize", False):
        env = VecNormalize(env, gamma=settings.get("gamma", 0.99))
    if settings.pop("noise_type", None):
        size = env.action_space.shape[-1]
        settings["action_noise"] = NormalActionNoise(np.zeros(size), settings.pop("noise_std") * np.ones(size))
    if "activation_fn" in (network := dict(settings.pop("policy_kwargs", {}))):
        network["activation_fn"] = {"relu": torch.nn.ReLU}[network["activation_fn"]]
    make = getattr(stable_baselines3, cell.against.upper())
    model = make("MlpPolicy", env, policy_kwargs=network or None, seed=seed, device="cpu", **settings)
    model.learn(cell.steps)

    def act(row: np.ndarray) -> Any:
        obs = env.normalize_obs(row) if isinstance(env, VecNormalize) else row
        return model.predict(obs, deterministic=True)[0]

    return int(model.num_timesteps), act


def _linear_decay(value: float) -> Callable[[float], float]:
    """Schedule of Stable-Baselines3: remaining share of the training -> value."""
    return lambda remaining: remaining * value


# ---------------------------------------------------------------------- results


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table with a line per cell for which both sides have results."""
    lines = [
        "| algorithm | environment | steps | seeds | FinRL-Pod | Stable-Baselines3 "
        f"| difference ({LEVEL:.0%} interval) | not worse | CPU seconds of both | wall-clock seconds of both |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in (cell for stage in STAGES for cell in stage):
        for steps in sorted({row["asked"] for row in rows if row["env"] == cell.env}):
            sized = dataclasses.replace(cell, steps=steps)
            results = {side: _results_of(rows, sized, side) for side in (OURS, THEIRS)}
            if all(results.values()):
                lines.append(_table_line(sized, results[OURS], results[THEIRS]))
    return "\n".join(lines) + "\n"


def _results_of(rows: Sequence[Row], cell: Cell, side: str) -> list[Row]:
    """Results of one side of a cell, by seed."""
    chosen = {row["seed"]: row for row in rows if _matches(row, cell, row["seed"], side)}
    return [chosen[seed] for seed in sorted(chosen)]


def _table_line(cell: Cell, own: Sequence[Row], theirs: Sequence[Row]) -> str:
    a, b = ([row["score"] for row in side] for side in (own, theirs))
    verdict, difference = "–", f"{interquartile_mean(a) - interquartile_mean(b):+.1f}"
    if min(len(a), len(b)) >= 2:
        interval = difference_interval(a, b, LEVEL)
        difference += f" ({interval.low:+.1f} to {interval.high:+.1f})"
        verdict = "yes" if interval.high >= 0 else "no"
    seeds = str(len(a)) if len(a) == len(b) else f"{len(a)} and {len(b)}"
    sides = [f"{interquartile_mean(x):.1f} ({min(x):.1f} to {max(x):.1f})" for x in (a, b)]
    times = [
        " and ".join(f"{np.median([row[kind] for row in side]):.0f}" for side in (own, theirs))
        for kind in ("cpu_seconds", "seconds")
    ]
    name = cell.algorithm if cell.algorithm == cell.against else f"{cell.algorithm} (SB3: {cell.against})"
    texts = [name, cell.env, f"{cell.steps:,}", seeds, *sides, difference, verdict, *times]
    return "| " + " | ".join(texts) + " |"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\nSettings: {SOURCE}.", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="ALGORITHM/ENV", help="run these cells only")
    parser.add_argument("--seeds", type=int, default=0, help="maximum number of seeds; default: each cell's")
    parser.add_argument("--steps", type=int, default=0, help="steps of each training; default: each cell's")
    parser.add_argument("--table", action="store_true", help="print the table without training")
    parser.add_argument("--results", type=Path, default=RESULTS_FILE, help="default %(default)s")
    return parser.parse_args()
