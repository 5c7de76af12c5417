"""Study of agents: what the solved policy adds to its base, what RL adds to it, and how often the gate errs.

    python -m benchmarks agents                   # all rows that are missing
    python -m benchmarks agents --only worlds     # a part
    python -m benchmarks agents --summary         # agents.json and the tables of docs/results.md, from existing rows

Rows are appended to agents.jsonl as they are finished; daily returns, from which pooled intervals are computed, are
kept in .agents/. Both are read again by the next call, and agents.json is written from them. agents-protocol-1.md (real
prices) and agents-protocol-2.md (RL and simulated worlds) fix what is measured; each row has the SHA-256 of its
protocol. Differences are to the same mandate at tilt 0 with the same trading.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import torch

from benchmarks.agents import cells, gate, statistics, summary, worlds
from benchmarks.harness.results import FOLDER, Row, append, read

ROWS, SUMMARY = FOLDER / "agents.jsonl", FOLDER / "agents.json"
PRICES, WORLDS = "agents-protocol-1.md", "agents-protocol-2.md"
GATE = "agents-protocol-gate.md"
PARTS = ("cells", "worlds", "placebo", "rl", "no_edge", "null", "planted", "stress", "gate")


class Task(NamedTuple):
    """Rows that are measured together. key: identifies them in the results file."""

    part: str
    key: str
    protocol: str
    measure: Callable[[dict[str, Any]], Row | list[Row]]


def tasks() -> Iterator[Task]:
    """All tasks of the study, in the order in which they are run."""
    every_cell = [*cells.cells()]
    folds = [cell for cell in every_cell if cell.universe is None]
    for seed in worlds.SEEDS:
        for kind in worlds.KINDS:
            yield Task("worlds", f"{kind}/{seed}", WORLDS, partial(worlds.world_row, kind, seed))
    for cell in every_cell:
        yield Task("cells", _name(cell), PRICES, partial(cells.linear_rows, cell))
    for cell in folds:
        yield Task("placebo", _name(cell), PRICES, partial(cells.placebo_row, cell))
    for seed in range(worlds.NO_EDGE_RL_WORLDS):
        yield Task("no_edge", f"rl/{seed}", WORLDS, partial(worlds.no_edge_row, seed, rl=True))
    for agent in cells.RL:
        for cell in folds:
            yield Task("rl", f"{agent}/{_name(cell)}", WORLDS, partial(cells.rl_rows, agent, cell))
    for world in worlds.NULL_WORLDS:
        yield Task("null", world, PRICES, partial(worlds.null_row, world))
    for seed in range(worlds.PLANTED_WORLDS):
        yield Task("planted", str(seed), PRICES, partial(worlds.planted_row, seed))
    for seed in range(worlds.NO_EDGE_WORLDS):
        yield Task("no_edge", str(seed), PRICES, partial(worlds.no_edge_row, seed))
    for cell in folds:
        yield Task("stress", _name(cell), PRICES, partial(cells.stress_rows, cell))
    for cell in every_cell[len(folds) :]:
        yield Task("rl", f"analytic/{_name(cell)}", WORLDS, partial(cells.rl_rows, "analytic", cell))
    for world in gate.WORLDS:
        yield Task("gate", f"null_world/{world}", GATE, partial(gate.null_world_row, world))
    for ratio, years in itertools.product(gate.RATIOS, gate.YEARS):
        yield Task("gate", f"power/{ratio:g}/{years}", GATE, partial(gate.power_row, ratio, years))


def _name(cell: cells.Cell) -> str:
    universe = "" if cell.universe is None else f"-{cell.universe}"
    return f"{cell.market}{universe}/{cell.fold}"


def _is_done(task: Task) -> bool:
    """Whether the rows of a task are there, perhaps from another process."""
    label = _label(task.part)
    return any((row["config"].get(label), row["config"].get("key")) == task[:2] for row in read(ROWS))


def _label(part: str) -> str:
    """Key of the part's name in the config of its rows; the gate's rows use "part" for the part of the prices."""
    return "part_of" if part == "gate" else "part"


def main() -> int:
    """Run the tasks whose rows are missing, then write the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--match", default="", help="only tasks whose key begins so, such as sample/2001-06")
    parser.add_argument("--summary", action="store_true", help="run nothing")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    for task in tasks():
        wanted = task.part in options.only and task.key.startswith(options.match)
        if options.summary or not wanted or _is_done(task):
            continue
        began = time.perf_counter()
        settings = {_label(task.part): task.part, "key": task.key, "protocol": statistics.protocol(task.protocol)}
        measured = task.measure(settings)
        rows = measured if isinstance(measured, list) else [measured]
        for row in rows:
            row["config"]["seconds"] = round(time.perf_counter() - began, 1)
        append(ROWS, *rows)
        sys.stderr.write(f"{task.part} {task.key}: {rows[0]['value']:+.4f} in {time.perf_counter() - began:.0f} s\n")
    if options.summary or (options.only == list(PARTS) and not options.match):
        _write_summary()
    return 0


def _write_summary() -> None:
    """Write agents.json and print the tables."""
    earlier = json.loads(SUMMARY.read_text())["rows"] if SUMMARY.exists() else []
    rows = summary.summary(read(ROWS), earlier)
    temporary = SUMMARY.with_suffix(".new")
    temporary.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    temporary.replace(SUMMARY)
    sys.stdout.write(summary.tables(rows))
