"""Our algorithms and Stable-Baselines3: equal steps, hyperparameters published by RL Baselines3 Zoo.

    python -m benchmarks sb3                                   # everything; hours
    python -m benchmarks sb3 --only ppo/CartPole-v1 --seeds 2  # a part
    python -m benchmarks sb3 --table                           # existing results

Every finished training is a line of sb3_study.jsonl and is not repeated; two processes can share the file. Both sides
run alternately in this process, on one thread.

The score is the mean return of 20 episodes without exploration with the final weights (no best checkpoint is picked);
both sides use the same evaluation seeds. Rows: interquartile mean over the seeds (Agarwal et al. 2021) of each side,
and the difference with its 90% bootstrap interval; `not_worse` means that the interval reaches zero. Cells with twenty
seeds also have the ratio of the variances over seeds. Seconds cover training only, as CPU time (other load hardly
changes it) and as wall-clock time.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import importlib.metadata
import json
import operator
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv
from finrl_pod_envs.gymnasium_pool.lanes import to_action

from benchmarks.harness.rows import FOLDER, Job, Record, Row, measure_seconds, read, run_missing, single_row
from benchmarks.studies.h_term import ratio_of_variances
from benchmarks.studies.zoo_settings import STAGES, Cell, linear, ours
from finrl_pod.evaluate.intervals import difference_interval, interquartile_mean
from finrl_pod.rl.training.learner import Learner

OURS = "finrl_pod"
THEIRS = "stable_baselines3"
# evaluation seeds, far from the training seeds
EPISODES = 20
FIRST_EPISODE = 1_000_000
LEVEL = 0.90
SEEDS_OF_A_VARIANCE = 20  # with fewer its interval is too wide to say anything
PACKAGES = ("finrl_pod", "stable_baselines3", "torch", "gymnasium", "mujoco")

Act = Callable[[np.ndarray], Any]


@dataclass(frozen=True)
class StudySettings:
    """Settings of `sb3`.

    only: ALGORITHM/ENV; empty for all. seeds: maximum number of seeds, 0 for the number of each cell. steps: steps of
    each training, 0 likewise. table: print stored results only.
    """

    only: tuple[str, ...] = ()
    seeds: int = 0
    steps: int = 0
    table: bool = False
    results: Path = FOLDER / "sb3_study.jsonl"


def sb3_rows(settings: StudySettings) -> list[Row]:
    """Train what the file lacks; return the rows of all results."""
    if not settings.table:
        load()
        run_missing(settings.results, jobs(settings))
    return [*rows_of([record for record in read(settings.results) if settings.steps in (0, record["asked"])])]


def jobs(settings: StudySettings) -> Iterator[Job]:
    """The selected trainings of both sides, stage by stage and seed by seed."""
    for stage in STAGES:
        cells = [dataclasses.replace(cell, steps=settings.steps or cell.steps) for cell in stage]
        for seed in range(max(cell.seeds for cell in cells)):
            for cell in cells:
                is_selected = not settings.only or f"{cell.algorithm}/{cell.env}" in settings.only
                if is_selected and seed < min(cell.seeds, settings.seeds or cell.seeds):
                    for side in (OURS, THEIRS):
                        yield Job(key_of(cell, seed, side), functools.partial(_train, cell, seed, side))


def key_of(cell: Cell, seed: int, side: str) -> dict[str, Any]:
    return {
        "algorithm": _algorithm_of(cell, side), "env": cell.env, "seed": seed, "side": side, "asked": cell.steps,
        "settings": _digest(cell),
    }  # fmt: skip


def _algorithm_of(cell: Cell, side: str) -> str:
    return cell.algorithm if side == OURS else cell.against


def _digest(cell: Cell) -> str:
    """Hash of the Zoo entry: results of other hyperparameters are not counted."""
    return hashlib.sha256(json.dumps(cell.zoo, sort_keys=True).encode()).hexdigest()[:12]


@functools.cache
def _commit() -> str:
    """Commit of this checkout; use a separate `git worktree` to keep it fixed during a study."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return process.stdout.strip() or "unknown"


def load() -> None:
    """Import and initialise lazily loaded code, so that no training is charged for it."""
    importlib.import_module("stable_baselines3")
    number = torch.zeros(1, requires_grad=True)
    number.grad = torch.ones(1)
    torch.optim.Adam([number]).step()  # loads the compiler


def _train(cell: Cell, seed: int, side: str) -> dict[str, Any]:
    train = train_ours if side == OURS else train_theirs
    (steps, act), seconds = measure_seconds(lambda: train(cell, seed))
    returns = evaluate(act, cell.env)
    return {
        **seconds, "steps": steps, "score": float(np.mean(returns)), "returns": returns, "commit": _commit(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }  # fmt: skip


def evaluate(act: Act, name: str) -> list[float]:
    """Return the returns of 20 complete episodes."""
    env = gymnasium.make(name)
    returns = []
    for episode in range(EPISODES):
        row, _ = env.reset(seed=FIRST_EPISODE + episode)
        total = 0.0
        is_over = False
        while not is_over:
            row, reward, terminated, truncated, _ = env.step(act(row))
            total = total + float(reward)
            is_over = terminated or truncated
        returns.append(total)
    env.close()
    return returns


def train_ours(cell: Cell, seed: int, **changes: Any) -> tuple[int, Act]:
    """Train our algorithm; returns (steps taken, policy). changes: settings that override the Zoo entry."""
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
    """Train with Stable-Baselines3 as the script of the Zoo does; returns (steps taken, policy)."""
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.vec_env import VecNormalize

    settings = dict(cell.zoo)
    for name in ("learning_rate", "clip_range"):
        if name in settings:
            value, decays = linear(settings[name])
            # A schedule of Stable-Baselines3: remaining share of the training -> value.
            settings[name] = functools.partial(operator.mul, value) if decays else value
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


def rows_of(records: Sequence[Record]) -> Iterator[Row]:
    for cell in (cell for stage in STAGES for cell in stage):
        for steps in sorted({record["asked"] for record in records if record["env"] == cell.env}):
            sized_cell = dataclasses.replace(cell, steps=steps)
            results = {side: _results_of(records, sized_cell, side) for side in (OURS, THEIRS)}
            if all(results.values()):
                yield from _cell_rows(sized_cell, results)


def _results_of(records: Sequence[Record], cell: Cell, side: str) -> list[Record]:
    by_seed = {r["seed"]: r for r in records if key_of(cell, r["seed"], side).items() <= r.items()}
    return [by_seed[seed] for seed in sorted(by_seed)]


def _cell_rows(cell: Cell, results: dict[str, list[Record]]) -> Iterator[Row]:
    name = f"{cell.algorithm} {cell.env}, {cell.steps:,} steps"
    scores = {side: [record["score"] for record in records] for side, records in results.items()}
    for side, values in scores.items():
        medians = {k: float(np.median([r[k] for r in results[side]])) for k in ("cpu_seconds", "seconds")}
        config = {"algorithm": _algorithm_of(cell, side), "seeds": len(values), **medians, "interval": "range of seeds"}
        yield Row(f"{name}, {side}", interquartile_mean(values), min(values), max(values), "return", config)
    difference = interquartile_mean(scores[OURS]) - interquartile_mean(scores[THEIRS])
    if min(map(len, scores.values())) < 2:
        yield single_row(f"{name}, difference", difference, "return")
        return
    interval = difference_interval(scores[OURS], scores[THEIRS], LEVEL)
    over_seeds = f"{LEVEL:.0%} bootstrap over seeds"
    config = {"not_worse": interval.high >= 0, "interval": over_seeds}
    yield Row(f"{name}, difference", difference, interval.low, interval.high, "return", config)
    pairs = min(map(len, scores.values()))
    if pairs >= SEEDS_OF_A_VARIANCE and np.ptp(scores[THEIRS]) > 0:
        own, reference = (np.array(scores[side][:pairs]) for side in (OURS, THEIRS))
        ratio, low, high = ratio_of_variances(own, reference)
        config = {"seeds": pairs, "interval": over_seeds}
        yield Row(f"{name}, variance", ratio, low, high, "of the variance of Stable-Baselines3", config)
