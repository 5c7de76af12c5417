"""Progress file live.json of a running training, for other processes: removed at its end, ignored after a kill."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from finrl_pod.errors import RunError
from finrl_pod.files import read_json, to_plain, write_json
from finrl_pod.tournament.progress import Progress, ProgressCallback

FILE = "live.json"
WRITE_SECONDS = 1.0  # between two writes within a stage


@contextlib.contextmanager
def live_progress(folder: Path) -> Iterator[ProgressCallback]:
    """Yield a callback that writes each `Progress` to `folder`/live.json.

    Raises RunError if the first write fails; later failures (a full disk) are ignored and do not stop the training.
    """
    file = folder / FILE
    process = identity(os.getpid())
    stage = ""
    next_write = 0.0

    def write(progress: Progress) -> None:
        nonlocal stage, next_write
        now = time.monotonic()
        if progress.stage == stage and now < next_write:
            return
        stage = progress.stage
        next_write = now + WRITE_SECONDS
        values = {"process": process, "updated": time.time(), "progress": to_plain(dataclasses.asdict(progress))}
        with contextlib.suppress(RunError):
            write_json(file, values)

    write_json(file, {"process": process})
    try:
        yield write
    finally:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def read(file: Path) -> dict[str, Any] | None:
    """Read live.json, or another file with a "process" entry. None if it is missing or unreadable."""
    try:
        return read_json(file)
    except RunError:
        return None


def identity(pid: int) -> dict[str, float]:
    """Return PID and start time (seconds since 1970) of a process. Raises psutil.Error if it does not exist."""
    return {"pid": pid, "began": psutil.Process(pid).create_time()}


def process_of(values: Mapping[str, Any] | None) -> psutil.Process | None:
    """Return the process that the result of `read` identifies if it is still running or paused, else None."""
    try:
        entry = (values or {})["process"]
        process = psutil.Process(int(entry["pid"]))
        is_same = abs(process.create_time() - float(entry["began"])) < 1.0
        return process if is_same and process.status() != psutil.STATUS_ZOMBIE else None
    except (KeyError, TypeError, ValueError, OverflowError, psutil.Error):
        return None


def is_paused(process: psutil.Process) -> bool:
    """Return whether the process is stopped by a signal (SIGSTOP)."""
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
