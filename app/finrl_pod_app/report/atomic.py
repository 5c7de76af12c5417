"""Files appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from finrl_pod.errors import RunError


def write_text(path: Path, text: str) -> Path:
    """Write UTF-8 text to a temporary name beside `path`, then rename it. Raises RunError; an old file then stays."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; name another folder with --out") from None
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files for their owner alone; a report is for whoever may read the folder.
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return path
