"""The journal file: append-only, bound to one account, versioned, and locked by one daemon."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy import Connection, text

from finrl_pod.errors import JournalError
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.reader import VERSION
from finrl_pod.paper.journal.store import JournalLock, Store

NOW = datetime(2024, 1, 2, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def test_durability_settings(path: Path) -> None:
    store = Store.create_or_open(path)
    with store.read() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar_one() == 2  # FULL
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("table", sorted(schema.metadata.tables))
def test_rows_cannot_be_updated_or_deleted(path: Path, table: str) -> None:
    Store.create_or_open(path).close()
    with sqlite3.connect(path) as connection:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        connection.execute(f"INSERT INTO {table} VALUES ({', '.join(['1'] * len(columns))})")
        for change in (f"UPDATE {table} SET id = 2", f"DELETE FROM {table}"):
            with pytest.raises(sqlite3.IntegrityError, match="only added to"):
                connection.execute(change)


def test_journal_of_another_account_is_refused(path: Path) -> None:
    store = Store.create_or_open(path)
    store.bind("account", "PA1")
    store.bind("account", "PA1")
    with pytest.raises(JournalError, match="belongs to account PA1, not to PA2"):
        store.bind("account", "PA2")
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("version", [VERSION + 1, 99])
def test_journal_of_another_version_is_refused_and_unchanged(path: Path, version: int) -> None:
    Store.create_or_open(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    for opened in (Store.open, Store.create_or_open):
        with pytest.raises(JournalError, match=f"has version {version}, this release reads version {VERSION}"):
            opened(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (version,)


@pytest.mark.parametrize("content", [b"not a database" * 100, None], ids=["text", "another database"])
def test_file_of_another_format_is_refused(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.write_bytes(content)
    else:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE other_table (name TEXT)")
    with pytest.raises(JournalError):
        Store.create_or_open(path)


@pytest.mark.parametrize("version", [0, 1, 4])
def test_database_of_another_program_is_unchanged(path: Path, version: int) -> None:
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.executescript(f"CREATE TABLE other_table (name TEXT); PRAGMA user_version = {version};")
    before = path.read_bytes()
    for opened in (Store.open, Store.create_or_open):
        with pytest.raises(JournalError, match="SQLite file of another program"):
            opened(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("opened", [Store.open, Store.create_or_open])
def test_empty_file_is_refused(path: Path, opened: Callable[[Path], Store]) -> None:
    """A daemon would take it for the journal of a first start."""
    path.touch()
    with pytest.raises(JournalError, match="is an empty file"):
        opened(path)
    assert path.stat().st_size == 0


@pytest.mark.parametrize("opened", [Store.open, Store.create_or_open])
def test_file_whose_tables_were_in_a_lost_wal_is_refused(path: Path, opened: Callable[[Path], Store]) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    schema_of_tables(connection)
    content = path.read_bytes()
    connection.close()
    path.write_bytes(content)
    with pytest.raises(JournalError, match=r"journal.sqlite-wal is missing"):
        opened(path)


def schema_of_tables(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE facts (id INTEGER PRIMARY KEY)")
    connection.commit()


def test_kill_while_a_journal_is_created_leaves_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(connection: Connection) -> None:
        schema.metadata.create_all(connection)
        raise KeyboardInterrupt

    monkeypatch.setattr(schema, "create_tables", killed)
    with pytest.raises(KeyboardInterrupt):
        Store.create_or_open(path)
    assert not path.exists()
    assert not list(path.parent.iterdir())


def test_files_are_private_to_their_owner(path: Path) -> None:
    with JournalLock(path):
        store = Store.create_or_open(path)
        store.add(schema.alerts, NOW, level="info", kind="test", message="hello")
        assert {mode_of(file) for file in path.parent.iterdir()} == {0o600}
        assert len(list(path.parent.iterdir())) == 4  # the journal, its two companions, and the lock
        store.back_up(path.with_name("copy"))
        assert mode_of(path.with_name("copy")) == 0o600
        store.close()
    path.chmod(0o644)
    Store.open(path).close()
    assert mode_of(path) == 0o600


def mode_of(file: Path) -> int:
    return file.stat().st_mode & 0o777


def test_secrets_of_the_environment_are_never_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "acceptance/Secret+0123456789abcdef"
    monkeypatch.setenv("APCA_API_SECRET_KEY", secret)
    store = Store.create_or_open(path)
    forms = (secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode(), f"{secret[:9]}\n{secret[9:]}")
    message = " and ".join(forms)
    store.add(schema.alerts, NOW, level="info", kind="test", message=message)
    detail = json.dumps({"detail": message, "weights": [0.5]})
    with store.write() as connection:
        values = {"at": "x", "session": "x", "equity": "1", "cash": detail, "broker_equity": "1"}
        connection.execute(schema.equity.insert(), [values, values])
    (row, _), written = store.rows(schema.equity), store.last(schema.alerts).message
    assert written == "*** and *** and *** and ***"
    assert json.loads(row.cash) == {"detail": written, "weights": [0.5]}
    assert store.last(schema.alerts, schema.alerts.c.message == message) is not None  # as it was written
    for file in path.parent.iterdir():
        assert not any(form.encode() in file.read_bytes() for form in forms)
    store.close()


def test_transactions_are_atomic(path: Path) -> None:
    store = Store.create_or_open(path)

    def half() -> None:
        with store.write() as connection:
            connection.execute(schema.alerts.insert().values(at="x", level="x", kind="x", message="x"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert store.count(schema.alerts) == 0
    store.close()


def test_locked_journal_raises_journal_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finrl_pod.paper.journal.store.BUSY_SECONDS", 0.1)
    store = Store.create_or_open(path)
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalError, match="locked"):
            store.add(schema.alerts, NOW, level="info", kind="test", message="waits")
    store.close()


def test_full_disk_raises_journal_error_and_keeps_rows(path: Path) -> None:
    store = Store.create_or_open(path)
    store.add(schema.alerts, NOW, level="info", kind="test", message="kept")
    with store.read() as connection:
        pages = connection.execute(text("PRAGMA page_count")).scalar_one()

    def fill() -> None:
        with store.write() as connection:
            connection.execute(text(f"PRAGMA max_page_count = {pages}"))
            for _ in range(100):
                values = {"at": "x", "level": "x", "kind": "x", "message": "x" * 1000}
                connection.execute(schema.alerts.insert().values(**values))

    with pytest.raises(JournalError, match="full"):
        fill()
    store.close()
    store = Store.create_or_open(path)
    assert [row.message for row in store.rows(schema.alerts)] == ["kept"]
    store.close()


def test_naive_datetime_is_refused(path: Path) -> None:
    store = Store.create_or_open(path)
    with pytest.raises(ValueError, match="need a time zone"):
        store.add(schema.alerts, NOW.replace(tzinfo=None), level="info", kind="test", message="test")
    store.close()


@pytest.mark.slow
def test_journal_lock_is_exclusive_and_released_by_a_kill(path: Path) -> None:
    code = (
        "import sys, pathlib\nfrom finrl_pod.paper.journal.store import JournalLock\n"
        "with JournalLock(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == "held"
        with pytest.raises(JournalError, match=f"in use by process {other.pid}"), JournalLock(path):
            pass
        for name in other_names(path):
            with pytest.raises(JournalError, match="in use by"), JournalLock(name):
                pass
        other.kill()
    with JournalLock(path):
        pass


def other_names(path: Path) -> list[Path]:
    """Return other names of one file: symbolic links to it and to its folder, and a hard link."""
    folder = path.parent / "elsewhere"
    folder.mkdir()
    (folder / "link").symlink_to(path)
    (folder / "folder").symlink_to(path.parent)
    (folder / "hard").hardlink_to(path)
    return [folder / "link", folder / "folder" / path.name, folder / "hard"]


@pytest.mark.parametrize(
    "make",
    [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path.name), lambda path: path.symlink_to("/dev/zero")],
    ids=["folder", "pipe", "link to itself", "device"],
)
def test_what_is_no_file_is_refused_at_once(path: Path, make: Callable[[Path], object]) -> None:
    make(path)
    for opened in (Store.open, Store.create_or_open, lambda journal: JournalLock(journal).__enter__()):
        with pytest.raises(JournalError, match="is not a file"):
            opened(path)


def test_missing_journal_is_refused(path: Path) -> None:
    with pytest.raises(JournalError, match="there is no journal"):
        Store.open(path)


def test_constraint_violation_is_not_reported_as_a_damaged_file(tmp_path: Path) -> None:
    store = Store.create_or_open(tmp_path / "journal.sqlite")
    store.add(schema.cursors, NOW, name="fills", value="1")
    with pytest.raises(JournalError, match=r"constraint failed.*file is intact.*report"):
        store.add(schema.cursors, NOW, id=1, name="fills", value="2")


def test_backup_holds_every_row_and_can_be_restored(path: Path, tmp_path: Path) -> None:
    """The copy is taken while the journal is open, and works in the journal's place."""
    store = Store.create_or_open(path)
    for number in range(50):
        store.add(schema.alerts, datetime.now(UTC), level="info", kind="test", message=str(number))
    store.bind("account", "PA1")
    copy = tmp_path / "copy.sqlite"
    store.back_up(copy)
    store.add(schema.alerts, datetime.now(UTC), level="info", kind="test", message="after the copy")
    with pytest.raises(JournalError, match="is not overwritten"):
        store.back_up(copy)
    store.close()
    assert sorted(p.name for p in tmp_path.glob("copy*")) == ["copy.sqlite"]
    copy.rename(path)
    for companion in path.parent.glob(f"{path.name}-*"):
        companion.unlink()
    restored = Store.open(path)
    assert [row.message for row in restored.rows(schema.alerts)] == [str(number) for number in range(50)]
    assert restored.fact("account") == "PA1"
    with pytest.raises(JournalError, match="only added to"), restored.write() as connection:
        connection.execute(schema.alerts.delete())
    restored.close()
