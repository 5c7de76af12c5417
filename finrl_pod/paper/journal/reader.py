"""Read-only access to a journal for status views: takes no lock that blocks the daemon and never changes a file.

An SQLite file in WAL mode cannot be opened without its two companion files. While a daemon runs, or after it was
killed, they exist, and a read-only connection uses them. After a clean exit they do not, and the file does not change:
it is then opened as immutable, and the query is repeated if a writer opened the file meanwhile.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from finrl_pod.errors import JournalError

VERSION = 1  # of the schema; other versions are refused

T = TypeVar("T")
ATTEMPTS = 5
BUSY_SECONDS = 5.0


def read_journal(path: Path, query: Callable[[sqlite3.Connection], T]) -> T:
    """Return the result of `query` on one consistent view of the journal at `path`. `query` may run more than once.

    Raises JournalError if the file is missing, is not a journal, or has another schema version.
    """
    if not path.is_file():
        raise JournalError(f"there is no journal at {path}. Create one with: finrl-pod paper run CONFIG.toml")
    for _ in range(ATTEMPTS):
        signature = file_signature(path)
        immutable = not _wal_path(path).exists()
        try:
            result = _query_once(path, query, immutable=immutable)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if immutable and file_signature(path) != signature:
                continue
            raise JournalError(f"the journal {path} cannot be read ({error}): check the file and its disk") from None
        if not immutable or file_signature(path) == signature:
            return result
    raise JournalError(f"the journal {path} is opened and closed repeatedly. Try again in a moment.")


def check_version(path: Path, version: int) -> None:
    """Raise JournalError for a schema version other than the one of this release."""
    if version != VERSION:
        raise JournalError(
            f"journal {path} has version {version}, this release reads version {VERSION}: name another journal"
        )


def file_signature(path: Path) -> tuple[tuple[int, int], ...]:
    """Return modification time and size of the journal files. They change with every write. Cheap to call."""
    return tuple(_time_and_size(file) for file in (path, _wal_path(path)))


def _query_once(path: Path, query: Callable[[sqlite3.Connection], T], *, immutable: bool) -> T:
    mode = "immutable=1" if immutable else "mode=ro"
    connection = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?{mode}", uri=True, timeout=BUSY_SECONDS, isolation_level=None
    )
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("BEGIN")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            raise JournalError(f"{path} is an SQLite file of another program, or empty. Name a journal.")
        check_version(path, version)
        return query(connection)
    finally:
        connection.close()


def _wal_path(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _time_and_size(file: Path) -> tuple[int, int]:
    try:
        stat = os.stat(file)
    except FileNotFoundError:
        return 0, -1
    return stat.st_mtime_ns, stat.st_size
