"""Results file of a study: one JSON line per finished training. Later calls do not repeat it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from benchmarks.harness.rows import log_progress

FOLDER = Path(__file__).parents[1]  # contains the protocols and the results files
ROOT = FOLDER.parent
Record = dict[str, Any]
ResultT = TypeVar("ResultT")


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
