"""Discrete-event simulation of a tournament on many shards (simpy), from measured times.

    python -m benchmarks cluster-simulation                       # table and plot from benchmarks/cluster.json
    python -m benchmarks cluster-simulation --check               # against the measured points that were not used

Shards train groups of pods; one driver decodes results, inserts them into the leaderboard, saves them and generates the
next assignments; snapshots go through a store. See docs/scale.md for the model and its limits.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize
import simpy

from benchmarks.harness.results import FOLDER, ROOT

RESULTS_FILE = FOLDER / "cluster.json"
PLOT = ROOT / "docs" / "images" / "scale.svg"
SHARDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)


@dataclass(frozen=True)
class Costs:
    """Measured times in seconds, sizes in bytes.

    accept: the driver's time for a result, and for each pod of it. latency: of an assignment between shard and driver,
    beside training and transfers. agent: bytes of a snapshot. bandwidth: of the store, in bytes per second. restart:
    until a lost shard trains again.
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

    slow: share of shards that take twice as long. losses: of each shard, per second.
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
    env, rng = simpy.Environment(), np.random.default_rng(seed)
    driver, store = simpy.Resource(env, 1), simpy.Resource(env, 1)
    used = {"driver": 0.0, "store": 0.0, "train": 0.0, "bytes": 0.0}
    left = [load.shards * rounds]
    done = [0]
    slow = rng.permutation(load.shards) < load.slow * load.shards
    bytes_each = costs.agent * load.pods

    def serve(resource: simpy.Resource, seconds: float, name: str) -> Generator[Any, Any, None]:
        with resource.request() as request:
            yield request
            used[name] += seconds
            yield env.timeout(seconds)

    def transfer() -> Generator[Any, Any, None]:
        used["bytes"] += bytes_each
        yield from serve(store, bytes_each / costs.bandwidth, "store")

    def assignment(shard: int) -> Generator[Any, Any, None]:
        """One assignment until the driver has accepted its result; a lost shard begins again."""
        yield env.timeout(costs.latency / 2)
        while True:
            yield from transfer()  # parents
            seconds = load.train * float(np.exp(rng.normal(0, load.spread) - load.spread**2 / 2)) * (1 + slow[shard])
            lost = float(rng.exponential(1 / load.losses)) if load.losses else np.inf
            used["train"] += min(seconds, lost)
            if lost >= seconds:
                yield env.timeout(seconds)
                break
            yield env.timeout(lost + costs.restart)
        yield from transfer()  # results
        yield env.timeout(costs.latency / 2)
        yield from serve(driver, costs.accept + costs.accept_pod * load.pods, "driver")
        done[0] += load.pods

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
        done[0] / span,
        used["train"] / (load.shards * span),
        used["driver"] / span,
        used["store"] / span,
        used["bytes"] / span,
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
                own = dataclasses.replace(load, shards=count, **changes)
                outcome = simulate(costs, own, scheduler, rounds)
                rows.append({"shards": count, "case": case, "scheduler": scheduler, **dataclasses.asdict(outcome)})
    return rows


def check(costs: Costs, measured: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Measured throughputs of runs whose pods wait, beside simulated ones."""
    rows = []
    for point in measured:
        load = Load(point["shards"], point["train"], 0.0, point["pods"], point.get("slow", 0.0))
        simulated = simulate(costs, load, point["scheduler"], point["rounds"]).results
        error = simulated / point["results"] - 1
        rows.append({**point, "simulated": simulated, "error": error})
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

    start, upper = [1e-3, 1e-3, 1e-2], [1.0, 1.0, 1.0]
    found = scipy.optimize.least_squares(errors, start, bounds=([0.0] * 3, upper), x_scale=start, diff_step=[1e-3] * 3)
    return costs(found.x)


def plot(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Throughput and utilisation by number of shards, as SVG."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "scale"
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    for case, colour in (("undisturbed", "C0"), ("stragglers", "C1"), ("losses", "C2")):
        for scheduler, style in (("asynchronous", "-"), ("generational", "--")):
            own = [row for row in rows if row["case"] == case and row["scheduler"] == scheduler]
            shards = [row["shards"] for row in own]
            left.plot(shards, [row["results"] for row in own], style, color=colour, label=f"{case}, {scheduler}")
            right.plot(shards, [row["busy"] for row in own], style, color=colour)
    base = [row for row in rows if row["case"] == "undisturbed" and row["scheduler"] == "asynchronous"]
    right.plot([row["shards"] for row in base], [row["driver"] for row in base], ":", color="black", label="driver")
    right.plot([row["shards"] for row in base], [row["store"] for row in base], "-.", color="grey", label="store")
    left.set(xscale="log", yscale="log", xlabel="shards", ylabel="pods scored per second")
    right.set(xscale="log", xlabel="shards", ylabel="share of time busy", ylim=(0, 1.05))
    left.legend(fontsize=7)
    right.legend(fontsize=7, title="colours: shards, as on the left", title_fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with measured points only")
    parser.add_argument("--train", type=float, default=60.0, help="seconds of training an assignment")
    parser.add_argument("--pods", type=int, default=8, help="pods of a group")
    parser.add_argument("--rounds", type=int, default=20, help="assignments per shard")
    options = parser.parse_args()
    saved = json.loads(RESULTS_FILE.read_text())
    costs = Costs(**saved["waiting"]["costs"])
    for row in check(costs, saved["waiting"]["points"]):
        sys.stdout.write(
            f"{row['shards']} shards {row['scheduler']:<13} measured {row['results']:7.2f}/s simulated "
            f"{row['simulated']:7.2f}/s ({row['error']:+.1%}){'  calibration' if row['calibration'] else ''}\n"
        )
    if options.check:
        return
    rows = sweep(costs, Load(1, options.train, pods=options.pods), SHARDS, options.rounds)
    for row in rows:
        sys.stdout.write(
            f"{row['shards']:5} {row['case']:<12} {row['scheduler']:<13} {row['results']:9.2f} pods/s, "
            f"busy {row['busy']:.2f}, driver {row['driver']:.3f}, store {row['store']:.3f}, "
            f"{row['traffic'] / 1e6:.2f} MB/s\n"
        )
    plot(rows, PLOT)
