"""Error rates of the promotion gate: rows of stored results (calibration and trained worlds), and new runs.

Results of trained worlds are JSON lines: the first is the configs, each further line one market. An interrupted study
continues with the markets that are missing; several processes may share a file.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from finrl_pod.errors import ConfigError, RunError
from finrl_pod.evaluate.intervals import binomial_interval
from finrl_pod_app.bench.edges import STRENGTHS
from finrl_pod_app.bench.gate_calibration import calibrate, calibration_rows
from finrl_pod_app.bench.gate_worlds import CONFIGS, WorldKey, run_world, settings
from finrl_pod_app.bench.rows import Row
from finrl_pod_app.bench.training import log_progress

CONFIDENCE_LEVEL = 0.95
RESULTS_FILE = Path("benchmarks/gate.jsonl")
CALIBRATION_FILE = Path("benchmarks/gate_calibration.json")
ROW_NAMES = {
    ("default", 0.0): "false_promotions_default",
    ("unbounded", 0.0): "false_promotions_unbounded",
    ("default", 1.0): "power_ir1",
    ("default", 2.0): "power_ir2",
}


@dataclass(frozen=True)
class GateStudy:
    """What to run before the rows are read. worlds: range of market indices, such as "0-199"."""

    run: bool = False
    calibrate: bool = False
    kinds: Sequence[str] = ()
    edges: Sequence[float] = ()
    worlds: str = "0-0"
    results: Path = RESULTS_FILE
    calibration: Path = CALIBRATION_FILE


def gate_rows(study: GateStudy, device: torch.device) -> list[Row]:
    """Run what the study asks for and is not stored yet; return the rows of all stored results.

    Raises ConfigError for an unknown edge or kind, an invalid range of worlds, and no stored results.
    """
    kinds, edges = study.kinds or tuple(CONFIGS), study.edges or tuple(STRENGTHS)
    for edge in edges:
        if edge not in STRENGTHS:
            raise ConfigError(f"--edge must be one of {', '.join(map(str, STRENGTHS))}, got {edge:g}")
    for kind in kinds:
        if kind not in CONFIGS:
            raise ConfigError(f"--kind must be one of {', '.join(CONFIGS)}, got {kind!r}")
    numbers = world_numbers(study.worlds)
    if study.calibrate:
        calibrate(study.calibration)
    if study.run:
        run_worlds(
            (WorldKey(kind, edge, n) for n in numbers for edge in edges for kind in kinds), study.results, device
        )
    rows = [_row(*group) for group in _grouped(read(study.results))] + calibration_rows(study.calibration)
    if not rows:
        raise ConfigError(
            f"{study.results} holds no results of the gate; add --run or --calibrate, or name another --results file"
        )
    return rows


def world_numbers(text: str) -> range:
    """Market indices of a range such as "0-199", both ends included. Raises ConfigError."""
    first, _, last = text.partition("-")
    if not (first.isdigit() and (last or first).isdigit() and int(first) <= int(last or first)):
        raise ConfigError(f'--worlds must be a range such as 0-199, got "{text}"')
    return range(int(first), int(last or first) + 1)


def run_worlds(keys: Iterable[WorldKey], path: Path, device: torch.device) -> None:
    """Run the worlds that the file lacks and append each when it is finished."""
    done = {WorldKey(r["kind"], r["edge"], r["world"]) for r in read(path)}
    if not path.exists():
        append(path, {"config": settings()})
    for key in keys:
        if key in done:
            continue
        record = run_world(key, device)
        append(path, record)
        failed = [name for name, rule in record["rules"].items() if not rule["passed"]]
        outcome = "promoted" if record["promoted"] else f"refused by {', '.join(failed)}"
        log_progress(f"edge {key.edge:g}, {key.kind}, world {key.world}: {outcome} in {record['seconds']:.0f} s")


# ---------------------------------------------------------------------- stored results


def read(path: Path) -> list[dict[str, Any]]:
    """Read the records of a file; empty if it does not exist.

    Raises RunError for an invalid line, and for another config: rates of two configs must not be mixed.
    """
    if not path.exists():
        return []
    records, has_header = [], False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
            header = record.get("config")
            if header is None and (not has_header or record["kind"] not in CONFIGS):
                raise KeyError  # a market before the configs, or an unknown kind of agent
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RunError(f"{path}, line {number} is not a valid record: remove the line and run again") from None
        if header is None:
            records.append(record)
            continue
        has_header = True
        other = changed(header, settings())
        if other:
            raise RunError(f"{path} was made with another config or gate ({other}): start a new file with --results")
    return records


def changed(then: Any, now: Any, where: str = "") -> str:
    """Return the name of the first setting that differs, or "" if none does.

    Settings that were added since are ignored: their defaults keep the earlier behaviour.
    """
    if not isinstance(then, dict) or not isinstance(now, dict):
        return "" if then == now else where or "the config"
    for name, value in then.items():
        difference = changed(value, now.get(name), f"{where}.{name}" if where else name)
        if difference:
            return difference
    return ""


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Append one line atomically; several processes may write to the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(record, sort_keys=True, allow_nan=False) + "\n").encode()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, line)
        os.fsync(handle)
    finally:
        os.close(handle)


def _grouped(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, float, list[Mapping[str, Any]]]]:
    groups: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["kind"], record["edge"]), []).append(record)
    return [(*key, groups[key]) for key in sorted(groups)]


def _row(kind: str, edge: float, records: Sequence[Mapping[str, Any]]) -> Row:
    """The promoted share of one kind of agent at one edge, with its exact interval."""
    promoted = sum(record["promoted"] for record in records)
    low, high = binomial_interval(promoted, len(records), CONFIDENCE_LEVEL)
    names = dict.fromkeys(name for record in records for name in record["rules"])
    outcomes = {name: [r["rules"][name]["passed"] for r in records if name in r["rules"]] for name in names}
    config: dict[str, Any] = {
        "kind": kind,
        "edge": edge,
        "worlds": len(records),
        "promoted": promoted,
        "interval": f"{CONFIDENCE_LEVEL:.0%} Clopper-Pearson",
        "rules": {name: {"passed": sum(passed), "of": len(passed)} for name, passed in outcomes.items()},
        "seconds": round(sum(record["seconds"] for record in records), 1),
        "gate": settings()[kind]["gate"],
    }
    reached = [ratio for record in records if (ratio := record["information_ratio_reached"]) is not None]
    if reached:
        config["information_ratio_reached"] = statistics.mean(reached)
        config["information_ratios"] = sorted(round(ratio, 3) for ratio in reached)
    name = ROW_NAMES.get(
        (kind, edge), f"{'power_ir' if edge else 'false_promotions'}{f'{edge:g}' if edge else ''}_{kind}"
    )
    return Row(name, promoted / len(records), low, high, "share promoted", config)
