"""Benchmark results: rows, the machine, and the results files of studies with one JSON line per training."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from finrl_pod_app.setup.doctor import installed_versions


def describe(device: torch.device) -> dict[str, Any]:
    """Describe the machine: processor, cores, threads, memory, load, device, versions and date, as plain values."""
    return {
        "processor": _processor(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_average": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "versions": installed_versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def cores() -> int:
    """Return the number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


FOLDER = Path(__file__).parents[1]  # contains the protocols and the results files
ROOT = FOLDER.parent
Record = dict[str, Any]
ResultT = TypeVar("ResultT")
MIN_FIXED_POINT = 5e-4  # smaller values are printed in scientific notation
CPU = torch.device("cpu")
COLUMNS = ("name", "value", "low", "high", "unit")


@dataclass(frozen=True)
class Row:
    """A measured number.

    low, high: range or interval of the kind in config["interval"]. config: settings and details of the measurement.
    """

    name: str
    value: float
    low: float
    high: float
    unit: str
    config: Mapping[str, Any]


class Section(NamedTuple):
    """A further part of the result of a benchmark, under its name beside the rows. content: plain values."""

    name: str
    content: Any


def median_row(name: str, values: Sequence[float], unit: str, config: Mapping[str, Any]) -> Row:
    """Return a row with the median and range of repeated runs."""
    return Row(
        name, statistics.median(values), min(values), max(values), unit, {**config, "interval": "range of the runs"}
    )


def single_row(name: str, value: float, unit: str, **config: Any) -> Row:
    return Row(name, value, value, value, unit, config)


def log_progress(line: str) -> None:
    """Print a progress line to standard error; standard output is for the result."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def measure_rates(
    label: str, work: Callable[[], int], runs: int, device: torch.device, *, warm_up: bool = True
) -> list[float]:
    """Return units/s of `runs` calls after a warm-up call. work: returns the number of units that it processed."""
    rates = []
    for run in range(0 if warm_up else 1, runs + 1):
        synchronize(device)
        start = time.perf_counter()
        units = work()
        synchronize(device)
        rates.append(units / (time.perf_counter() - start))
        log_progress(f"{label}: {'warm-up' if run == 0 else f'run {run} of {runs}'}, {rates[-1]:,.0f}/s")
    return rates[1:] if warm_up else rates


def synchronize(device: torch.device) -> None:
    """Wait until a CUDA device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def document(rows: Sequence[Row], machine: Mapping[str, Any], sections: Sequence[Section] = ()) -> dict[str, Any]:
    parts = {section.name: section.content for section in sections}
    return {**parts, "rows": [asdict(row) for row in rows], "machine": dict(machine)}


def as_json(values: Mapping[str, Any]) -> str:
    """Format as sorted, indented JSON. Raises ValueError for NaN."""
    return json.dumps(values, sort_keys=True, indent=2, allow_nan=False) + "\n"


def as_table(rows: Sequence[Row]) -> str:
    cells = [COLUMNS, *((row.name, *map(_short, (row.value, row.low, row.high)), row.unit) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    lines = []
    for line in cells:
        numbers = [line[i].rjust(widths[i]) for i in (1, 2, 3)]
        lines.append("  ".join([line[0].ljust(widths[0]), *numbers, line[4]]).rstrip())
    return "\n".join(lines) + "\n"


def _short(value: float) -> str:
    """Format a number: thousands without decimals, others with three, tiny ones in scientific notation."""
    if 0 < abs(value) < MIN_FIXED_POINT:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3f}"


def current_commit() -> str:
    """Short hash of the checked-out commit; "unknown" outside a checkout."""
    process = subprocess.run(
        ["git", "-C", str(FOLDER), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return process.stdout.strip() or "unknown"


class Job(NamedTuple):
    """A training of a study. key: identifies its record. measure: returns the rest of the record."""

    key: Mapping[str, Any]
    measure: Callable[[], Mapping[str, Any]]


def read(path: Path) -> list[Record]:
    """Read complete lines; an incomplete one (after a kill) is skipped, and its training is repeated."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            log_progress(f"{path}: skipped an incomplete line")
    return records


def append(path: Path, *records: Mapping[str, Any]) -> None:
    """Append lines in one write and sync them to disk; several processes may share the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, "".join(json.dumps(record, allow_nan=False) + "\n" for record in records).encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def run_missing(path: Path, jobs: Iterable[Job]) -> None:
    """Run the jobs whose records are missing and append each record, with its seconds, when it is finished."""
    for job in jobs:
        if any(job.key.items() <= record.items() for record in read(path)):
            continue
        log_progress(f"{time.strftime('%H:%M:%S')} {', '.join(map(str, job.key.values()))}")
        result, seconds = measure_seconds(job.measure)
        append(path, {**job.key, **seconds, **result})


def measure_seconds(work: Callable[[], ResultT]) -> tuple[ResultT, dict[str, float]]:
    """The result of a call, with its `seconds` and `cpu_seconds`."""
    wall_start = time.perf_counter()
    cpu_start = time.process_time()
    result = work()
    seconds = time.perf_counter() - wall_start
    return result, {"seconds": round(seconds, 2), "cpu_seconds": round(time.process_time() - cpu_start, 2)}
