"""The file that a study keeps: one line of JSON for each training that is finished."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    """Whole lines; one that a kill cut off is run again."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            sys.stderr.write(f"{path}: left out a line that is not whole\n")
    return rows


def append(path: Path, row: Row) -> None:
    """One write of a whole line at the end, on disk when this returns: processes may share the file."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, (json.dumps(row) + "\n").encode())
        os.fsync(handle)
    finally:
        os.close(handle)
