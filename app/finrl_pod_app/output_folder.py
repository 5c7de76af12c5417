"""The folder that a command writes into: one kind of result each, and one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from finrl_pod.errors import RunError

RUN, WALK_FORWARD = "config.json", "plan.json"
WHAT = {RUN: "a run", WALK_FORWARD: "a walk-forward"}


def refuse_other(out: Path, own: str = "") -> None:
    """Raises RunError where `out` holds another kind of result, which would be written over.

    own: the file that says what is to be written, RUN or WALK_FORWARD; none for what may be written again.
    """
    for file, what in WHAT.items():
        if file != own and (out / file).exists():
            raise RunError(f"{out} holds {what}, which this would write over; name another folder with --out")


@contextlib.contextmanager
def held(out: Path, own: str) -> Iterator[None]:
    """The folder for this process alone, until the block is left or the process ends, however it does.

    Raises RunError where another process holds it, where it holds another kind of result, and where it cannot be made.
    """
    refuse_other(out, own)
    new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out, os.O_RDONLY)
    except OSError as error:
        raise RunError(f"cannot write {out}: {error.strerror}; name another folder with --out") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"another process is writing into {out}; wait for it or stop it, or name another --out"
            ) from None
        yield
    finally:
        os.close(handle)
        if new:
            with contextlib.suppress(OSError):  # something was written
                out.rmdir()
