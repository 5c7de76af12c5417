"""The engine of a tournament: leaderboard, snapshots, what Ray adds, recovery, schedulers with unequal shards.

    python -m benchmarks cluster                       # all parts; half an hour on two idle cores
    python -m benchmarks cluster --only leaderboard snapshot schedulers

Every part replaces its entry in cluster.json; rows are the numbers of a part.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from finrl_pod_app.prices.panels import load_panel
from finrl_pod_app.setup.presets import PRESETS
from finrl_pod_app.training.engines import shard_trainer
from finrl_pod_app.training.ray_nodes import LocalCluster, local_cluster

from benchmarks.cluster.virtual_shards import VirtualExecutor, WaitingTrainer
from benchmarks.harness.results import FOLDER
from benchmarks.harness.rows import CPU, Row, describe, log_progress, single_row
from finrl_pod.data.built_in_panels import load_sample
from finrl_pod.files import write_text
from finrl_pod.settings.algorithm_configs import SACConfig
from finrl_pod.settings.run import PPOConfig, RunConfig, TournamentConfig
from finrl_pod.tournament import snapshots
from finrl_pod.tournament.assignment import Assignment, Group, make_groups
from finrl_pod.tournament.event_log import read_events
from finrl_pod.tournament.executor import Executor, Finished
from finrl_pod.tournament.executors.processes import ProcessExecutor
from finrl_pod.tournament.executors.ray_shards import RayExecutor
from finrl_pod.tournament.executors.shard import encode_result
from finrl_pod.tournament.leaderboard import Leaderboard
from finrl_pod.tournament.next_generation import SlotInit, next_slots
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.tournament import Outcome, Tournament
from finrl_pod.types import Score

RESULTS_FILE = FOLDER / "cluster.json"
PARAMETERS = 3 * 64 * 64  # of a policy and its critic with two hidden layers of 64 units, about
SEEDS = range(5)
Scheduler = Literal["asynchronous", "generational"]
SCHEDULERS: tuple[Scheduler, ...] = ("asynchronous", "generational")
SPEEDS = (1.0, 1.0, 1.0, 0.5)  # of four shards
AGENT = PPOConfig(hidden=(64, 64))


def score(slot: int, number: int, value: float) -> Score:
    return Score(f"g{number:02d}s{slot:02d}", None, number, slot, 1000 * (number + 1), value, {"learning_rate": 1e-3})


def leaderboard_rates() -> dict[str, Any]:
    """Inserts and draws per second of processor time on a leaderboard of 64 entries, one by one on one core."""
    rng = np.random.default_rng(0)
    board = Leaderboard(64, max_root_share=0.25)
    n = 4000
    scores = [score(i % 64, i // 64, float(x)) for i, x in enumerate(rng.normal(size=n))]
    start = time.process_time()
    for entry in scores:
        board = board.insert([entry])
    inserts = n / (time.process_time() - start)
    config = TournamentConfig(exploit_fraction=1.0, reinit_fraction=0.0)
    current = [dataclasses.replace(entry, score=-9.0) for entry in scores[-64:]]
    history: dict[str, Any] = {}
    start = time.process_time()
    draws = 0
    while draws < n:
        draws += len(next_slots(AGENT, config, draws, 99, board, current, history))
    return {"inserts_per_second": inserts, "draws_per_second": draws / (time.process_time() - start), "entries": 64}


def snapshot_times() -> dict[str, Any]:
    """Milliseconds for a snapshot of a 64x64 pod: to bytes, and to disk."""
    result = WaitingTrainer(lambda _: 0.0, PARAMETERS).run(waiting_assignment(1, 0))
    agent = result.agents[0]
    packing = []
    saving = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(50):
            start = time.perf_counter()
            data = encode_result(result)
            packing.append(time.perf_counter() - start)
            start = time.perf_counter()
            snapshots.save(Path(folder), agent)
            saving.append(time.perf_counter() - start)
    return {
        "encode_ms": 1e3 * statistics.median(packing),
        "save_ms": 1e3 * statistics.median(saving),
        "bytes": len(data),
        "parameters": PARAMETERS,
    }


def waiting_assignment(pods: int, group: int) -> Assignment:
    inits = tuple(SlotInit(slot, "reinit", None, {"learning_rate": 1e-3}) for slot in range(pods))
    return Assignment(Group(group, 0, tuple(range(pods))), 0, inits, {}, (), group, 1000)


def ray_results() -> dict[str, Any]:
    """Pods per second whose results come through Ray from two shards in batches of 64, and are decoded and inserted."""
    pods = 64
    batches = 20
    with _executor("ray", partial(waiting_trainer, 0.0)) as executor:
        board = Leaderboard(64)
        submissions = 0
        completions = 0
        start = 0.0
        while completions < batches:
            while submissions < batches and executor.free:
                start = start or time.perf_counter()
                executor.submit(waiting_assignment(pods, submissions))
                submissions += 1
            for event in executor.wait(lambda *_: None):
                if isinstance(event, Finished):
                    board = board.insert(event.result.scores)
                    completions += 1
        return {"results_per_second": completions * pods / (time.perf_counter() - start), "batch": pods}


def waiting_trainer(seconds: float, _: int) -> WaitingTrainer:
    """A shard whose assignments take so many seconds."""
    return WaitingTrainer(lambda _: seconds, PARAMETERS)


def waiting_config(scheduler: Scheduler, shards: int, pods: int, rounds: int) -> RunConfig:
    tournament = TournamentConfig(
        pods=shards * pods, generations=rounds, samples_per_generation=1000, batch_pods=pods, scheduler=scheduler
    )
    return RunConfig(seed=1, threads=1, agent=AGENT, tournament=tournament)


def time_run(config: RunConfig, executor: Executor, folder: Path, shards: int) -> tuple[float, Outcome]:
    run = RunDirectory.create(folder, config, "waiting")
    outcome = Tournament(config, run, executor, groups=make_groups(config, shards)).run()
    events = [event for event in read_events(folder / "events.jsonl") if event["event"] in ("assigned", "result")]
    return events[-1]["time"] - events[0]["time"], outcome


def _wait_until_ready(executor: Executor, shards: int) -> None:
    while executor.free < shards:
        executor.wait(lambda *_: None)


def overhead() -> dict[str, Any]:
    """Seconds of the same tournament on two shards, in processes and on Ray; medians of three runs, alternately."""
    quick = PRESETS["quick"]
    tournament = dataclasses.replace(
        quick.tournament, pods=8, generations=4, samples_per_generation=100_000, batch_pods=2
    )
    config = dataclasses.replace(quick, threads=1, tournament=tournament)
    make = partial(shard_trainer, config, load_panel(config), {}, {}, "cpu", 1)
    seconds: dict[str, list[float]] = {"processes": [], "ray": []}
    for _ in range(3):
        for name in seconds:
            seconds[name].append(_in_new_process(_one_overhead_run, name, config, make))
            log_progress(f"{name}: {seconds[name][-1]:.1f} s")
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {**medians, "overhead": medians["ray"] / medians["processes"] - 1}


def _one_overhead_run(name: str, config: RunConfig, make: Callable[[int], Any]) -> float:
    with _executor(name, make) as executor, tempfile.TemporaryDirectory() as folder:
        _wait_until_ready(executor, 2)
        return time_run(config, executor, Path(folder) / "run", 2)[0]


def _in_new_process(function: Callable[..., float], *arguments: Any) -> float:
    """Call a function in a process that no cluster was connected to: Ray keeps the token of the first one."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


@contextmanager
def _executor(name: str, make: Callable[[int], Any]) -> Iterator[Executor]:
    if name == "processes":
        with closing(ProcessExecutor(make, 2)) as processes:
            yield processes
        return
    with local_cluster(1, cpus=2) as cluster, closing(RayExecutor(make, shards=2, address=cluster.address)) as shards:
        yield shards


def recovery() -> dict[str, Any]:
    """Seconds from the SIGKILL of a worker, and of a node, until its assignment has been started again."""
    with local_cluster(2) as cluster:
        return {"worker": _recovery(cluster, _kill_worker), "node": _recovery(cluster, lambda x: x.nodes[1].kill())}


def _kill_worker(cluster: LocalCluster) -> None:
    for process in cluster.nodes[1].processes:
        if process.is_running() and any("RayShard" in word for word in process.cmdline()):
            process.kill()
            return
    raise RuntimeError("the second node has no shard")


def _recovery(cluster: LocalCluster, kill: Callable[[LocalCluster], None]) -> float:
    config = waiting_config("asynchronous", 2, 1, 8)
    kill_times: list[float] = []
    executor = RayExecutor(partial(waiting_trainer, 3.0), shards=2, address=cluster.address)
    with tempfile.TemporaryDirectory() as folder, closing(executor):
        log = Path(folder) / "run" / "events.jsonl"

        def when_busy() -> None:
            while True:
                events = read_events(log) if log.exists() else []
                if sum(event["event"] == "result" for event in events) >= 4:
                    time.sleep(0.5)  # both shards train
                    kill_times.append(time.monotonic())
                    kill(cluster)
                    return
                time.sleep(0.02)

        _wait_until_ready(executor, 2)
        thread = threading.Thread(target=when_busy)
        start = time.monotonic()
        thread.start()
        time_run(config, executor, Path(folder) / "run", 2)
        thread.join()
        restart_time = next(event["time"] for event in read_events(log) if event["event"] == "restarted")
    return float(restart_time - (kill_times[0] - start))


def study_config(seed: int, scheduler: Scheduler) -> RunConfig:
    """PPO and SAC on the sample prices, one pod a group."""
    quick = PRESETS["quick"]
    sac = SACConfig(policy="linear", batch_size=64, learning_starts=512, buffer_size=20_000)
    tournament = TournamentConfig(
        pods=8, generations=6, samples_per_generation=20_000, leaderboard=8, champion=4, batch_pods=1,
        scheduler=scheduler,
    )  # fmt: skip
    return dataclasses.replace(quick, seed=seed, threads=1, cohorts=(*quick.cohorts, sac), tournament=tournament)


def schedulers() -> dict[str, Any]:
    """Busy share and best score of both schedulers on four shards, one twice as slow, at equal virtual time.

    An assignment of the second algorithm takes 1.5, of the third 3 times as long as one of the first.
    """
    rows = [
        _virtual_run(study_config(seed, scheduler), SPEEDS, 0.0, {"seed": seed, "scheduler": scheduler})
        for seed in SEEDS
        for scheduler in SCHEDULERS
    ]
    return {"rows": rows, "busy": busy_shares()}


def busy_shares() -> dict[str, float]:
    """Busy shares of four shards, one twice as slow, with four equal groups and 20 assignments each."""
    shares: dict[str, float] = {}
    for scheduler in SCHEDULERS:
        config = waiting_config(scheduler, 4, 1, 20)
        trainer = WaitingTrainer(lambda _: 0.0, 8, 10, sleep=lambda _: None)
        executor = VirtualExecutor(trainer, SPEEDS)
        with tempfile.TemporaryDirectory() as folder:
            time_run(config, executor, Path(folder) / "run", 4)
        shares[scheduler] = executor.busy_share
    return shares


def losses() -> dict[str, Any]:
    """Best scores with each shard lost with probability 0.1 per assignment, and of undisturbed runs, five seeds."""
    rows = [
        _virtual_run(study_config(seed, "asynchronous"), (1.0,) * 4, loss, {"seed": seed, "loss": loss})
        for seed in SEEDS
        for loss in (0.0, 0.1)
    ]
    return {"rows": rows}


def _virtual_run(config: RunConfig, speeds: tuple[float, ...], loss: float, facts: dict[str, Any]) -> dict[str, Any]:
    factors = (1.0, 1.5, 3.0)
    panel = load_sample()
    executor = VirtualExecutor(
        shard_trainer(config, panel, {}, {}, "cpu", 1, 0),
        speeds,
        lambda assignment: factors[assignment.group.cohort],
        loss=loss,
        restart_seconds=0.1,
        seed=config.seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory.create(Path(folder) / "run", config, panel.sha256)
        outcome = Tournament(config, run, executor, groups=make_groups(config, len(speeds))).run()
    best = [entry.score for entry in outcome.leaderboard.scores[:4]]
    row = {**facts, "best": best[0], "mean_of_best_four": statistics.fmean(best), "seconds": executor.now}
    log_progress(f"{row}")
    return {**row, "busy": executor.busy_share, "samples": outcome.samples}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "leaderboard": leaderboard_rates,
    "snapshot": snapshot_times,
    "ray_results": ray_results,
    "overhead": overhead,
    "recovery": recovery,
    "schedulers": schedulers,
    "losses": losses,
}


@dataclass(frozen=True)
class EngineSettings:
    only: tuple[str, ...] = field(default=(), metadata={"choices": tuple(PARTS)})  # parts; empty for all


def cluster_rows(settings: EngineSettings, device: torch.device = CPU) -> Iterator[Row]:
    """Measure the parts, one after another, and store each in cluster.json."""
    for name in settings.only or PARTS:
        numbers = PARTS[name]()
        results = json.loads(RESULTS_FILE.read_text()) if RESULTS_FILE.exists() else {}
        results |= {name: {**numbers, "load_average": os.getloadavg()[0]}, "machine": describe(device)}
        write_text(RESULTS_FILE, json.dumps(results, indent=1, sort_keys=True) + "\n")
        details = {key: value for key, value in numbers.items() if not isinstance(value, int | float)}
        for key, value in numbers.items():
            if isinstance(value, int | float):
                yield single_row(f"{name}_{key}", value, "", **details)
