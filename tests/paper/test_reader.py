"""Reading a journal: consistent snapshots without locks or changes."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from finrl_pod.errors import JournalError
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.reader import file_signature, read_journal
from finrl_pod.paper.journal.store import Store

NOW = datetime(2024, 1, 2, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a folder? with #odd % signs" / "journal.sqlite"


def write(store: Store, message: str) -> None:
    store.add(schema.alerts, NOW, level="info", kind="test", message=message)


def messages(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT message FROM alerts ORDER BY id")]


def folder(path: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.parent.iterdir()}


def test_reading_after_a_clean_shutdown_changes_no_files(path: Path) -> None:
    store = Store.create_or_open(path)
    write(store, "one")
    store.close()
    before = folder(path)
    assert list(before) == ["journal.sqlite"]
    assert read_journal(path, messages) == ["one"]
    assert folder(path) == before


def test_newest_rows_are_readable_while_the_journal_is_open(path: Path) -> None:
    store = Store.create_or_open(path)
    write(store, "one")
    assert read_journal(path, messages) == ["one"]
    write(store, "two")
    before = {name: digest for name, digest in folder(path).items() if not name.endswith("-shm")}
    assert read_journal(path, messages) == ["one", "two"]
    assert {name: digest for name, digest in folder(path).items() if not name.endswith("-shm")} == before
    store.close()


@pytest.mark.slow
def test_committed_rows_are_readable_after_a_kill(path: Path) -> None:
    code = (
        "import sys, os, pathlib\nfrom datetime import UTC, datetime\nfrom finrl_pod.paper.journal import schema\n"
        "from finrl_pod.paper.journal.store import Store\n"
        "store = Store.create_or_open(pathlib.Path(sys.argv[1]))\n"
        "store.add(schema.alerts, datetime.now(UTC), level='info', kind='test', message='kept')\nos._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 9
    assert path.with_name("journal.sqlite-wal").stat().st_size > 0
    assert read_journal(path, messages) == ["kept"]


def test_reader_does_not_block_a_writer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finrl_pod.paper.journal.store.BUSY_SECONDS", 0.05)
    store = Store.create_or_open(path)
    write(store, "one")

    def read(connection: sqlite3.Connection) -> list[str]:
        before = messages(connection)
        write(store, "two")  # would raise JournalError if the reader locked the file
        assert messages(connection) == before  # the reader's snapshot does not change
        return before

    assert read_journal(path, read) == ["one"]
    assert read_journal(path, messages) == ["one", "two"]
    store.close()


def test_read_is_repeated_after_a_concurrent_write(path: Path) -> None:
    store = Store.create_or_open(path)
    write(store, "one")
    store.close()
    reads: list[list[str]] = []

    def read(connection: sqlite3.Connection) -> list[str]:
        reads.append(messages(connection))
        if len(reads) == 1:
            other = Store.open(path)
            write(other, "two")
            other.close()
        return reads[-1]

    assert read_journal(path, read) == ["one", "two"]
    assert reads == [["one"], ["one", "two"]]


def test_reader_cannot_write(path: Path) -> None:
    Store.create_or_open(path).close()
    with pytest.raises(JournalError, match=r"readonly|read-only"):
        read_journal(path, lambda c: c.execute("INSERT INTO alerts VALUES (1, 'a', 'b', 'c', 'd')"))
    store = Store.open(path)
    with pytest.raises(JournalError, match=r"readonly|read-only"):
        read_journal(path, lambda c: c.execute("CREATE TABLE other_table (name TEXT)"))
    store.close()


@pytest.mark.parametrize(("version", "expected"), [(0, "another program"), (2, "version 2"), (99, "version 99")])
def test_other_versions_are_refused(path: Path, version: int, expected: str) -> None:
    Store.create_or_open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with pytest.raises(JournalError, match=expected):
        read_journal(path, messages)


def test_file_that_is_not_a_journal_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other"
    with pytest.raises(JournalError, match="there is no journal"):
        read_journal(file, messages)
    file.write_bytes(b"not a database" * 100)
    with pytest.raises(JournalError, match="cannot be read"):
        read_journal(file, messages)


def test_file_signature_changes_with_every_write(path: Path) -> None:
    store = Store.create_or_open(path)
    seen = {file_signature(path)}
    for n in range(5):
        write(store, str(n))
        os.utime(path)  # in WAL mode, the database file's mtime does not change
        seen.add(file_signature(path))
    assert len(seen) == 6
    store.close()
