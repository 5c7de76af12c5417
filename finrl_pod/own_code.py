"""Exceptions in the user's own code as one sentence, wherever they leave a command.

with own_failures():
    train(...)  # InputError: policies.py:Boom failed: ValueError: bad policy (policies.py, line 39)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from finrl_pod.errors import FinrlPodError, InputError
from finrl_pod.user_files import error_text, own_frames, part_name

OUT_OF_MEMORY = "can't allocate memory"  # torch's text; no fault of the code that asked


@contextlib.contextmanager
def own_failures() -> Iterator[None]:
    """Raise InputError for an exception from the user's own file or package; others are left as they are."""
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
    return f"{part_name(frames[0][0])} failed: {error_text(error)}" if frames else None
