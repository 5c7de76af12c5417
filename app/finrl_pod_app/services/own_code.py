"""Exceptions in the user's own code as one sentence, wherever they leave a command.

with own_failures():
    train(...)  # InputError: policies.py:Boom failed: ValueError: bad policy (policies.py, line 39)
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from finrl_pod.errors import FinrlPodError, InputError
from finrl_pod.user_files import MODULE_PREFIX, error_text, written_path

OUT_OF_MEMORY = "can't allocate memory"  # torch's text; no fault of the code that asked


@contextlib.contextmanager
def own_failures() -> Iterator[None]:
    """Raise InputError for an exception that passed through a file of the user's own; others are left as they are."""
    try:
        yield
    except (FinrlPodError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        message = own_failure(error)
        if message is None or OUT_OF_MEMORY in str(error):
            raise
        raise InputError(message) from error


def own_failure(error: BaseException) -> str | None:
    """What failed in the user's own code, and where; None if the exception passed through none of it."""
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _is_own(frame)]
    if not frames:
        return None
    frame, line = frames[-1]
    return f"{_part(frames[0][0])} failed: {error_text(error)} ({_file_name(frame)}, line {line})"


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(MODULE_PREFIX)


def _file_name(frame: FrameType) -> str:
    return str(written_path(Path(frame.f_code.co_filename)))


def _part(frame: FrameType) -> str:
    """The part as the user named it, file.py:Name: the class of the object, which may inherit the method."""
    owner = frame.f_locals.get("self")
    name = frame.f_code.co_name if owner is None else type(owner).__name__
    return f"{Path(_file_name(frame)).name}:{name}"
