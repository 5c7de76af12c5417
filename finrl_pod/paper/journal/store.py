"""The journal SQLite file: creating and opening, durable transactions, and the lock of its daemon."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, Select, Table, create_engine, event, func, insert, select, text
from sqlalchemy.exc import DBAPIError

from finrl_pod.errors import JournalError
from finrl_pod.masking import SecretMask, environment_mask
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.reader import VERSION, check_version

FILE_MODE = 0o600  # positions and messages are the owner's only; SQLite gives the companion files the same mode
_FILE_ERRORS = (DBAPIError, sqlite3.Error, UnicodeDecodeError)  # the last one: of a name or text that is damaged
BUSY_SECONDS = 5.0  # how long a writer waits for another one before it fails


class Store:
    """One journal file. Thread-safe; each transaction is on disk when `write` returns."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self.path = path
        self._engine = engine
        self._batch: Connection | None = None

    @classmethod
    def create_or_open(cls, path: Path) -> Store:
        """Open or create the journal at `path`. Raises JournalError for another file, or another schema version."""
        if not path.exists():
            cls._create(path)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Store:
        """Open the existing journal at `path`. Raises JournalError if there is none, or one of another version."""
        if os.path.lexists(path) and not path.is_file():
            raise JournalError(f"{path} is not a file. Name another path for the journal.")
        if not path.is_file():
            raise JournalError(f"there is no journal at {path}. Create one with: finrl-pod paper run CONFIG.toml")
        version = _version_of_journal(path)
        with contextlib.suppress(OSError):  # the file belongs to another user
            os.chmod(path, FILE_MODE)
        store = cls(path, _engine(path))
        try:
            with store.read() as connection:
                damage = connection.execute(text("PRAGMA quick_check(1)")).scalar_one()
            if damage != "ok":
                raise JournalError(f"journal {path} is damaged ({damage}). Restore it from a backup.")
            check_version(path, version)
        except JournalError:
            store.close()
            raise
        return store

    @classmethod
    def _create(cls, path: Path) -> None:
        """Create a complete journal under another name and link it to `path`, so that a kill leaves no partial file."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
                temporary = Path(folder) / path.name
                os.close(os.open(temporary, os.O_CREAT | os.O_EXCL, FILE_MODE))
                with (
                    contextlib.closing(cls(temporary, _engine(temporary))) as store,
                    store.write() as connection,
                ):
                    schema.create_tables(connection)
                with open(temporary, "rb") as file:
                    os.fsync(file.fileno())
                with contextlib.suppress(FileExistsError):
                    os.link(temporary, path)
            _sync_folder(path.parent)
        except OSError as error:
            raise JournalError(f"cannot create the journal {path} ({error.strerror}). Use another path.") from None

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Collect all writes of a context in one transaction. Its reads see them too. For one thread."""
        with self.write() as connection:
            self._batch = connection
            try:
                yield
            finally:
                self._batch = None

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a write transaction, committed to disk on exit or rolled back. Raises JournalError if that fails."""
        if self._batch is not None:
            yield self._batch
            return
        try:
            with self._engine.begin() as connection:
                yield connection
        except _FILE_ERRORS as error:
            raise JournalError(_error_message(self.path, error)) from None

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a read transaction: one consistent view that blocks no writer."""
        if self._batch is not None:
            yield self._batch
            return
        try:
            with self._engine.connect().execution_options(reading=True) as connection, connection.begin():
                yield connection
        except _FILE_ERRORS as error:
            raise JournalError(_error_message(self.path, error)) from None

    def add(self, table: Table, written_at: datetime, **values: Any) -> int:
        """Insert one row in a separate transaction and return its id."""
        with self.write() as connection:
            return add(connection, table, written_at, **values)

    def last(self, table: Table, *conditions: Any) -> Any:
        """Return the newest matching row, or None."""
        with self.read() as connection:
            return connection.execute(select(table).where(*conditions).order_by(table.c.id.desc()).limit(1)).first()

    def rows(self, table: Table, *conditions: Any) -> Sequence[Any]:
        """Return all matching rows, oldest first."""
        return self.query(select(table).where(*conditions).order_by(table.c.id))

    def query(self, query: Select[Any]) -> Sequence[Any]:
        """Return all rows of a query."""
        with self.read() as connection:
            return connection.execute(query).all()

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
            os.close(os.open(partial, os.O_CREAT | os.O_EXCL, FILE_MODE))
            with (
                contextlib.closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS)) as source,
                contextlib.closing(sqlite3.connect(partial)) as target,
            ):
                source.backup(target)
                target.execute("PRAGMA journal_mode = DELETE")  # one file, without companions
                check_result = target.execute("PRAGMA integrity_check").fetchone()[0]
            if check_result != "ok":
                raise JournalError(f"the backup of journal {self.path} is damaged ({check_result}). Check the disk.")
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
        """Return a value fixed by `bind`, such as the journal account; None if it was never bound."""
        row = self.last(schema.facts, schema.facts.c.name == name)
        return None if row is None else str(row.value)

    def bind(self, name: str, value: str) -> None:
        """Fix a value for the journal lifetime. Raises JournalError if it is bound to another one."""
        if self.check_bound(name, value) is None:
            with self.write() as connection:
                connection.execute(insert(schema.facts).values(name=name, value=value))

    def check_bound(self, name: str, value: str) -> str | None:
        """Return the bound value, None without one. Raises JournalError if it is another one."""
        bound_value = self.fact(name)
        if bound_value not in (None, value):
            raise JournalError(
                f"journal {self.path} belongs to {name} {bound_value}, not to {value}. Name another journal "
                f"or the right {name}."
            )
        return bound_value


class JournalLock:
    """Exclusive lock of one daemon on a journal; the operating system releases it when the process dies.

    A context manager that creates a missing journal. It locks a file beside the journal, wherever links lead, and the
    journal itself: it may have several names. Raises JournalError on entering if another process holds a lock.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = Path(os.path.realpath(journal))  # also of a link to itself
        self._path = self._journal.with_name(self._journal.name + ".lock")

    @property
    def is_held(self) -> bool:
        """True if a daemon holds the lock now. Writes nothing."""
        try:
            with open(self._path, "rb") as lock_file:
                fcntl.flock(lock_file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass  # no daemon has locked it yet
        return False

    def __enter__(self) -> JournalLock:
        with contextlib.ExitStack() as files:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                lock_file = files.enter_context(open(self._path, "a+", opener=_open_private))
            except OSError as error:
                raise JournalError(
                    f"cannot lock the journal {self._journal} ({error.strerror}): use another path."
                ) from None
            self._lock(lock_file, lock_file)
            lock_file.truncate(0)
            lock_file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            lock_file.flush()
            if not self._journal.is_file():  # to open a pipe would take forever
                Store.create_or_open(self._journal).close()
            self._lock(files.enter_context(open(self._journal, "rb")), lock_file)
            self._files = files.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def _lock(self, file: IO[Any], lock_file: IO[str]) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock_file.seek(0)
            holder = lock_file.read().strip() if file is lock_file else ""
            raise JournalError(
                f"the journal is in use by {holder or 'another process'}. Stop that daemon, or name another journal."
            ) from None


def add(connection: Connection, table: Table, written_at: datetime, **values: Any) -> int:
    """Insert one row inside the transaction of the caller and return its id."""
    result = connection.execute(insert(table).values(at=stamp(written_at), **values))
    return int(result.inserted_primary_key[0])  # type: ignore[index]


def stamp(moment: datetime) -> str:
    """Format a time as sortable ISO 8601 in UTC with microseconds. Raises ValueError for a naive datetime."""
    if moment.tzinfo is None:
        raise ValueError(f"journal times need a time zone, got {moment!r}")
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def moment(value: str) -> datetime:
    """Parse a time written by `stamp`."""
    return datetime.fromisoformat(value)


def _version_of_journal(path: Path) -> int:
    """Schema version of an existing journal. Raises JournalError for any other file, before anything is written to it.

    An unreadable file counts as one of this release: opening it raises the error.
    """
    if path.stat().st_size == 0:
        raise JournalError(f"{path} is an empty file, not a journal. Restore a backup, or name another path.")
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=BUSY_SECONDS)
        with contextlib.closing(connection):
            connection.execute("BEGIN")  # one consistent view
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except _FILE_ERRORS:
        return VERSION
    if not tables:
        raise JournalError(f"{path} has no tables: its companion {path.name}-wal is missing. Restore it, or a backup.")
    if version == 0 or not tables & {"facts", "commands"}:
        raise JournalError(f"{path} is an SQLite file of another program. Name another path for the journal.")
    return version


def _engine(path: Path) -> Engine:
    address = URL.create("sqlite", database=str(path))  # escapes special characters in the path
    engine = create_engine(address, connect_args={"timeout": BUSY_SECONDS, "isolation_level": None})
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    event.listen(engine, "before_cursor_execute", _mask_secrets(environment_mask()), retval=True)
    return engine


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _mask_secrets(mask: SecretMask) -> Callable[..., tuple[str, Any]]:
    """Return the hook that removes secrets from all that is written, such as messages of brokers."""

    def mask_parameters(parameters: Any) -> Any:
        if isinstance(parameters, Mapping):
            return {name: mask.text(value) if isinstance(value, str) else value for name, value in parameters.items()}
        return tuple(mask.text(value) if isinstance(value, str) else value for value in parameters)

    def before_execute(
        _: object, __: object, statement: str, parameters: Any, ___: object, many: bool
    ) -> tuple[str, Any]:
        return statement, [mask_parameters(value) for value in parameters] if many else mask_parameters(parameters)

    return before_execute


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
