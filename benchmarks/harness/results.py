"""Results file of a study: one JSON line per finished training."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1]  # of the protocols and results files
ROOT = FOLDER.parent
Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    """Read complete lines; an incomplete one (after a kill) is skipped, and its training is repeated."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            sys.stderr.write(f"{path}: skipped an incomplete line\n")
    return rows


def append(path: Path, *rows: Row) -> None:
    """Append lines in one write and sync them to disk; several processes may share the file."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, "".join(json.dumps(row) + "\n" for row in rows).encode())
        os.fsync(handle)
    finally:
        os.close(handle)
