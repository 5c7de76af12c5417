"""The journal's SQLite file: opening, schema migration, durable transactions, and the lock held by its daemon."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event, func, insert, select, text
from sqlalchemy.exc import DatabaseError

from finrl_pod.errors import JournalError
from finrl_pod.paper.journal import schema

BUSY_SECONDS = 5.0  # how long a writer waits for another one before it fails


class Store:
    """One journal file. Thread-safe; each transaction is on disk when `write` returns."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self.path = path
        self._engine = engine

    @classmethod
    def create_or_open(cls, path: Path, migrations: Sequence[schema.Migration] = schema.MIGRATIONS) -> Store:
        """Open the journal at `path`, created or migrated if needed.

        Raises JournalError if the file is not a journal or was written by a newer version.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise JournalError(
                f"cannot create the folder of journal {path} ({error.strerror}). Use another path."
            ) from None
        return cls._opened(path, migrations)

    @classmethod
    def open(cls, path: Path) -> Store:
        """Open the existing journal at `path`. Raises JournalError if there is none."""
        if not path.is_file():
            raise JournalError(f"there is no journal at {path}. Create one with: finrl-pod paper run CONFIG.toml")
        if path.stat().st_size == 0:
            raise JournalError(f"{path} is an empty file, not a journal. Name another path, or delete the file.")
        return cls._opened(path, schema.MIGRATIONS)

    @classmethod
    def _opened(cls, path: Path, migrations: Sequence[schema.Migration]) -> Store:
        _refuse_other(path)
        address = URL.create("sqlite", database=str(path))  # escapes special characters in the path
        engine = create_engine(address, connect_args={"timeout": BUSY_SECONDS, "isolation_level": None})
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
        store = cls(path, engine)
        try:
            with store.write() as connection:
                version = connection.execute(text("PRAGMA user_version")).scalar_one()
                if version > len(migrations):
                    raise JournalError(
                        f"journal {path} has version {version}; this release reads versions up to {len(migrations)}. "
                        "Upgrade finrl_pod, or name another journal."
                    )
                for step in migrations[version:]:
                    step(connection)
                if version < len(migrations):
                    connection.execute(text(f"PRAGMA user_version = {len(migrations)}"))
        except JournalError:
            store.close()
            raise
        return store

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a write transaction, committed to disk on exit or rolled back. Raises JournalError if that fails."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except (DatabaseError, sqlite3.DatabaseError) as error:
            raise JournalError(_error_message(self.path, error)) from None

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a read transaction: one consistent view that blocks no writer."""
        try:
            with self._engine.connect().execution_options(reading=True) as connection, connection.begin():
                yield connection
        except (DatabaseError, sqlite3.DatabaseError) as error:
            raise JournalError(_error_message(self.path, error)) from None

    def add(self, table: Table, at: datetime, **values: Any) -> int:
        """Insert one row in a separate transaction and return its id."""
        with self.write() as connection:
            return add(connection, table, at, **values)

    def last(self, table: Table, *conditions: Any) -> Any:
        """Return the newest matching row, or None."""
        with self.read() as connection:
            return connection.execute(select(table).where(*conditions).order_by(table.c.id.desc()).limit(1)).first()

    def rows(self, table: Table, *conditions: Any) -> Sequence[Any]:
        """Return all matching rows, oldest first."""
        with self.read() as connection:
            return connection.execute(select(table).where(*conditions).order_by(table.c.id)).all()

    def count(self, table: Table, *conditions: Any) -> int:
        """Return the number of matching rows."""
        with self.read() as connection:
            return int(connection.execute(select(func.count()).select_from(table).where(*conditions)).scalar_one())

    def back_up(self, path: Path) -> None:
        """Copy the journal to a new file while others write to it; the copy is one consistent view, checked on disk.

        Raises JournalError if the file exists or cannot be written, or the copy is damaged.
        """
        if path.exists():
            raise JournalError(f"{path} exists and is not overwritten. Name another file for the backup.")
        partial = path.with_name(path.name + ".partial")
        partial.unlink(missing_ok=True)
        try:
            with (
                contextlib.closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS)) as source,
                contextlib.closing(sqlite3.connect(partial)) as target,
            ):
                source.backup(target)
                target.execute("PRAGMA journal_mode = DELETE")  # one file, without companions
                found = target.execute("PRAGMA integrity_check").fetchone()[0]
            if found != "ok":
                raise JournalError(f"the backup of journal {self.path} is damaged ({found}). Check the disk.")
            with open(partial, "rb") as file:
                os.fsync(file.fileno())
            partial.rename(path)
        except (sqlite3.Error, OSError) as error:
            partial.unlink(missing_ok=True)
            raise JournalError(f"the journal {self.path} cannot be copied to {path} ({error})") from None

    def close(self) -> None:
        """Close all connections to the file."""
        self._engine.dispose()

    # ------------------------------------------------------------------ bound values

    def fact(self, name: str) -> str | None:
        """Return a value fixed by `bind`, such as the journal's account; None if it was never bound."""
        row = self.last(schema.facts, schema.facts.c.name == name)
        return None if row is None else str(row.value)

    def bind(self, name: str, value: str) -> None:
        """Fix a value for the journal's lifetime. Raises JournalError if it is bound to another one."""
        known = self.fact(name)
        if known is None:
            with self.write() as connection:
                connection.execute(insert(schema.facts).values(name=name, value=value))
        elif known != value:
            raise JournalError(
                f"journal {self.path} belongs to {name} {known}, not to {value}. Name another journal "
                f"or the right {name}."
            )


class JournalLock:
    """Exclusive lock of one daemon on a journal; the operating system releases it when the process dies.

    A context manager. Raises JournalError on entering if another process holds the lock.
    """

    def __init__(self, journal: Path) -> None:
        self._path = journal.with_name(journal.name + ".lock")

    def __enter__(self) -> JournalLock:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self._path, "a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            holder = self._file.read().strip() or "another process"
            self._file.close()
            raise JournalError(
                f"the journal is in use by {holder}. Stop that daemon, or name another journal."
            ) from None
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._file.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def add(connection: Connection, table: Table, at: datetime, **values: Any) -> int:
    """Insert one row inside the caller's transaction and return its id."""
    result = connection.execute(insert(table).values(at=stamp(at), **values))
    return int(result.inserted_primary_key[0])  # type: ignore[index]


def stamp(moment: datetime) -> str:
    """Format a time as ISO 8601 in UTC with microseconds, so that text sorts as time does.

    Raises ValueError for a naive datetime.
    """
    if moment.tzinfo is None:
        raise ValueError(f"journal times need a time zone, got {moment!r}")
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def moment(value: str) -> datetime:
    """Parse a time written by `stamp`."""
    return datetime.fromisoformat(value)


def _refuse_other(path: Path) -> None:
    """Raise JournalError for an SQLite file that is not a journal, before anything is written to it."""
    if not path.is_file() or path.stat().st_size == 0:
        return
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=BUSY_SECONDS)
        with contextlib.closing(connection):
            connection.execute("BEGIN")  # one view: another process may be creating the journal right now
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error:
        return  # not SQLite, or unreadable: opening it raises the error
    if (version == 0 and tables) or (version > 0 and not tables & {"facts", "commands"}):
        raise JournalError(f"{path} is an SQLite file of another program. Name another path for the journal.")


def _prepare(connection: sqlite3.Connection, _: object) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    # A writer takes the lock before it reads anything, so that no transaction fails later because another one holds it.
    reading = connection.get_execution_options().get("reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def _error_message(path: Path, error: Exception) -> str:
    reason = str(getattr(error, "orig", None) or error)
    suggestions = {
        "locked": "another program holds it: stop that program",
        "full": "free some disk space",
        "readonly": "make it writable",
        "not a database": "name another path",
        "malformed": "restore it from a backup",
        "unable to open": "name a path that can be written",
        "disk I/O": "check the disk",
        "constraint failed": "the file is intact and this is a bug: report it with a copy of the file",
    }
    suggestion = next((s for text, s in suggestions.items() if text in reason), "check the file and its disk")
    return f"the journal {path} cannot be used ({reason}): {suggestion}"
