"""Records that commands print as JSON, and locked output folders with one kind of result each."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from finrl_pod.errors import RunError
from finrl_pod.files import FREE_BYTES, read_json, reserve_room, to_plain

RUN = "config.json"
WALK_FORWARD = "plan.json"
TEMPORARY = "temporary.json"  # in the folder of a run that `paper demo` trained for its account only
ENSEMBLE = "ensemble_plan.json"
KINDS = {RUN: "a run", WALK_FORWARD: "a walk-forward", ENSEMBLE: "a quarterly ensemble"}


class JsonRecord:
    """Base of the frozen dataclasses that commands print as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """JSON values of the fields, NaN and infinity as None."""
        return dict(to_plain(dataclasses.asdict(self)))  # type: ignore[call-overload]


class RewritableResult(NamedTuple):
    """A kind of result that may be overwritten in its folder.

    description: text for messages. marker: JSON file that identifies it, with `key` at its top level. other_files:
    further files of the result.
    """

    description: str
    marker: str
    key: str
    other_files: tuple[str, ...]


BACKTEST = RewritableResult(
    "a backtest",
    "report.json",
    "test",
    ("report.html", "bars.parquet", "bars.csv", "weights.parquet", "weights.csv", "trades.parquet", "trades.csv"),
)
SWEEP = RewritableResult("a sweep", "sweep.json", "rows", ("sweep.parquet", "sweep.csv"))


def refuse_other(out: Path, marker: str = "") -> None:
    """Raise RunError if `out` has another kind of result that would be overwritten.

    marker: RUN or WALK_FORWARD, the file of the result to be written; empty for results that may be overwritten.
    """
    for file, description in KINDS.items():
        if file != marker and (out / file).exists():
            raise RunError(f"{out} has {description} that would be overwritten; choose another folder with --out")


def check_room(out: Path) -> None:
    """Check before the work that an output folder can be written and has room. Raises RunError."""
    try:
        reserve_room(out)
    except OSError as error:
        raise _unwritable(out, error) from None


def _unwritable(out: Path, error: OSError) -> RunError:
    reason = {
        errno.EEXIST: "it is a file",
        errno.ENOSPC: f"its disk has less than {FREE_BYTES >> 20} MiB left",
        errno.EDQUOT: f"its quota has less than {FREE_BYTES >> 20} MiB left",
    }.get(error.errno or 0, error.strerror)
    return RunError(f"cannot write {out}: {reason}; choose another folder with --out")


@contextlib.contextmanager
def locked_folder(out: Path, marker: str) -> Iterator[None]:
    """Create and lock a folder for this process until the block or the process ends.

    Raises RunError if another process has locked it, if it holds another kind of result, if it is not writable, or if
    its disk is full: before the work, not after it.
    """
    refuse_other(out, marker)
    is_new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        handle = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _unwritable(out, error) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"another process is writing to {out}; wait for it, stop it, or choose another --out"
            ) from None
        check_room(out)
        yield
    finally:
        os.close(handle)
        if is_new:
            with contextlib.suppress(OSError):  # not empty
                out.rmdir()


@contextlib.contextmanager
def rewritable_folder(out: Path | None, kind: RewritableResult) -> Iterator[None]:
    """Like `locked_folder`, for a result that may be overwritten; does nothing without a folder.

    Raises RunError also if the folder holds a file of the same name that this kind of result did not write.
    """
    if out is None:
        yield
        return
    existing = [file for file in (kind.marker, *kind.other_files) if (out / file).exists()]
    try:
        is_own = not existing or kind.key in read_json(out / kind.marker)
    except RunError:
        is_own = False
    if not is_own:
        raise RunError(
            f"{out} has a {existing[0]} that was not written by {kind.description} and would be overwritten; "
            "choose another folder with --out"
        )
    with locked_folder(out, ""):
        yield
