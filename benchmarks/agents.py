"""Study of agents: what the solved policy adds to its base, what RL adds to it, and how often the gate errs.

    python benchmarks/agents.py                   # all rows that are missing
    python benchmarks/agents.py --only worlds     # a part
    python benchmarks/agents.py --summary         # agents.json and the tables of docs/results.md, from existing rows

Rows are appended to agents.jsonl as they are finished; daily returns, from which pooled intervals are computed, are
kept in .agents/. Both are read again by the next call, and agents.json is written from them. agents-protocol-1.md (real
prices) and agents-protocol-2.md (RL and simulated worlds) fix what is measured; each row has the SHA-256 of its
protocol. Differences are to the same mandate at tilt 0 with the same trading.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import agent_cells
import agent_statistics as statistics
import agent_summary
import agent_worlds
import results_file
import torch

HERE = Path(__file__).parent
ROWS, SUMMARY = HERE / "agents.jsonl", HERE / "agents.json"
PRICES, WORLDS = "agents-protocol-1.md", "agents-protocol-2.md"
PARTS = ("cells", "worlds", "placebo", "rl", "no_edge", "null", "planted", "stress")


class Task(NamedTuple):
    """Rows that are measured together. key: identifies them in the results file."""

    part: str
    key: str
    protocol: str
    measure: Callable[[dict[str, Any]], list[dict[str, Any]]]


def tasks() -> Iterator[Task]:
    """All tasks of the study, in the order in which they are run."""
    cells = [*agent_cells.cells()]
    folds = [cell for cell in cells if cell.universe is None]
    for seed in agent_worlds.SEEDS:
        for kind in agent_worlds.KINDS:
            yield Task("worlds", f"{kind}/{seed}", WORLDS, lambda s, k=kind, i=seed: [agent_worlds.world_row(k, i, s)])
    for cell in cells:
        yield Task("cells", _name(cell), PRICES, lambda s, c=cell: agent_cells.linear_rows(c, s))
    for cell in folds:
        yield Task("placebo", _name(cell), PRICES, lambda s, c=cell: [agent_cells.placebo_row(c, s)])
    for seed in range(agent_worlds.NO_EDGE_RL_WORLDS):
        yield Task("no_edge", f"rl/{seed}", WORLDS, lambda s, i=seed: [agent_worlds.no_edge_row(i, s, rl=True)])
    for agent in agent_cells.RL:
        for cell in folds:
            yield Task("rl", f"{agent}/{_name(cell)}", WORLDS, lambda s, a=agent, c=cell: agent_cells.rl_rows(a, c, s))
    for world in agent_worlds.NULL_WORLDS:
        yield Task("null", world, PRICES, lambda s, w=world: [agent_worlds.null_row(w, s)])
    for seed in range(agent_worlds.PLANTED_WORLDS):
        yield Task("planted", str(seed), PRICES, lambda s, i=seed: [agent_worlds.planted_row(i, s)])
    for seed in range(agent_worlds.NO_EDGE_WORLDS):
        yield Task("no_edge", str(seed), PRICES, lambda s, i=seed: [agent_worlds.no_edge_row(i, s)])
    for cell in folds:
        yield Task("stress", _name(cell), PRICES, lambda s, c=cell: agent_cells.stress_rows(c, s))
    for cell in cells[len(folds) :]:
        yield Task("rl", f"analytic/{_name(cell)}", WORLDS, lambda s, c=cell: agent_cells.rl_rows("analytic", c, s))


def _name(cell: agent_cells.Cell) -> str:
    universe = "" if cell.universe is None else f"-{cell.universe}"
    return f"{cell.market}{universe}/{cell.fold}"


def _is_done(task: Task) -> bool:
    """Whether the rows of a task are there, perhaps from another process."""
    return any((row["config"].get("part"), row["config"].get("key")) == task[:2] for row in results_file.read(ROWS))


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
        rows = task.measure({"part": task.part, "key": task.key, "protocol": statistics.protocol(task.protocol)})
        for row in rows:
            row["config"]["seconds"] = round(time.perf_counter() - began, 1)
        results_file.append(ROWS, *rows)
        sys.stderr.write(f"{task.part} {task.key}: {rows[0]['value']:+.4f} in {time.perf_counter() - began:.0f} s\n")
    if options.summary or (options.only == list(PARTS) and not options.match):
        _write_summary()
    return 0


def _write_summary() -> None:
    """Write agents.json and print the tables."""
    earlier = json.loads(SUMMARY.read_text())["rows"] if SUMMARY.exists() else []
    rows = agent_summary.summary(results_file.read(ROWS), earlier)
    temporary = SUMMARY.with_suffix(".new")
    temporary.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    temporary.replace(SUMMARY)
    sys.stdout.write(agent_summary.tables(rows))


if __name__ == "__main__":
    sys.exit(main())
