"""The folder that a command writes into: one kind of result each, and one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from finrl_pod.errors import RunError

RUN, WALK_FORWARD = "config.json", "plan.json"
WHAT = {RUN: "a run", WALK_FORWARD: "a walk-forward"}


class Rewritten(NamedTuple):
    """A result that may be written again in its folder. mark: the JSON file that every such folder has, key: what its
    object has; others: the other files."""

    what: str
    mark: str
    key: str
    others: tuple[str, ...]


BACKTEST = Rewritten(
    "a backtest", "report.json", "test", ("report.html", "bars.parquet", "bars.csv", "weights.parquet", "weights.csv")
)
SWEEP = Rewritten("a sweep", "sweep.json", "rows", ("sweep.parquet", "sweep.csv"))


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
        handle = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise RunError(f"cannot write {out}: {_reason(error)}; name another folder with --out") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"another process is writing into {out}; wait for it or stop it, or name another --out"
            ) from None
        if not os.access(out, os.W_OK | os.X_OK):  # noticed before the work, not after it
            raise RunError(f"cannot write {out}: no permission; name another folder with --out")
        yield
    finally:
        os.close(handle)
        if new:
            with contextlib.suppress(OSError):  # something was written
                out.rmdir()


@contextlib.contextmanager
def rewriting(out: Path | None, kind: Rewritten) -> Iterator[None]:
    """`held` for a result that may be written again; nothing for none. Raises RunError also where a file of such a
    name lies in the folder that no such result wrote: it is somebody's."""
    if out is None:
        yield
        return
    there = [file for file in (kind.mark, *kind.others) if (out / file).exists()]
    if there and not _wrote(out / kind.mark, kind.key):
        raise RunError(
            f"{out} holds a {there[0]} that is not from {kind.what}, and this would write over it; "
            "name another folder with --out"
        )
    with held(out, ""):
        yield


def _wrote(mark: Path, key: str) -> bool:
    try:
        kept = json.loads(mark.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(kept, dict) and key in kept


def _reason(error: OSError) -> str:
    return "it is a file" if isinstance(error, FileExistsError) else str(error.strerror)
