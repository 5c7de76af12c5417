"""`make cluster-demo`: a tournament on a two-node Ray cluster on loopback, one node of which is killed in the middle.

python -m finrl_pod_app.cli.cluster_demo [--json] [--out DIR] [--seed N]
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from finrl_pod.errors import FinrlPodError, RunError
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.event_log import read_events
from finrl_pod_app.cli.options import print_json, run_folder
from finrl_pod_app.report.columns import number
from finrl_pod_app.report.records import RunReport
from finrl_pod_app.setup.output_folder import RUN, locked_folder
from finrl_pod_app.setup.presets import PRESETS, config_text, write_config
from finrl_pod_app.training.engines import EngineOptions
from finrl_pod_app.training.ray_nodes import RayNode, local_cluster
from finrl_pod_app.training.tournaments import run_tournament

LOOK_SECONDS = 0.05
SENTENCES = {
    "node_joined": "node {node:.8} joined (process {pid})",
    "node_lost": "node {node:.8} was lost",
    "restarted": "assignment {assignment} of slot {slot} was started again",
}


def demo_config(seed: int) -> RunConfig:
    """The quick preset as 18 small assignments, trained without a barrier."""
    quick = PRESETS["quick"]
    tournament = dataclasses.replace(
        quick.tournament, pods=6, generations=3, samples_per_generation=10_000, batch_pods=1, scheduler="asynchronous"
    )
    return dataclasses.replace(quick, seed=seed, threads=1, tournament=tournament)


def kill_while_training(log: Path, node: RayNode, stop: threading.Event, killed: threading.Event) -> None:
    """Kill a node once it has returned a result and trains again, according to the event log."""
    while not stop.wait(LOOK_SECONDS):
        events = read_events(log) if log.exists() else []
        pids = node.pids
        node_ids = {event["node"] for event in events if event["event"] == "node_joined" and event["pid"] in pids}
        results = [i for i, event in enumerate(events) if event["event"] == "result" and event["node"] in node_ids]
        if results and any(event["event"] == "assigned" for event in events[results[0] + 1 :]):
            node.kill()
            killed.set()
            return


def run_demo(out: Path, seed: int) -> RunReport:
    """Run the demo; returns the report. Leaves config.toml and events.jsonl in `out` besides the files of the run."""
    config = demo_config(seed)
    with locked_folder(out, RUN):
        write_config(config_text(config), out / "config.toml")
    stop = threading.Event()
    killed = threading.Event()
    with local_cluster(nodes=2) as cluster:
        arguments = (out / "events.jsonl", cluster.nodes[1], stop, killed)
        killer = threading.Thread(target=kill_while_training, args=arguments, daemon=True)
        killer.start()
        try:
            report = run_tournament(
                config, out, device="cpu", engine=EngineOptions("ray", shards=2, address=cluster.address)
            )
        finally:
            stop.set()
            killer.join()
        if not killed.is_set():
            cluster.nodes[1].check()
            raise RunError("the second node gave no result in time to be killed; run the demo again")
    assert isinstance(report, RunReport)  # the demo runs on a market
    return report


def summary(report: RunReport, events: Sequence[Mapping[str, Any]]) -> str:
    """What happened, for a person."""
    counts = Counter(event["event"] for event in events)
    lines = [
        f"{event['time']:6.1f} s  {SENTENCES[event['event']].format(**event)}"
        for event in events
        if event["event"] in SENTENCES
    ]
    lines += [f"{counts['assigned']} assignments, {counts['result']} results; leaderboard:"]
    for row in report.leaderboard:
        score = number(row.score, 3)
        lines.append(f"  {row.id}  slot {row.slot}  assignment {row.assignment}  score {score}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Parse arguments, run, print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="cluster-demo", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--out", type=Path, help="output folder; default: a new folder runs/cluster-demo-TIME")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    out = run_folder(options.out, Path("cluster-demo"), resume=False)
    try:
        report = run_demo(out, options.seed)
    except FinrlPodError as error:
        typer.echo(f"cluster-demo: {error}", err=True)
        return error.exit_code
    if options.json:
        print_json(report.to_dict())
    else:
        typer.echo(summary(report, read_events(out / "events.jsonl")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
