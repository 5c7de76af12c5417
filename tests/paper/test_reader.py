"""Looking at a journal: in one view, without a lock, and without changing anything."""

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


def test_after_a_clean_end_nothing_is_changed_and_no_file_made(path: Path) -> None:
    store = Store.create_or_open(path)
    write(store, "one")
    store.close()
    before = folder(path)
    assert list(before) == ["journal.sqlite"]
    assert read_journal(path, messages) == ["one"]
    assert folder(path) == before


def test_beside_an_open_journal_the_newest_rows_are_seen_and_the_file_stays(path: Path) -> None:
    store = Store.create_or_open(path)
    write(store, "one")
    assert read_journal(path, messages) == ["one"]
    write(store, "two")
    before = {name: digest for name, digest in folder(path).items() if not name.endswith("-shm")}
    assert read_journal(path, messages) == ["one", "two"]
    assert {name: digest for name, digest in folder(path).items() if not name.endswith("-shm")} == before
    store.close()


def test_after_a_kill_what_was_committed_is_there(path: Path) -> None:
    code = (
        "import sys, os, pathlib\nfrom datetime import UTC, datetime\nfrom finrl_pod.paper.journal import schema\n"
        "from finrl_pod.paper.journal.store import Store\n"
        "store = Store.create_or_open(pathlib.Path(sys.argv[1]))\n"
        "store.add(schema.alerts, datetime.now(UTC), level='info', kind='test', message='kept')\nos._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 9
    assert path.with_name("journal.sqlite-wal").stat().st_size > 0
    assert read_journal(path, messages) == ["kept"]


def test_a_reader_holds_up_no_writer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finrl_pod.paper.journal.store.BUSY_SECONDS", 0.05)
    store = Store.create_or_open(path)
    write(store, "one")

    def look(connection: sqlite3.Connection) -> list[str]:
        before = messages(connection)
        write(store, "two")  # would raise JournalError if the reader's view locked the file
        assert messages(connection) == before  # and the view stays as it is
        return before

    assert read_journal(path, look) == ["one"]
    assert read_journal(path, messages) == ["one", "two"]
    store.close()


def test_a_look_is_repeated_when_somebody_began_to_write_meanwhile(path: Path) -> None:
    store = Store.create_or_open(path)
    write(store, "one")
    store.close()
    looks: list[list[str]] = []

    def look(connection: sqlite3.Connection) -> list[str]:
        looks.append(messages(connection))
        if len(looks) == 1:
            other = Store.open(path)
            write(other, "two")
            other.close()
        return looks[-1]

    assert read_journal(path, look) == ["one", "two"]
    assert looks == [["one"], ["one", "two"]]


def test_a_reader_cannot_write(path: Path) -> None:
    Store.create_or_open(path).close()
    with pytest.raises(JournalError, match=r"readonly|read-only"):
        read_journal(path, lambda c: c.execute("INSERT INTO alerts VALUES (1, 'a', 'b', 'c', 'd')"))
    store = Store.open(path)
    with pytest.raises(JournalError, match=r"readonly|read-only"):
        read_journal(path, lambda c: c.execute("CREATE TABLE cakes (name TEXT)"))
    store.close()


@pytest.mark.parametrize(("version", "words"), [(0, "another program"), (1, "older version 1"), (99, "version 99")])
def test_another_version_is_refused_in_a_sentence(path: Path, version: int, words: str) -> None:
    Store.create_or_open(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with pytest.raises(JournalError, match=words):
        read_journal(path, messages)


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cake"
    with pytest.raises(JournalError, match="there is no journal"):
        read_journal(file, messages)
    file.write_bytes(b"no database at all" * 100)
    with pytest.raises(JournalError, match="cannot be read"):
        read_journal(file, messages)


def test_every_write_is_seen_as_a_change(path: Path) -> None:
    store = Store.create_or_open(path)
    seen = {file_signature(path)}
    for n in range(5):
        write(store, str(n))
        os.utime(path)  # the file's own time says nothing in WAL mode
        seen.add(file_signature(path))
    assert len(seen) == 6
    store.close()
