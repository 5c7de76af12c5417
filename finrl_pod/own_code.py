"""Exceptions in the user's own code as one sentence, wherever they leave a command.

with own_failures():
    train(...)  # InputError: policies.py:Boom failed: ValueError: bad policy (policies.py, line 39)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from finrl_pod.errors import FinrlPodError, InputError
from finrl_pod.user_files import error_text, own_frames, written_path

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
    frames = own_frames(error)
    return f"{_part(frames[0][0])} failed: {error_text(error)}" if frames else None


def _part(frame: FrameType) -> str:
    """The part as the user named it, file.py:Name: the class of the object, which may inherit the method."""
    owner = frame.f_locals.get("self")
    name = frame.f_code.co_name if owner is None else type(owner).__name__
    return f"{written_path(Path(frame.f_code.co_filename)).name}:{name}"
