"""Files that are whole or not there: written to a temporary name beside the target, then renamed."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finrl_pod.errors import RunError


def replace_file(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replace `path` by `data` in one step, or leave what was there. Raises OSError; the folder must exist.

    mode: who may read it. A run is for whoever may read its folder.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_bytes(path: Path, data: bytes) -> Path:
    """`replace_file` for a run's files: makes the folder, and raises RunError when it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; name another folder with --out") from None
    return path


def write_text(path: Path, text: str) -> Path:
    """The same for UTF-8 text."""
    return write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, values: Mapping[str, Any]) -> Path:
    """The same for an object, keys sorted. Raises ValueError for NaN: JSON has none."""
    return write_text(path, json.dumps(values, sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


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
