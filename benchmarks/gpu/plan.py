"""What PPO costs on a GPU as far as it can be seen without one: launches, bytes, memory, and what prevents capture.

`python -m benchmarks gpu --plan` goes through iterations at the size of the benchmark on tensors without data, with the
kernels that a GPU would run. Small iterations on the CPU show what a graph could not repeat.
`benchmarks/gpu_plan.json` has the stored numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from benchmarks.gpu.captures import CopyFault, capture_rows
from benchmarks.gpu.launches import Recording, record, skip
from benchmarks.gpu.live_memory import PeakMemory, peak_memory
from benchmarks.gpu.rooflines import roofline
from benchmarks.harness.rows import FOLDER, Row, Section, single_row
from benchmarks.speed.speed_env import SpeedSettings, make_speed_env
from finrl_pod.errors import ConfigError
from finrl_pod.native.device import as_on_device
from finrl_pod.native.kernel_launch import is_triton_installed, planned_launches
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.run import PPOConfig

PLAN_FILE = FOLDER / "gpu_plan.json"
Fault = Literal["sync", "moved", "baked"]
PolicyName = Literal["mlp", "equivariant"]
POLICIES: tuple[PolicyName, ...] = ("mlp", "equivariant")

# A small market: sizes change launches little.
SIZES = SpeedSettings(assets=30, features=8, days=300, hidden=(64, 64), kind="portfolio", mandate="equal_weight")
SMALL_ACCOUNTS = 32
SMALL_HORIZON = 2
ENVIRONMENTS = (("portfolio", "equal_weight"), ("portfolio", "none"), ("stock_trading", "none"))
ITERATIONS = 100  # of a schedule of learning rates that reaches 0, so that the rate changes every iteration
# The benchmark.
DAYS = 2500
EPOCHS = 4
ACCOUNTS = 2**17
HORIZON = 64
MINIBATCHES = 4
POPULATION = 256
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
    *,
    epochs: int = 2,
    days: int = SIZES.days,
    members: int = 1,
) -> tuple[Callable[[], None], int]:
    """(run, samples): `run()` is one PPO iteration in torch on the CPU, without the C++ kernels.

    accounts, horizon, minibatches: environments, steps of a rollout, minibatches of each epoch. samples: environment
    steps of an iteration. fault: something that prevents capture, done at the end of each iteration. days: rows of the
    market table. members: agents that share the accounts evenly.
    """
    settings = replace(SIZES, policy=policy, envs=accounts, horizon=horizon, days=days, members=members)
    agent = PPOConfig(
        policy=policy,
        hidden=settings.hidden,
        horizon=horizon,
        epochs=epochs,
        minibatches=minibatches,
        activation_dtype=activation_dtype,
    )
    with as_on_device(), _disable_current_modes():
        learner = Learner(make_speed_env(settings, torch.device("cpu")), agent)
        learner.collector  # noqa: B018  resets the environments
    return PlannedIteration(learner, accounts * horizon, fault), accounts * horizon


class PlannedWork(NamedTuple):
    """What a piece of work at the size of the benchmark costs. samples: environment steps."""

    samples: int
    recording: Recording
    memory: PeakMemory


def plan_rows(fault: Fault | CopyFault | None = None) -> Iterator[Row | Section]:
    """Count launches, bytes, memory and obstacles to capture.

    Raises ConfigError without Triton, whose kernels tell what they would do.
    """
    if not is_triton_installed():
        raise ConfigError("gpu --plan reads the kernels of Triton; install triton")
    copy_fault: CopyFault | None = "copy" if fault == "copy" else None
    yield Section("captures", capture_rows(copy_fault))
    yield exact_row("env_launches", max(env_launches(*kind) for kind in ENVIRONMENTS), "launches a step")
    for policy in POLICIES:
        yield exact_row(f"ppo_{policy}_launches", launches_of_minibatch(policy), "launches a minibatch")
    yield from obstacle_rows(None if fault == "copy" else fault)
    market = planned_step(ACCOUNTS)
    iterations = {policy: planned_work(policy) for policy in POLICIES}
    population = planned_work("equivariant", accounts=256 * POPULATION, members=POPULATION)
    for policy, work in iterations.items():
        yield from _iteration_rows(policy, work)
    memory = {policy: work.memory for policy, work in iterations.items()}
    samples = ACCOUNTS * HORIZON
    yield Section("peak_bytes_per_step", {policy: round(x.total / samples, 1) for policy, x in memory.items()})
    yield Section(
        "peak_bytes_by_function",
        {policy: _largest(x, samples) for policy, x in memory.items()},
    )
    yield Section("grids", _grids(market.recording, *(work.recording for work in iterations.values())))
    rooflines = [
        roofline("market_step", market.recording, market.samples, goal=500e6),
        roofline("ppo_mlp", iterations["mlp"].recording, samples, goal=15e6),
        roofline("ppo_equivariant", iterations["equivariant"].recording, samples, goal=8e6),
    ]
    alone = rooflines[-1].samples_per_second
    rooflines.append(roofline(f"population_{POPULATION}", population.recording, population.samples, goal=0.8 * alone))
    yield Section("rooflines", [x._asdict() for x in rooflines])


def planned_work(policy: PolicyName, accounts: int = ACCOUNTS, members: int = 1) -> PlannedWork:
    """The costs of an iteration of the benchmark, counted on tensors without data."""
    with without_data():
        run, samples = plan_iteration(policy, accounts, HORIZON, MINIBATCHES, epochs=EPOCHS, days=DAYS, members=members)
        memory = peak_memory(run)  # of the first, in which buffers are allocated
        return PlannedWork(samples, record(run), memory)


def planned_step(accounts: int) -> PlannedWork:
    """The costs of a step of a market, counted on tensors without data."""
    with without_data():
        step = _environment_step(replace(SIZES, envs=accounts, days=DAYS))
        memory = peak_memory(step)
        return PlannedWork(accounts, record(step), memory)


@contextmanager
def without_data() -> Iterator[None]:
    """Operations give tensors that have shapes and take no memory, and no kernel runs."""
    with planned_launches(skip), FakeTensorMode(allow_non_fake_inputs=True):
        yield


def _environment_step(settings: SpeedSettings) -> Callable[[], None]:
    """A step of an environment that was reset, with an action of zeros."""
    with as_on_device(), _disable_current_modes():
        env = make_speed_env(settings, torch.device("cpu"))
        env.reset(0)
        env.reuse_buffers(True)
        action = torch.zeros(settings.members, settings.envs_each, env.action_size)

    def step() -> None:
        with as_on_device(), torch.no_grad():
            env.step(action)

    return step


def launches_of_minibatch(policy: PolicyName) -> float:
    """What a minibatch adds in an epoch that is added: all else cancels."""
    counts = {}
    for minibatches in (1, 2):
        for epochs in (2, 3):
            with planned_launches(skip):
                run, _ = plan_iteration(policy, SMALL_ACCOUNTS, SMALL_HORIZON, minibatches, epochs=epochs)
            counts[minibatches, epochs] = len(record(run).launches)
    return counts[2, 3] - counts[2, 2] - counts[1, 3] + counts[1, 2]


def obstacle_rows(fault: Fault | None) -> Iterator[Row]:
    """What a graph could not repeat in two small iterations of each policy."""
    syncs = []
    moved_buffers = []
    baked_numbers = []
    for policy in POLICIES:
        with planned_launches(skip):
            run, _ = plan_iteration(policy, SMALL_ACCOUNTS, SMALL_HORIZON, 2, fault)
            run()  # buffers are allocated in the first
        first = record(run)
        second = record(run)
        syncs += second.syncs
        moved_buffers += first.moved_buffers(second)
        baked_numbers += first.baked_numbers(second)
    for name, operations in (("syncs", syncs), ("moved_buffers", moved_buffers), ("baked_numbers", baked_numbers)):
        yield exact_row(name, len(operations), "in an iteration", operations=sorted(set(operations)))


def _iteration_rows(policy: PolicyName, work: PlannedWork) -> Iterator[Row]:
    recording = work.recording
    launches = len(recording.launches)
    widest = recording.widest / work.samples
    yield exact_row(f"{policy}_bytes", widest, "bytes a sample", widest=recording.widest_operation)
    yield exact_row(f"{policy}_moved_bytes", recording.moved_bytes / work.samples, "bytes a sample")
    yield exact_row(
        f"{policy}_iteration_launches", launches, "launches", horizon=HORIZON, minibatches=MINIBATCHES * EPOCHS
    )


def _largest(memory: PeakMemory, samples: int, count: int = 8) -> dict[str, float]:
    """Bytes a sample of the functions that had allocated most at the peak."""
    return {name: round(size / samples, 1) for name, size in list(memory.by_function.items())[:count]}


def _grids(*recordings: Recording) -> list[dict[str, str | int]]:
    """Kernels with their grids, and how often each is launched."""
    launches: Counter[tuple[str, tuple[int, ...]]] = Counter(
        (launch.name, launch.grid) for recording in recordings for launch in recording.kernels
    )
    rows: list[dict[str, str | int]] = []
    for (name, grid), count in launches.items():
        x, y, z = (*grid, 1, 1)[:3]
        rows.append({"name": name, "x": x, "y": y, "z": z, "launches": count})
    return rows


def env_launches(kind: str, mandate: str) -> float:
    settings = replace(SIZES, kind=kind, mandate=mandate, envs=SMALL_ACCOUNTS)  # type: ignore[arg-type]
    with planned_launches(skip):
        step = _environment_step(settings)
        step()
        return len(record(step).launches)
