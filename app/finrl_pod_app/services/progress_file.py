"""What a run that is training says about itself: live.json in its folder, for whoever looks on from another process.

The file is there while the process works and is removed when it ends in order. One that was left behind by a kill is
told by its process, which is named by number and by when it began: a number alone is used again by the system.
"""

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
from finrl_pod.tournament.progress import Progress

FILE = "live.json"
EVERY = 1.0  # seconds between two writings of one stage


@contextlib.contextmanager
def live(folder: Path) -> Iterator[_Writer]:
    """A function to call with every `Progress`, which keeps `folder`/live.json. Raises RunError when it cannot be
    written at first; later a full disk does not end a training for this file's sake."""
    writer = _Writer(folder)
    try:
        yield writer
    finally:
        with contextlib.suppress(OSError):
            (folder / FILE).unlink(missing_ok=True)


class _Writer:
    def __init__(self, folder: Path) -> None:
        self._file, self._stage, self._due = folder / FILE, "", 0.0
        self._process = identity(os.getpid())
        write_json(self._file, {"process": self._process})

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.stage == self._stage and now < self._due:
            return
        self._stage, self._due = progress.stage, now + EVERY
        with contextlib.suppress(RunError):
            write_json(
                self._file,
                {"process": self._process, "updated": time.time(), "progress": to_plain(dataclasses.asdict(progress))},
            )


def read(file: Path) -> dict[str, Any] | None:
    """What is in a file that names a process (live.json, or another of its form), or None where there is none that
    can be read: it may go at any moment."""
    try:
        return read_json(file)
    except RunError:
        return None


def identity(pid: int) -> dict[str, float]:
    """A process by its number and its start, in seconds since 1970. Raises psutil.Error where there is none."""
    return {"pid": pid, "began": psutil.Process(pid).create_time()}


def process_of(values: Mapping[str, Any] | None) -> psutil.Process | None:
    """The process that `read` names, if it still runs (or is paused)."""
    try:
        named = (values or {})["process"]
        process = psutil.Process(int(named["pid"]))
        same = abs(process.create_time() - float(named["began"])) < 1.0
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except (KeyError, TypeError, ValueError, OverflowError, psutil.Error):
        return None


def is_paused(process: psutil.Process) -> bool:
    """Whether the process is stopped by a signal and waits."""
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
