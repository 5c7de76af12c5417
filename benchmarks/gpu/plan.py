"""What PPO costs on a GPU as far as it can be seen without one: launches, bytes, and what prevents capture.

`python -m benchmarks gpu --plan` runs small iterations on the CPU with the kernels that a GPU would run, in
Triton interpreter, under the recorder of `launches.py`. `benchmarks/gpu_plan.json` has the stored numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
from torch.utils._python_dispatch import _disable_current_modes

from benchmarks.gpu.launches import Recording, record
from benchmarks.harness.rows import FOLDER, Row, single_row
from benchmarks.speed.speed_env import SpeedSettings, make_speed_env
from finrl_pod.errors import ConfigError
from finrl_pod.native.device import INTERPRET, as_on_device, is_triton_installed
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.run import PPOConfig

PLAN_FILE = FOLDER / "gpu_plan.json"
Fault = Literal["sync", "moved", "baked"]
PolicyName = Literal["mlp", "equivariant"]

# The market of the plan: sizes change launches little and bytes in proportion.
SIZES = SpeedSettings(assets=30, features=8, days=300, hidden=(64, 64), kind="portfolio", mandate="equal_weight")
PLAN_ACCOUNTS = 32
PLAN_HORIZON = 2
EPOCHS = 2
ENVIRONMENTS = (("portfolio", "equal_weight"), ("portfolio", "none"), ("stock_trading", "none"))
ITERATIONS = 100  # of a schedule of learning rates that reaches 0, so that the rate changes every iteration

# One H100, and a launch that is not part of a graph.
BYTES_PER_SECOND = 3.35e12
SECONDS_PER_LAUNCH = 3e-6
exact_row = partial(single_row, interval="exact")


@dataclass
class PlannedIteration:
    """One PPO iteration at a time, each with another learning rate. samples: environment steps of one."""

    learner: Learner
    samples: int
    fault: Fault | None = None
    factor: torch.Tensor = field(default_factory=lambda: torch.ones(1))
    buffer: torch.Tensor = field(default_factory=lambda: torch.zeros(1))  # of the fault "moved"

    def __call__(self) -> None:
        learner = self.learner
        iteration = self.learner.samples[0] // self.samples
        with as_on_device():
            with _disable_current_modes():  # the host writes the rate before it replays a graph
                self.factor.fill_(1 - iteration / ITERATIONS)
            learner.algorithm.iterate(learner.collector, self.factor)
        learner.samples = [n + self.samples for n in learner.samples]
        if self.fault == "sync":
            float(learner.algorithm.weights()["log_std"].sum())
        elif self.fault == "baked":
            learner.algorithm.weights()["log_std"].mul_(1 - 1e-9 * (1 + iteration))
        elif self.fault == "moved":
            self.buffer = self.buffer + 1


def plan_iteration(
    policy: PolicyName,
    accounts: int,
    horizon: int,
    minibatches: int,
    fault: Fault | None = None,
    activation_dtype: Literal["float32", "bfloat16"] = "float32",
) -> tuple[Callable[[], None], int]:
    """(run, samples): `run()` is one PPO iteration in torch on the CPU, without the C++ kernels.

    accounts, horizon, minibatches: environments, steps of a rollout, minibatches of each of two epochs. samples:
    environment steps of an iteration. fault: something that prevents capture, done at the end of each iteration.
    """
    settings = replace(SIZES, policy=policy, envs=accounts, horizon=horizon)
    agent = PPOConfig(
        policy=policy,
        hidden=settings.hidden,
        horizon=horizon,
        epochs=EPOCHS,
        minibatches=minibatches,
        activation_dtype=activation_dtype,
    )
    with as_on_device():
        learner = Learner(make_speed_env(settings, torch.device("cpu")), agent)
        learner.collector  # noqa: B018  resets the environments
    return PlannedIteration(learner, accounts * horizon, fault), accounts * horizon


def plan_rows(fault: Fault | None = None) -> list[Row]:
    """Count launches, bytes and obstacles to capture; kernels run in the interpreter of Triton.

    Raises ConfigError without Triton.
    """
    if not is_triton_installed():
        raise ConfigError("gpu --plan runs the interpreter of Triton; install triton")
    os.environ[INTERPRET] = "1"
    rows = [exact_row("env_launches", max(_env_launches(*kind) for kind in ENVIRONMENTS), "launches a step")]
    syncs = []
    moved_buffers = []
    baked_numbers = []
    for policy in ("mlp", "equivariant"):
        run, samples = plan_iteration(policy, PLAN_ACCOUNTS, PLAN_HORIZON, 2, fault)
        run()  # buffers are allocated in the first
        first = record(run)
        second = record(run)
        run, _ = plan_iteration(policy, PLAN_ACCOUNTS, PLAN_HORIZON, 1)
        run()
        fewer = record(run)
        launches_per_minibatch = (len(second.launches) - len(fewer.launches)) / EPOCHS
        rows.append(exact_row(f"ppo_{policy}_launches", launches_per_minibatch, "launches a minibatch"))
        rows += _iteration_rows(policy, second, samples)
        syncs += second.syncs
        moved_buffers += first.moved_buffers(second)
        baked_numbers += first.baked_numbers(second)
    for name, operations in (("syncs", syncs), ("moved_buffers", moved_buffers), ("baked_numbers", baked_numbers)):
        rows.append(exact_row(name, len(operations), "in an iteration", operations=sorted(set(operations))))
    return rows


def _iteration_rows(policy: str, recording: Recording, samples: int) -> list[Row]:
    launches = len(recording.launches)
    bytes_each = recording.moved_bytes / samples
    return [
        exact_row(f"{policy}_bytes", recording.widest / samples, "bytes a sample", widest=recording.widest_operation),
        exact_row(
            f"{policy}_moved_bytes", bytes_each, "bytes a sample",
            samples_per_second_by_bandwidth=round(BYTES_PER_SECOND / bytes_each),
        ),
        exact_row(
            f"{policy}_iteration_launches", launches, "launches",
            horizon=PLAN_HORIZON, minibatches=2 * EPOCHS, seconds_of_launches=launches * SECONDS_PER_LAUNCH,
        ),
    ]  # fmt: skip


def _env_launches(kind: str, mandate: str) -> float:
    settings = replace(SIZES, kind=kind, mandate=mandate, envs=PLAN_ACCOUNTS)  # type: ignore[arg-type]
    with as_on_device(), torch.no_grad():
        env = make_speed_env(settings, torch.device("cpu"))
        env.reset(0)
        env.reuse_buffers(True)
        action = torch.zeros(1, PLAN_ACCOUNTS, env.action_size)
        env.step(action)
        return len(record(lambda: env.step(action)).launches)
