"""Folders of runs and their files: search, names from addresses, and bounded reading.

A folder may come from anywhere: only regular files below a size are read, and no symbolic link is followed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from finrl_pod import files
from finrl_pod.errors import RunError

MAX_DEPTH = 3  # folders below the root: a walk-forward keeps its runs in OUT/fold-01/seed-0
MAX_BYTES = 64_000_000  # of a file of JSON
MAX_DIGITS = 18  # of an integer: no statistic of a run is larger
CONFIG, STATE, REPORT, VERDICT, JOB, LOG = (
    "config.json", "state.json", "report.json", "verdict.json", "job.json", "log.txt",
)  # fmt: skip
PAGE, CURVES, TAGS = "report.html", "curves.safetensors", "tags.json"
_STAMPED = (CONFIG, STATE, REPORT, VERDICT, JOB, PAGE, CURVES, TAGS)


@dataclass(frozen=True)
class RunFiles:
    """The folder of a run. Equal records have equal contents, so they serve as cache keys.

    name: path below the root. stamp: modification time of each file in ns, 0 if it does not exist.
    """

    path: Path
    name: str
    stamp: tuple[int, ...]

    @property
    def changed(self) -> float:
        """Time of the last change in seconds since 1970."""
        return max(self.stamp) / 1e9

    @property
    def has_champion(self) -> bool:
        """Whether a generation has finished, so that there is a current champion."""
        return self.has(STATE)

    def has(self, file: str) -> bool:
        """True if one of the files of the run existed when its folder was read."""
        return self.modified(file) > 0

    def modified(self, file: str) -> int:
        """Modification time of one of the files in ns, 0 if it does not exist."""
        return self.stamp[_STAMPED.index(file)]


def find_runs(root: Path) -> list[RunFiles]:
    """All runs below `root`, latest change first; empty if the folder is missing or not readable."""
    runs = [_run_files(path, root) for path in _run_folders(root, MAX_DEPTH)]
    return sorted(runs, key=lambda run: (-run.changed, run.name))


def open_run(root: Path, name: str) -> RunFiles:
    """The run of a name; the name may come from a URL. Raises RunError if there is no such run below `root`."""
    names = name.split("/")
    if name and "\0" not in name and all(name_part not in ("", ".", "..") for name_part in names):
        folders = [root.joinpath(*names[: count + 1]) for count in range(len(names))]
        if all(stat.S_ISDIR(_mode(folder)) for folder in folders) and _is_run(folders[-1]):
            return _run_files(folders[-1], root)
    raise RunError(f"no run {name!r} in {root}: choose one from the list")


def read_object(file: Path, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Read a JSON object of a run. Raises RunError if it is missing, damaged, a link, or too large."""
    return files.read_json(file, max_bytes=max_bytes, follow_links=False, max_digits=MAX_DIGITS)


def read_bytes(file: Path, max_bytes: int) -> bytes:
    """Read a file of a run. Raises RunError as `read_object`."""
    return files.read_regular(file, max_bytes, follow_links=False)


def is_file(file: Path) -> bool:
    """Whether there is a regular file; False for links and pipes."""
    return stat.S_ISREG(_mode(file))


def _run_files(path: Path, root: Path) -> RunFiles:
    return RunFiles(path, path.relative_to(root).as_posix(), tuple(_mtime_ns(path / name) for name in _STAMPED))


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            folders = [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name[0] != "."]
    except OSError:
        return
    for path in folders:
        if _is_run(path):
            yield path
        elif depth > 1:
            yield from _run_folders(path, depth - 1)


def _is_run(path: Path) -> bool:
    """Whether it is the folder of a tournament. Folders of `train --env` have a different config."""
    modified_ns = _mtime_ns(path / CONFIG)
    return (modified_ns > 0 and not _is_gymnasium_config(path / CONFIG, modified_ns)) or is_file(path / JOB)


@lru_cache(maxsize=10_000)
def _is_gymnasium_config(file: Path, modified: int) -> bool:  # noqa: ARG001 - cache key
    try:
        values = read_object(file)
    except RunError:
        return False  # its summary reports the error
    return "env" in values and "config" not in values


def _mode(path: Path) -> int:
    try:
        return os.lstat(path).st_mode
    except (OSError, ValueError):
        return 0


def _mtime_ns(path: Path) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return 0
