"""Study of agents: what the solved policy adds to its base, what RL adds to it, and how often the gate errs.

    python -m benchmarks agents                   # all rows that are missing
    python -m benchmarks agents --only worlds     # a part
    python -m benchmarks agents --summary         # agents.json and the tables of docs/results.md, from existing rows

Rows are appended to agents.jsonl as they are finished; daily returns, from which pooled intervals are computed, are
stored in .agents/. The next call reads both and writes agents.json from them. agents-protocol-1.md (real prices),
agents-protocol-2.md (RL and simulated worlds) and agents-protocol-gate.md fix what is measured; each row has the
SHA-256 of its protocol. Differences are to the same mandate at tilt 0 with the same trading.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

from benchmarks.agents import cells, gate, statistics, summary, worlds
from benchmarks.harness.rows import FOLDER, Record, Row, append, log_progress, read
from finrl_pod.files import write_text

ROWS = FOLDER / "agents.jsonl"
SUMMARY = FOLDER / "agents.json"
PRICES = "agents-protocol-1.md"
WORLDS = "agents-protocol-2.md"
GATE = "agents-protocol-gate.md"
Part = Literal["cells", "worlds", "placebo", "rl", "no_edge", "null", "planted", "stress", "gate"]


@dataclass(frozen=True)
class StudySettings:
    """Settings of `agents`.

    only: parts; empty for all. match: start of the keys of tasks, such as sample/2001-06. summary: run nothing.
    """

    only: tuple[Part, ...] = ()
    match: str = ""
    summary: bool = False


class Task(NamedTuple):
    """Rows that are measured together. key: identifies them in the results file."""

    part: Part
    key: str
    protocol: str
    measure: Callable[[dict[str, Any]], Record | list[Record]]


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


def _label(part: Part) -> str:
    """Config key of the part name. Rows of the gate use "part" for the part of the prices."""
    return "part_of" if part == "gate" else "part"


def study_rows(settings: StudySettings) -> list[Row]:
    """Run the tasks whose rows are missing; return the rows of the selected parts and the pooled ones."""
    selected_parts = settings.only or get_args(Part)
    for task in [] if settings.summary else tasks():
        label = _label(task.part)
        is_selected = task.part in selected_parts and task.key.startswith(settings.match)
        # Read again for each task: another process may have appended its rows.
        if not is_selected or any((x["config"].get(label), x["config"].get("key")) == task[:2] for x in read(ROWS)):
            continue
        start = time.perf_counter()
        result = task.measure({label: task.part, "key": task.key, "protocol": statistics.protocol(task.protocol)})
        records = result if isinstance(result, list) else [result]
        for record in records:
            record["config"]["seconds"] = round(time.perf_counter() - start, 1)
        append(ROWS, *records)
        log_progress(f"{task.part} {task.key}: {records[0]['value']:+.4f} in {time.perf_counter() - start:.0f} s")
    if settings.summary or not (settings.only or settings.match):
        return [Row(**record) for record in _write_summary()]
    return [Row(**r) for r in read(ROWS) if {r["config"].get("part"), r["config"].get("part_of")} & set(selected_parts)]


def _write_summary() -> list[Record]:
    """Write agents.json and print the tables to standard error."""
    previous_records = json.loads(SUMMARY.read_text())["rows"] if SUMMARY.exists() else []
    records = summary.summary(read(ROWS), previous_records)
    write_text(SUMMARY, json.dumps({"rows": records}, indent=1) + "\n")
    log_progress(summary.tables(records))
    return records
