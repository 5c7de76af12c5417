"""Looks at a journal from outside: no lock that the daemon would wait for, and not a byte changed, nor a file made.

An SQLite file in WAL mode cannot be opened without its two companion files. While a daemon runs, or after it was
killed, they are there, and a read-only connection uses them. After a clean end they are not, and the file stands still:
it is then opened as immutable, and the look is repeated should somebody have begun to write meanwhile.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from finrl_pod.errors import JournalError

VERSION = 4


T = TypeVar("T")
ATTEMPTS = 5
BUSY_SECONDS = 5.0


def read(path: Path, look: Callable[[sqlite3.Connection], T]) -> T:
    """What `look` finds in the journal at `path`, in one consistent view. It may be called more than once.

    Raises JournalError for a missing file, another one, and a journal of another version.
    """
    if not path.is_file():
        raise JournalError(f"there is no journal at {path}; start one with: finrl-pod paper run CONFIG.toml")
    for _ in range(ATTEMPTS):
        before, standing = changes(path), not _log(path).exists()
        try:
            found = _once(path, look, immutable=standing)
        except sqlite3.DatabaseError as error:
            if standing and changes(path) != before:
                continue
            raise JournalError(f"the journal {path} cannot be read ({error}): check the file and its disk") from None
        if not standing or changes(path) == before:
            return found
    raise JournalError(f"the journal {path} is opened and closed all the time: look again in a moment")


def changes(path: Path) -> tuple[tuple[int, int], ...]:
    """Time and size of the journal's files: another value after every write. Cheap."""
    return tuple(_state(file) for file in (path, _log(path)))


def _once(path: Path, look: Callable[[sqlite3.Connection], T], *, immutable: bool) -> T:
    mode = "immutable=1" if immutable else "mode=ro"
    connection = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?{mode}", uri=True, timeout=BUSY_SECONDS, isolation_level=None
    )
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("BEGIN")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            raise JournalError(f"{path} is an SQLite file of something else, or an empty one; name a journal")
        if version > VERSION:
            raise JournalError(f"journal {path} has version {version}, this program knows versions up to {VERSION}")
        if version < VERSION:
            raise JournalError(
                f"journal {path} has the older version {version}: bring it up to date with "
                "finrl-pod paper status CONFIG.toml"
            )
        return look(connection)
    finally:
        connection.close()


def _log(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _state(file: Path) -> tuple[int, int]:
    try:
        found = os.stat(file)
    except FileNotFoundError:
        return 0, -1
    return found.st_mtime_ns, found.st_size
