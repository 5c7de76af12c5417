"""PPO of finrl_pod and of RLlib, after equal samples and after equal processor time.

    python -m benchmarks rllib                         # what is missing; half an hour of processor time
    python -m benchmarks rllib --only Pendulum-v1      # a part
    python -m benchmarks rllib --table                 # existing results

rllib-protocol.md fixes the budgets, the hyperparameters and the scores. RLlib runs in an environment of its own, made
by `make rllib`. Every finished training is a line of rllib.jsonl and is not repeated. Rows: interquartile mean over the
seeds with their range, and the difference of both sides with its 90% bootstrap interval.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from finrl_pod_envs.gym import GymVectorEnv
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv
from finrl_pod_envs.gymnasium_pool.lanes import to_action

from benchmarks.harness.rows import (
    FOLDER,
    ROOT,
    Job,
    Record,
    Row,
    current_commit,
    measure_seconds,
    read,
    run_missing,
    single_row,
)
from benchmarks.studies.rllib_cases import (
    CPU_SECONDS,
    MARKET,
    PENDULUM,
    RULES,
    SAMPLES,
    SETTINGS,
    Act,
    Case,
    Outcome,
    PPOSettings,
    leaky_market,
    market_score,
)
from benchmarks.studies.sb3_study import evaluate, load
from benchmarks.studies.zoo_settings import NO_LIMIT
from finrl_pod.errors import SetupError
from finrl_pod.evaluate.intervals import difference_interval, interquartile_mean
from finrl_pod.protocols import VecEnv
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import PPOConfig
from finrl_pod.types import EnvStep, Tensor

OURS = "finrl_pod"
THEIRS = "rllib"
BUDGETS = ("samples", "cpu")
LEVEL = 0.90
FIX = "make its environment with `make rllib`"
PACKAGES = ("finrl_pod", "torch", "gymnasium", "numpy")


@dataclass(frozen=True)
class RLlibSettings:
    """Settings of `rllib`.

    only: environments; empty for all. peer: interpreter with RLlib. samples, cpu_seconds: the two budgets. table:
    print stored results only.
    """

    only: tuple[str, ...] = field(default=(), metadata={"choices": (MARKET, PENDULUM)})
    seeds: int = 3
    samples: int = SAMPLES
    cpu_seconds: float = CPU_SECONDS
    peer: str = str(ROOT / ".venv-rllib" / "bin" / "python")
    table: bool = False
    results: Path = FOLDER / "rllib.jsonl"


def rllib_rows(settings: RLlibSettings) -> list[Row]:
    """Train what the file lacks; return the rows of all results with these budgets."""
    if not settings.table:
        load()
        with closing(Peer(settings.peer)) as peer:
            run_missing(settings.results, jobs(settings, peer))
    sizes = {settings.samples, settings.cpu_seconds}
    return [*rows_of([record for record in read(settings.results) if record["limit"] in sizes])]


def jobs(settings: RLlibSettings, peer: Peer) -> Iterator[Job]:
    """The selected trainings, seed by seed, both sides alternately."""
    for seed in range(settings.seeds):
        for env in settings.only or (PENDULUM, MARKET):
            for budget in BUDGETS:
                limit = settings.samples if budget == "samples" else settings.cpu_seconds
                case = Case(env, budget, limit, seed)
                for side, train in ((OURS, train_ours), (THEIRS, peer.train)):
                    yield Job({**asdict(case), "side": side}, partial(_run, train, case))


def _run(train: Callable[[Case], Outcome], case: Case) -> dict[str, object]:
    return {**asdict(train(case)), "commit": current_commit(), "date": time.strftime("%Y-%m-%d %H:%M")}


# ---------------------------------------------------------------------- finrl_pod


class VectorAccounts:
    """The accounts of a `GymVectorEnv` as a VecEnv of one member."""

    action_kind = "direct"
    actions = 0
    members = 1
    member_ids: tuple[int, ...] = (0,)
    device = torch.device("cpu")

    def __init__(self, env: GymVectorEnv) -> None:
        self.env = env
        self.envs = env.num_envs
        (self.observation_size,) = env.single_observation_space.shape or (0,)
        (self.action_size,) = env.single_action_space.shape or (0,)

    def reset(self, seed: int) -> Tensor:
        return torch.from_numpy(self.env.reset(seed=seed)[0]).unsqueeze(0)

    def step(self, action: Tensor) -> EnvStep:
        rows, reward, terminated, truncated, step_info = self.env.step(action[0].numpy())
        final = rows
        if (ends := terminated | truncated).any():
            final = rows.copy()
            final[ends] = np.stack([*step_info["final_obs"][ends]])  # type: ignore[index]
        arrays = (rows, reward.astype(np.float32), terminated, truncated, final)
        return EnvStep(*(torch.from_numpy(x).unsqueeze(0) for x in arrays))


def our_config(settings: PPOSettings) -> PPOConfig:
    """The hyperparameters as settings of our PPO."""
    return PPOConfig(
        policy="mlp",
        hidden=settings.hidden,
        horizon=settings.horizon,
        epochs=settings.epochs,
        minibatches=settings.envs * settings.horizon // settings.minibatch_size,
        learning_rate=settings.learning_rate,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        clip_range=settings.clip_range,
        entropy_coefficient=settings.entropy_coefficient,
        value_coefficient=settings.value_coefficient,
        max_grad_norm=settings.max_grad_norm,
        target_kl=NO_LIMIT,
        group_baseline=False,
        scale_rewards=False,
    )


def train_ours(case: Case) -> Outcome:
    """Train and score our PPO."""
    settings = SETTINGS[case.env]
    env: VecEnv
    if case.env == MARKET:
        # The accounts of both sides decide on all training bars, the default of the view.
        env = VectorAccounts(GymVectorEnv(leaky_market()[0], RULES))
    else:
        env = GymnasiumVecEnv(f"gym:{case.env}", envs=settings.envs)
    learner = Learner(env, our_config(settings), seed=case.seed, threads=1)
    start = time.process_time()
    uses_samples = case.budget == "samples"

    def goes_on(_: Learner, __: Any) -> bool:
        return uses_samples or time.process_time() - start < case.limit

    budget = int(case.limit if uses_samples else NO_LIMIT)
    _, seconds = measure_seconds(partial(learner.learn, budget, callback=goes_on))
    score = market_score(_market_policy(learner)) if case.env == MARKET else _mean_return(learner, env)
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return Outcome(**seconds, steps=learner.samples[0], score=score, versions=versions)


def _market_policy(learner: Learner) -> Act:
    def act(row: np.ndarray) -> Any:
        return learner.act(torch.from_numpy(row).view(1, 1, -1))[0, 0].numpy()

    return act


def _mean_return(learner: Learner, env: Any) -> float:
    def act(row: np.ndarray) -> Any:
        action = learner.act(torch.from_numpy(np.asarray(row, dtype=np.float32)).view(1, 1, -1))
        return to_action(action[0, 0].numpy(), env.shapes)

    return float(np.mean(evaluate(act, PENDULUM)))


# ---------------------------------------------------------------------- RLlib


class Peer:
    """PPO of RLlib in an interpreter of its own, started with the first case; Ray starts once."""

    def __init__(self, python: str) -> None:
        self.python = python
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115  closed by `close`

    def train(self, case: Case) -> Outcome:
        """Train and score their PPO. Raises SetupError if the interpreter cannot."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # then the answer is empty
            process.stdin.write(json.dumps(asdict(case)) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            process.wait()
            self._errors.seek(0)
            message = (self._errors.read().strip().splitlines() or ["nothing"])[-1]
            raise SetupError(f"--peer {self.python} failed: {message}; {FIX}")
        return Outcome(**json.loads(line))

    def close(self) -> None:
        """Let the process end, if there is one."""
        if self._process is not None:
            self._process.communicate()
        self._errors.close()

    def _start(self) -> subprocess.Popen[str]:
        folders = (ROOT, *(ROOT / name for name in ("envs", "strategies", "app")))
        changes = {"PYTHONPATH": os.pathsep.join(map(str, folders)), "RAY_USAGE_STATS_ENABLED": "0"}
        try:
            return subprocess.Popen(
                [self.python, str(FOLDER / "peers" / "rllib_ppo.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env={**os.environ, **changes, "OMP_NUM_THREADS": "1"},
            )
        except OSError as error:
            raise SetupError(f"--peer {self.python} cannot be run: {error}; {FIX}") from None


# ---------------------------------------------------------------------- rows


def rows_of(records: Sequence[Record]) -> Iterator[Row]:
    """Rows of each environment and budget that has results of both sides."""
    for env in SETTINGS:
        for budget in BUDGETS:
            cell = [record for record in records if (record["env"], record["budget"]) == (env, budget)]
            results = {side: [record for record in cell if record["side"] == side] for side in (OURS, THEIRS)}
            if all(results.values()):
                yield from _cell_rows(f"{env}, equal {budget}", env, results)


def _cell_rows(name: str, env: str, results: dict[str, list[Record]]) -> Iterator[Row]:
    unit = "share of the oracle" if env == MARKET else "return"
    scores = {side: [record["score"] for record in records] for side, records in results.items()}
    for side, values in scores.items():
        medians = {
            key: float(np.median([r[key] for r in results[side]])) for key in ("cpu_seconds", "seconds", "steps")
        }
        config = {"seeds": len(values), **medians, "interval": "range of seeds"}
        yield Row(f"{name}, {side}", interquartile_mean(values), min(values), max(values), unit, config)
    difference = interquartile_mean(scores[OURS]) - interquartile_mean(scores[THEIRS])
    if min(map(len, scores.values())) < 2:
        yield single_row(f"{name}, difference", difference, unit)
        return
    interval = difference_interval(scores[OURS], scores[THEIRS], LEVEL)
    config = {"interval": f"{LEVEL:.0%} bootstrap over seeds"}
    yield Row(f"{name}, difference", difference, interval.low, interval.high, unit, config)
