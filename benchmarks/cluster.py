"""The engine of a tournament: leaderboard, snapshots, results through Ray, and shards that a scheduler keeps busy.

`python -m benchmarks cluster --only leaderboard snapshot schedulers` measures a part.
"""

from __future__ import annotations

import dataclasses
import heapq
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from finrl_pod_app.training.ray_nodes import local_cluster

from benchmarks.harness.rows import Row, median_row, single_row
from finrl_pod import random
from finrl_pod.settings.run import PPOConfig, RunConfig, TournamentConfig
from finrl_pod.tournament import snapshots
from finrl_pod.tournament.assignment import Assignment, AssignmentResult, Group, make_groups
from finrl_pod.tournament.assignment_codec import encode_result
from finrl_pod.tournament.executor import Event, Finished, ReportSamples
from finrl_pod.tournament.executors.ray_shards import RayExecutor
from finrl_pod.tournament.executors.shard import Trainer
from finrl_pod.tournament.leaderboard import Leaderboard
from finrl_pod.tournament.next_generation import SlotInit, next_slots
from finrl_pod.tournament.ranking import BASE
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.tournament import Tournament
from finrl_pod.types import AgentSnapshot, Normaliser, Score

PARAMETERS = 3 * 64 * 64  # of a policy and its critic with two hidden layers of 64 units, about
BARS = 750  # of a validation split
AGENT = PPOConfig(hidden=(64, 64))
SCHEDULERS: tuple[Literal["asynchronous", "generational"], ...] = ("asynchronous", "generational")
SPEEDS = (1.0, 1.0, 1.0, 0.5)  # of four shards
SCORES = 4_000
SNAPSHOTS = 50
BATCH_PODS = 64
BATCHES = 20


class VirtualExecutor:
    """Shards on virtual time: an assignment takes one second over the speed of its shard."""

    def __init__(self, trainer: Trainer, speeds: Sequence[float]) -> None:
        self.shards = len(speeds)
        self.now = 0.0
        self.busy_seconds = 0.0
        self._trainer = trainer
        self._speeds = speeds
        self._idle = list(range(len(speeds)))
        self._ends: list[tuple[float, int, int, Assignment]] = []  # time, serial number, shard
        self._serial = 0

    @property
    def free(self) -> int:
        return len(self._idle)

    def submit(self, assignment: Assignment) -> str:
        shard = self._idle.pop(0)
        seconds = 1 / self._speeds[shard]
        self.busy_seconds += seconds
        self._serial += 1
        heapq.heappush(self._ends, (self.now + seconds, self._serial, shard, assignment))
        return f"virtual-{shard}"

    def wait(self, report: ReportSamples) -> Sequence[Event]:
        """Advance to the next result."""
        self.now, _, shard, assignment = heapq.heappop(self._ends)
        self._idle = sorted([*self._idle, shard])
        result = self._trainer.run(assignment, lambda samples: report(assignment.group.number, samples))
        return [Finished(result, f"virtual-{shard}")]

    def close(self) -> None:
        """Nothing to end."""

    @property
    def busy_share(self) -> float:
        """Share of the time of the shards until now in which they trained."""
        return self.busy_seconds / (self.shards * self.now)


class RandomTrainer:
    """Trains nothing: scores, returns and weights are random numbers keyed by slot."""

    def run(self, assignment: Assignment, report: Callable[[int], None] = lambda _: None) -> AssignmentResult:
        pods = len(assignment.group.slots)
        report(assignment.samples * pods)
        agents = []
        scores = []
        returns = {}
        for slot_init in assignment.slot_inits:
            rng = np.random.default_rng(random.key(assignment.seed, slot_init.slot, "waiting"))
            name = f"g{assignment.number:02d}s{slot_init.slot:02d}"
            parent = None if slot_init.kind == "reinit" else slot_init.parent
            age = assignment.samples + (assignment.parents[parent].samples if parent is not None else 0)
            weights = {"x": torch.from_numpy(rng.normal(size=PARAMETERS).astype(np.float32))}
            optimiser = {"m": weights["x"].clone(), "v": weights["x"] ** 2}
            values = dict(slot_init.hyperparameters)
            normaliser = Normaliser((), (), ())
            agents.append(AgentSnapshot(name, parent, {}, weights, optimiser, normaliser, values, age, "", 0, ""))
            scores.append(Score(name, parent, assignment.number, slot_init.slot, age, float(rng.normal()), values))
            returns[name] = rng.normal(size=BARS) / 100
        return AssignmentResult(
            group=assignment.group.number,
            number=assignment.number,
            scores=tuple(scores),
            equity=np.exp(np.cumsum(np.stack(list(returns.values()), 1), 0)),
            returns={**returns, BASE: np.zeros(BARS)},
            agents=tuple(agents),
            samples=assignment.samples * pods,
        )


def assignment_of(pods: int, group: int) -> Assignment:
    inits = tuple(SlotInit(slot, "reinit", None, {"learning_rate": 1e-3}) for slot in range(pods))
    return Assignment(Group(group, 0, tuple(range(pods))), 0, inits, {}, (), group, 1000)


def leaderboard_rows() -> list[Row]:
    """Inserts and draws per second of processor time on a leaderboard of 64 entries, one by one on one core."""
    values = np.random.default_rng(0).normal(size=SCORES)
    board = Leaderboard(64, max_root_share=0.25)
    scores = [
        Score(f"g{i // 64:02d}s{i % 64:02d}", None, i // 64, i % 64, 1000 * (1 + i // 64), float(x), {"gamma": 0.9})
        for i, x in enumerate(values)
    ]
    start = time.process_time()
    for score in scores:
        board = board.insert([score])
    inserts = SCORES / (time.process_time() - start)
    config = TournamentConfig(exploit_fraction=1.0, reinit_fraction=0.0)
    current = [dataclasses.replace(score, score=-9.0) for score in scores[-64:]]
    start = time.process_time()
    draws = 0
    while draws < SCORES:
        draws += len(next_slots(AGENT, config, draws, 99, board, current))
    rate = draws / (time.process_time() - start)
    return [
        single_row("leaderboard_inserts", inserts, "per second"),
        single_row("leaderboard_draws", rate, "per second"),
    ]


def snapshot_rows() -> list[Row]:
    """Milliseconds for a snapshot of a 64x64 pod: to bytes, and to disk."""
    result = RandomTrainer().run(assignment_of(1, 0))
    encoding = []
    saving = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(SNAPSHOTS):
            start = time.perf_counter()
            data = encode_result(result)
            encoding.append(1e3 * (time.perf_counter() - start))
            start = time.perf_counter()
            snapshots.save(Path(folder), result.agents[0])
            saving.append(1e3 * (time.perf_counter() - start))
    config = {"bytes": len(data), "parameters": PARAMETERS}
    return [median_row("snapshot_encode", encoding, "ms", config), median_row("snapshot_save", saving, "ms", config)]


def ray_rows() -> list[Row]:
    """Pods per second whose results come through Ray from two shards in batches, and are decoded and inserted."""
    with (
        local_cluster(1, cpus=2) as cluster,
        closing(RayExecutor(lambda _: RandomTrainer(), shards=2, address=cluster.address)) as executor,
    ):
        board = Leaderboard(BATCH_PODS)
        submissions = 0
        completions = 0
        start = 0.0
        while completions < BATCHES:
            while submissions < BATCHES and executor.free:
                start = start or time.perf_counter()
                executor.submit(assignment_of(BATCH_PODS, submissions))
                submissions += 1
            for event in executor.wait(lambda *_: None):
                if isinstance(event, Finished):
                    board = board.insert(event.result.scores)
                    completions += 1
        rate = completions * BATCH_PODS / (time.perf_counter() - start)
    return [single_row("ray_results", rate, "per second", batch=BATCH_PODS)]


def scheduler_rows() -> list[Row]:
    """Busy shares of four shards on virtual time, one half as fast, with four equal groups and 20 rounds."""
    rows = []
    for scheduler in SCHEDULERS:
        tournament = TournamentConfig(
            pods=4, generations=20, samples_per_generation=1000, batch_pods=1, scheduler=scheduler
        )
        config = RunConfig(seed=1, threads=1, agent=AGENT, tournament=tournament)
        executor = VirtualExecutor(RandomTrainer(), SPEEDS)
        with tempfile.TemporaryDirectory() as folder:
            run = RunDirectory.create(Path(folder) / "run", config, "waiting")
            Tournament(config, run, executor, groups=make_groups(config, len(SPEEDS))).run()
        rows.append(single_row(f"busy_{scheduler}", executor.busy_share, "share of the time"))
    return rows


PARTS: dict[str, Callable[[], list[Row]]] = {
    "leaderboard": leaderboard_rows,
    "snapshot": snapshot_rows,
    "ray_results": ray_rows,
    "schedulers": scheduler_rows,
}


@dataclass(frozen=True)
class ClusterSettings:
    only: tuple[str, ...] = field(default=(), metadata={"choices": tuple(PARTS)})  # parts; empty for all


def cluster_rows(settings: ClusterSettings) -> Iterator[Row]:
    for name in settings.only or PARTS:
        yield from PARTS[name]()
