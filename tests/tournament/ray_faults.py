"""Tournaments on Ray clusters of this machine whose processes are killed; runs as a separate process.

python -m tests.tournament.ray_faults SCENARIO FOLDER: prints one JSON line about what happened. Every wait is for an
event, never for a time.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from finrl_pod_app.training.ray_nodes import LocalCluster, local_cluster

from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.event_log import read_events
from finrl_pod.tournament.executors import ray_shards
from finrl_pod.tournament.executors.ray_shards import RayExecutor
from tests.tournament import shard_faults
from tests.tournament.shard_faults import FaultyTrainer
from tests.tournament.small_tournament import small_config, tournament

Events = Sequence[Mapping[str, Any]]
LOOK_SECONDS = 0.05


def config(**changes: Any) -> RunConfig:
    settings = {"pods": 4, "batch_pods": 1, "generations": 4, "scheduler": "asynchronous", **changes}
    return small_config(**settings)


def results(events: Events) -> int:
    return sum(event["event"] == "result" for event in events)


def nodes(events: Events) -> int:
    return sum(event["event"] == "node_joined" for event in events)


def when(log: Path, condition: Callable[[Events], bool], action: Callable[[], None]) -> threading.Thread:
    """Do something once a log satisfies a condition, in a thread."""

    def look() -> None:
        pause = threading.Event()
        while not (log.exists() and condition(read_events(log))):
            pause.wait(LOOK_SECONDS)
        action()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    return thread


def kill_worker(cluster: LocalCluster) -> None:
    """SIGKILL to a shard's process on the first node."""
    shards = [x for x in cluster.nodes[0].processes if x.is_running() and "RayShard" in " ".join(x.cmdline())]
    shards[0].kill()


def run_on(cluster: LocalCluster, folder: Path, settings: RunConfig, fault: Any, **options: Any) -> None:
    make = partial(FaultyTrainer, settings, folder.parent, fault)
    executor = RayExecutor(make, address=cluster.address, **options)
    try:
        tournament(settings, folder, executor=executor, resume=(folder / "config.json").exists()).run()
    finally:
        executor.close()


def equal(folder: Path) -> dict[str, Any]:
    """One shard. Ray's control process (GCS) is killed after the last result: the run ends as any other."""
    settings = config(scheduler="generational", batch_pods=0)
    with local_cluster(1) as cluster:
        executor = RayExecutor(
            partial(FaultyTrainer, settings, folder, shard_faults.healthy), address=cluster.address, shards=1
        )
        try:
            tournament(settings, folder / "run", executor=executor).run()
            kill_control(cluster)
        finally:
            executor.close()
    return {}


def faults(folder: Path) -> dict[str, Any]:
    """A worker is killed, a node joins, another one is killed, and the disk of shard 1 is full all the time."""
    log = folder / "run" / "events.jsonl"
    with local_cluster(2) as cluster:
        when(log, lambda events: nodes(events) >= 2, (folder / "go").touch)
        when(log, lambda events: results(events) >= 2, lambda: kill_worker(cluster))
        when(log, lambda events: results(events) >= 4, lambda: cluster.add_node() and None)  # type: ignore[func-returns-value]
        when(log, lambda events: results(events) >= 6, cluster.nodes[1].kill)
        when(log, lambda events: any(event["event"] == "node_lost" for event in events), (folder / "lost").touch)
        run_on(cluster, folder / "run", config(generations=6), shard_faults.full_disk_until_a_node_is_lost)
        dead = cluster.nodes[1].pids
    return {"dead": sorted(dead)}


def driver(folder: Path) -> dict[str, Any]:
    """The driver kills itself after some results; called again, it resumes on another number of shards."""
    log = folder / "run" / "events.jsonl"
    resumed = log.exists()
    with local_cluster(1, cpus=2) as cluster:
        if not resumed:
            when(log, lambda events: results(events) >= 5, lambda: os.kill(os.getpid(), 9))
        run_on(cluster, folder / "run", config(), shard_faults.healthy, shards=1 if resumed else 2)
    return {"resumed": resumed}


def control(folder: Path) -> dict[str, Any]:
    """Ray's control process (GCS) is killed after some results."""
    log = folder / "run" / "events.jsonl"
    ray_shards.CONTROL_SECONDS = 1.0
    with local_cluster(1, cpus=2) as cluster:
        when(log, lambda events: results(events) >= 5, lambda: kill_control(cluster))
        run_on(cluster, folder / "run", config(), shard_faults.hang_from_the_third, shards=2)
    return {}


def kill_control(cluster: LocalCluster) -> None:
    """SIGKILL to the GCS of the head; returns when it is dead."""
    process = next(x for x in cluster.nodes[0].processes if x.is_running() and "gcs_server" in x.name())
    process.kill()
    process.wait()


def main(name: str, folder: Path) -> None:
    scenarios = {"equal": equal, "faults": faults, "driver": driver, "control": control}
    sys.stdout.write(json.dumps(scenarios[name](folder)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
