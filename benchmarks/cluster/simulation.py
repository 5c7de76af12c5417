"""Discrete-event simulation of a tournament on many shards (simpy), from measured times.

    python -m benchmarks cluster-simulation
    python -m benchmarks cluster-simulation --check               # only the measured points that were not used

Shards train groups of pods; one driver decodes results, inserts them into the leaderboard, saves them and generates the
next assignments; snapshots go through a store. See docs/scale.md for the model and its limits.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize
import simpy

from benchmarks.harness.results import FOLDER
from benchmarks.harness.rows import Row, single_row

RESULTS_FILE = FOLDER / "cluster.json"
SHARDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)


@dataclass(frozen=True)
class Costs:
    """Measured times in seconds, sizes in bytes.

    accept, accept_pod: time of the driver for a result and for each of its pods. latency: time of an assignment between
    shard and driver, without training and transfers. agent: bytes of a snapshot. bandwidth: bytes per second of the
    store. restart: time until a lost shard trains again.
    """

    accept: float
    accept_pod: float
    latency: float
    agent: float
    bandwidth: float = 100e6
    restart: float = 5.0


@dataclass(frozen=True)
class Load:
    """shards; seconds of training an assignment (mean, and spread of its logarithm); pods of a group.

    slow: share of shards that take twice as long. losses: number of losses of a shard per second.
    """

    shards: int
    train: float
    spread: float = 0.0
    pods: int = 1
    slow: float = 0.0
    losses: float = 0.0


@dataclass
class Outcome:
    """Results per second, share of time that shards train, that the driver and the store are busy, bytes per second."""

    results: float
    busy: float
    driver: float
    store: float
    traffic: float


def simulate(costs: Costs, load: Load, scheduler: str, rounds: int, seed: int = 0) -> Outcome:
    """Simulate shards x rounds assignments."""
    env = simpy.Environment()
    rng = np.random.default_rng(seed)
    driver = simpy.Resource(env, 1)
    store = simpy.Resource(env, 1)
    usage = {"driver": 0.0, "store": 0.0, "train": 0.0, "bytes": 0.0}
    left = [load.shards * rounds]
    pod_count = [0]
    slow = rng.permutation(load.shards) < load.slow * load.shards
    bytes_each = costs.agent * load.pods

    def serve(resource: simpy.Resource, seconds: float, name: str) -> Generator[Any, Any, None]:
        with resource.request() as request:
            yield request
            usage[name] += seconds
            yield env.timeout(seconds)

    def transfer() -> Generator[Any, Any, None]:
        usage["bytes"] += bytes_each
        yield from serve(store, bytes_each / costs.bandwidth, "store")

    def assignment(shard: int) -> Generator[Any, Any, None]:
        """One assignment until the driver has accepted its result; a lost shard begins again."""
        yield env.timeout(costs.latency / 2)
        while True:
            yield from transfer()  # parents
            seconds = load.train * float(np.exp(rng.normal(0, load.spread) - load.spread**2 / 2)) * (1 + slow[shard])
            loss_time = float(rng.exponential(1 / load.losses)) if load.losses else np.inf
            usage["train"] += min(seconds, loss_time)
            if loss_time >= seconds:
                yield env.timeout(seconds)
                break
            yield env.timeout(loss_time + costs.restart)
        yield from transfer()  # results
        yield env.timeout(costs.latency / 2)
        yield from serve(driver, costs.accept + costs.accept_pod * load.pods, "driver")
        pod_count[0] += load.pods

    def asynchronous(shard: int) -> Generator[Any, Any, None]:
        while left[0] > 0:
            left[0] -= 1
            yield env.process(assignment(shard))

    def generational() -> Generator[Any, Any, None]:
        for _ in range(rounds):
            yield env.all_of([env.process(assignment(shard)) for shard in range(load.shards)])

    if scheduler == "asynchronous":
        for shard in range(load.shards):
            env.process(asynchronous(shard))
    else:
        env.process(generational())
    env.run()
    span = float(env.now)
    return Outcome(
        pod_count[0] / span,
        usage["train"] / (load.shards * span),
        usage["driver"] / span,
        usage["store"] / span,
        usage["bytes"] / span,
    )


def sweep(costs: Costs, load: Load, shards: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Rows of both schedulers, with and without stragglers and losses."""
    cases: dict[str, dict[str, Any]] = {
        "undisturbed": {},
        "stragglers": {"slow": 0.25, "spread": 0.3},
        "losses": {"losses": 1 / 3600},
    }
    rows = []
    for count in shards:
        for case, changes in cases.items():
            for scheduler in ("asynchronous", "generational"):
                case_load = dataclasses.replace(load, shards=count, **changes)
                outcome = simulate(costs, case_load, scheduler, rounds)
                rows.append({"shards": count, "case": case, "scheduler": scheduler, **dataclasses.asdict(outcome)})
    return rows


def check(costs: Costs, points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Measured throughputs of runs whose pods wait, beside simulated ones."""
    rows = []
    for point in points:
        load = Load(point["shards"], point["train"], 0.0, point["pods"], point.get("slow", 0.0))
        throughput = simulate(costs, load, point["scheduler"], point["rounds"]).results
        error = throughput / point["results"] - 1
        rows.append({**point, "simulated": throughput, "error": error})
    return rows


def calibrate(points: Sequence[dict[str, Any]], agent: float) -> Costs:
    """Costs with which simulated throughputs come closest to measured ones (least squares of relative errors).

    agent: bytes of a snapshot.
    """

    def costs(x: np.ndarray) -> Costs:
        accept, accept_pod, latency = map(float, x)
        return Costs(accept, accept_pod, latency, agent)

    def errors(x: np.ndarray) -> list[float]:
        return [row["error"] for row in check(costs(x), points)]

    start = [1e-3, 1e-3, 1e-2]
    upper = [1.0, 1.0, 1.0]
    solution = scipy.optimize.least_squares(
        errors, start, bounds=([0.0] * 3, upper), x_scale=start, diff_step=[1e-3] * 3
    )
    return costs(solution.x)


@dataclass(frozen=True)
class SimulationSettings:
    """Settings of `cluster-simulation`.

    check: compare with measured points only. train: seconds of training an assignment. pods: number of pods of a group.
    rounds: assignments per shard.
    """

    check: bool = False
    train: float = 60.0
    pods: int = 8
    rounds: int = 20


def simulation_rows(settings: SimulationSettings) -> list[Row]:
    """Pods scored per second: simulated beside measured, then of every number of shards."""
    measurements = json.loads(RESULTS_FILE.read_text())["waiting"]
    costs = Costs(**measurements["costs"])
    rows = [
        single_row(f"check {point['shards']} {point['scheduler']}", point["simulated"], "pods/s", **point)
        for point in check(costs, measurements["points"])
    ]
    if settings.check:
        return rows
    points = sweep(costs, Load(1, settings.train, pods=settings.pods), SHARDS, settings.rounds)
    for point in points:
        name = f"{point['shards']} shards, {point['case']}, {point['scheduler']}"
        rows.append(single_row(name, point["results"], "pods/s", **point))
    return rows
