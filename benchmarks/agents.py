"""Study of agents: what they add to their base, in walk-forward folds of two markets and on simulated worlds.

    python benchmarks/agents.py                          # all rows that are missing, a process per core
    python benchmarks/agents.py --only default ppo       # of these agents
    python benchmarks/agents.py --part final             # the last years, once the default is chosen
    python benchmarks/agents.py --cell us74/2007-12/0 --json   # one cell of the default, measured again

Rows are appended to agents.jsonl as they are finished; daily returns, from which pooled intervals are computed, are
kept in .agents/. Both are read again by the next call, and agents.json is written from them. Differences are to the
same mandate at tilt 0 with the same trading (`BasePortfolio`); agents without a mandate use the default's.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: a process per core

import agent_cells
import agent_stress
import agent_worlds
import numpy as np
import results_file
import torch

HERE = Path(__file__).parent
ROWS, SUMMARY = HERE / "agents.jsonl", HERE / "agents.json"
SEEDS = (0, 1, 2)
WORLDS, PLANTED, PLACEBOS = 40, 5, 100
FINAL_AGENTS = ("default", "unbounded")
PARTS = ("fold", "no_edge", "planted", "stress", "placebo", "final")


class Task(NamedTuple):
    """A training of the study. part: one of `PARTS`. cell: market, fold and seed, or only a seed."""

    part: str
    agent: str
    cell: tuple[Any, ...]


def tasks(parts: list[str], agents: list[str], seeds: int) -> Iterator[Task]:
    """All trainings of the study, in the order in which they are run."""
    for part in parts:
        if part in ("fold", "final"):
            others = agent_cells.same_as_default()
            for agent in [name for name in agents if name not in others and (part == "fold" or name in FINAL_AGENTS)]:
                for market, folds in agent_cells.FOLDS.items():
                    for fold in folds if part == "fold" else [agent_cells.FINAL[market]]:
                        yield from (Task(part, agent, (market, fold, seed)) for seed in SEEDS[:seeds])
        elif part == "stress":
            yield from (
                Task(part, "default", (market, f, 0)) for market, folds in agent_cells.FOLDS.items() for f in folds
            )
        else:
            count = {"no_edge": WORLDS, "planted": PLANTED, "placebo": PLACEBOS}[part]
            yield from (Task(part, "default", (seed,)) for seed in range(count))


def done(task: Task, rows: list[dict[str, Any]]) -> bool:
    """Whether the rows of a training are there."""
    names = {"no_edge": "no_edge_difference", "planted": "planted_capture", "placebo": "placebo"}
    for row in rows:
        config = row["config"]
        if task.part in names:
            if row["name"] == names[task.part] and config["seed"] == task.cell[0]:
                return True
        elif (
            row["name"] == ("stress_difference" if task.part == "stress" else "sharpe_difference")
            and config["agent"] == task.agent
            and (config["market"], config["fold"], config["seed"]) == task.cell
        ):
            return True
    return False


def run(task: Task) -> list[dict[str, Any]]:
    """Rows of a training."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    began = time.perf_counter()
    if task.part == "no_edge":
        rows = [agent_worlds.no_edge(*task.cell)]
    elif task.part == "planted":
        rows = [agent_worlds.planted_capture(*task.cell)]
    elif task.part == "placebo":
        rows = [agent_worlds.placebo(*task.cell)]
    elif task.part == "stress":
        rows = agent_stress.stress(*task.cell)
    else:
        rows = agent_cells.measure_cell(task.agent, agent_cells.Cell(*task.cell))
    for row in rows:
        row["config"]["seconds"] = round(time.perf_counter() - began, 1)
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All rows, with pooled differences and the 95th percentile of the placebos."""
    kept = [row for row in rows if row["name"] != "placebo"]
    agents = dict.fromkeys(row["config"]["agent"] for row in rows if row["name"] == "sharpe_difference")
    for agent in agents:
        for part in ("fold", "final"):
            estimate = agent_cells.pooled(agent, rows, part)
            if estimate is not None:
                name = "pooled_sharpe_difference" if part == "fold" else "final_sharpe_difference"
                kept.append(agent_cells.row(name, estimate, {"agent": agent, "part": part}))
    placebos = [row["value"] for row in rows if row["name"] == "placebo"]
    if placebos:
        value = float(np.quantile(placebos, 0.95))
        config = {"placebos": len(placebos), "mean": float(np.mean(placebos)), "agent": "default"}
        kept.append({"name": "placebo_95", "value": value, "low": value, "high": value, "unit": "", "config": config})
    return kept


def write_summary(rows: list[dict[str, Any]]) -> None:
    """Write agents.json. Pooled rows without the cells' returns are kept as they are."""
    found = summary(rows)
    if SUMMARY.exists():
        present = {(row["name"], row["config"].get("agent"), row["config"].get("part")) for row in found}
        for row in json.loads(SUMMARY.read_text())["rows"]:
            key = (row["name"], row["config"].get("agent"), row["config"].get("part"))
            if row["name"].startswith(("pooled_", "final_")) and key not in present:
                found.append(row)
    temporary = SUMMARY.with_suffix(".new")
    temporary.write_text(json.dumps({"rows": found}, indent=1) + "\n")
    temporary.replace(SUMMARY)


def main() -> int:
    """Run the study or one cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cell", metavar="MARKET/FOLD/SEED", help="measure one cell of the default again")
    parser.add_argument("--json", action="store_true", help="print rows as JSON (with --cell)")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS[:-1]))
    parser.add_argument("--only", nargs="+", choices=list(agent_cells.AGENTS), default=list(agent_cells.AGENTS))
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="of each cell (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    given = parser.parse_args()
    if given.cell:
        market, fold, seed = given.cell.split("/")
        rows = run(Task("fold", "default", (market, fold, int(seed))))
        rows = [row for row in rows if row["name"] == "sharpe_difference" and row["config"]["agent"] == "default"]
        text = json.dumps({"rows": rows}) if given.json else f"{given.cell}: {rows[0]['value']:+.3f}"
        sys.stdout.write(text + "\n")
        return 0
    rows = results_file.read(ROWS)
    missing = [task for task in tasks(given.part, given.only, given.seeds) if not done(task, rows)]
    with multiprocessing.get_context("spawn").Pool(given.jobs, maxtasksperchild=8) as pool:
        for i, found in enumerate(pool.imap_unordered(run, missing)):
            for row in found:
                results_file.append(ROWS, row)
            first = found[0]
            sys.stderr.write(
                f"{i + 1} of {len(missing)}: {first['name']} {first['value']:+.3f} {first['config'].get('agent')} "
                f"{first['config'].get('market', '')} {first['config'].get('fold', '')} {first['config']['seed']} "
                f"in {first['config']['seconds']} s\n"
            )
    write_summary(results_file.read(ROWS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
