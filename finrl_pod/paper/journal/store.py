"""The journal's file: opened, checked, brought up to date, and written in transactions that survive a power cut."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event, func, insert, select, text
from sqlalchemy.exc import DatabaseError

from finrl_pod.errors import JournalError
from finrl_pod.paper.journal import schema

BUSY_SECONDS = 5.0  # a writer waits that long for another one before it gives up


class Store:
    """One journal file. Safe to use from several threads; each transaction is on disk when `write` returns."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self.path = path
        self._engine = engine

    @classmethod
    def create_or_open(cls, path: Path, migrations: Sequence[schema.Migration] = schema.MIGRATIONS) -> Store:
        """The journal at `path`, made or brought up to date. Raises JournalError for another file or a newer one."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise JournalError(
                f"cannot make the folder of journal {path}: {error.strerror}; name another path"
            ) from None
        return cls._opened(path, migrations)

    @classmethod
    def open(cls, path: Path) -> Store:
        """The journal at `path`, which must be there."""
        if not path.is_file():
            raise JournalError(f"there is no journal at {path}; start one with: finrl-pod paper run CONFIG.toml")
        if path.stat().st_size == 0:
            raise JournalError(f"{path} is empty, which no journal is; name the journal, or remove it and start anew")
        return cls._opened(path, schema.MIGRATIONS)

    @classmethod
    def _opened(cls, path: Path, migrations: Sequence[schema.Migration]) -> Store:
        _refuse_other(path)
        address = URL.create("sqlite", database=str(path))  # quotes what means something in an address
        engine = create_engine(address, connect_args={"timeout": BUSY_SECONDS, "isolation_level": None})
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
        store = cls(path, engine)
        try:
            with store.write() as connection:
                version = connection.execute(text("PRAGMA user_version")).scalar_one()
                if version > len(migrations):
                    raise JournalError(
                        f"journal {path} has version {version}, this program knows versions up to {len(migrations)}: "
                        "run the newer program that wrote it, or name another journal"
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
        """A transaction: all of it is on disk afterwards, or nothing. Raises JournalError when it cannot be written."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except (DatabaseError, sqlite3.DatabaseError) as error:
            raise JournalError(_sentence(self.path, error)) from None

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view; takes no lock that a writer would wait for."""
        try:
            with self._engine.connect().execution_options(reading=True) as connection, connection.begin():
                yield connection
        except (DatabaseError, sqlite3.DatabaseError) as error:
            raise JournalError(_sentence(self.path, error)) from None

    def add(self, table: Table, at: datetime, **values: Any) -> int:
        """One row in a transaction of its own; returns its number."""
        with self.write() as connection:
            return add(connection, table, at, **values)

    def last(self, table: Table, *conditions: Any) -> Any:
        """The newest row that fits, or None."""
        with self.read() as connection:
            return connection.execute(select(table).where(*conditions).order_by(table.c.id.desc()).limit(1)).first()

    def rows(self, table: Table, *conditions: Any) -> Sequence[Any]:
        """All rows that fit, oldest first."""
        with self.read() as connection:
            return connection.execute(select(table).where(*conditions).order_by(table.c.id)).all()

    def count(self, table: Table, *conditions: Any) -> int:
        """How many rows fit."""
        with self.read() as connection:
            return int(connection.execute(select(func.count()).select_from(table).where(*conditions)).scalar_one())

    def close(self) -> None:
        """Let the file go."""
        self._engine.dispose()

    # ------------------------------------------------------------------ facts

    def fact(self, name: str) -> str | None:
        """A fact that was bound to the journal once, such as its account."""
        row = self.last(schema.facts, schema.facts.c.name == name)
        return None if row is None else str(row.value)

    def bind(self, name: str, value: str) -> None:
        """Bind a fact for good. Raises JournalError when the journal has another value for it."""
        known = self.fact(name)
        if known is None:
            with self.write() as connection:
                connection.execute(insert(schema.facts).values(name=name, value=value))
        elif known != value:
            raise JournalError(
                f"journal {self.path} belongs to {name} {known}, not to {value}: name another journal "
                f"or the right {name}"
            )


def add(connection: Connection, table: Table, at: datetime, **values: Any) -> int:
    """One row inside a transaction; returns its number."""
    result = connection.execute(insert(table).values(at=stamp(at), **values))
    return int(result.inserted_primary_key[0])  # type: ignore[index]


def stamp(moment: datetime) -> str:
    """ISO 8601 in UTC with microseconds, so that text sorts as time does. Refuses a time without a zone."""
    if moment.tzinfo is None:
        raise ValueError(f"a time in the journal needs a zone, got {moment!r}")
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def moment(value: str) -> datetime:
    """What `stamp` wrote."""
    return datetime.fromisoformat(value)


def _refuse_other(path: Path) -> None:
    """Raises JournalError for an SQLite file that is no journal, before a byte of it changes."""
    if not path.is_file() or path.stat().st_size == 0:
        return
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=BUSY_SECONDS)
        with contextlib.closing(connection):
            connection.execute("BEGIN")  # one view: another process may be making the journal right now
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error:
        return  # no SQLite file, or one that cannot be read: opening it says so
    if (version == 0 and tables) or (version > 0 and not tables & {"facts", "commands"}):
        raise JournalError(f"{path} is an SQLite file of something else; name another path for the journal")


def _prepare(connection: sqlite3.Connection, _: object) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    # A writer takes the lock before it reads anything, so no transaction fails half way for want of it.
    reading = connection.get_execution_options().get("reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def _sentence(path: Path, error: Exception) -> str:
    reason = str(getattr(error, "orig", None) or error)
    mends = {
        "locked": "another program holds it: end that one",
        "full": "free some space",
        "readonly": "make it writable",
        "not a database": "name another path",
        "malformed": "restore it from a copy",
        "unable to open": "name a path that can be written",
        "disk I/O": "check the disk",
        "constraint failed": "the file is sound, the program is at fault: report it with a copy of the file",
    }
    mend = next((mend for word, mend in mends.items() if word in reason), "check the file and its disk")
    return f"the journal {path} cannot be used ({reason}): {mend}"
