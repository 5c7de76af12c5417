"""Files that are whole or not there: written to a temporary name beside the target, then renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finrl_pod.errors import RunError


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one step. Raises RunError when the folder cannot be written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror}; choose another --out folder") from None


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write an object with sorted keys. Raises RunError as above; ValueError for NaN."""
    write_bytes(path, (json.dumps(values, sort_keys=True, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read an object. Raises RunError when it is missing or damaged."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} is missing; the run directory is incomplete") from None
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise RunError(f"{path} is damaged: it is not JSON; restore it or start a new run") from None
    if not isinstance(values, dict):
        raise RunError(f"{path} is damaged: it holds no object; restore it or start a new run")
    return values
