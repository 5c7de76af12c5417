"""A damaged row of a journal is named before anything depends on it."""

from __future__ import annotations

import random
import shutil
import sqlite3
from datetime import date
from pathlib import Path

import pytest
from finrl_pod_app.cli import main
from finrl_pod_app.paper.backtest_difference import recorded_settings

from finrl_pod.errors import JournalError
from finrl_pod.paper.journal.ledger import Ledger
from finrl_pod.paper.journal.row_check import check_rows
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.monitoring.status import Metrics, orders, status
from finrl_pod.paper.runtime.daemon import record_settings
from finrl_pod.paper.settings import TimingSettings
from tests.paper.factories import PartialFillBroker, SimulatedDaemon, config


@pytest.fixture(scope="module")
def traded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of three traded sessions."""
    folder = tmp_path_factory.mktemp("journal")
    sim = SimulatedDaemon(folder, config(timing=TimingSettings(poll=1800.0)), kind=PartialFillBroker)
    record_settings(sim.store, sim.config, sim.clock.now())
    sim.day(date(2024, 1, 11))
    sim.store.close()
    return sim.journal


@pytest.fixture
def path(traded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(traded, tmp_path / "journal.sqlite"))


def change(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement)
    connection.close()


def test_rows_of_a_whole_journal_can_be_read(path: Path) -> None:
    store = Store.open(path)
    check_rows(store)
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "statement"),
    [
        ("commands", "INSERT INTO commands (at, name, arguments) VALUES ('yesterday', 'halt', '{}')"),
        ("commands", "INSERT INTO commands (at, name, arguments) VALUES ('2024-01-02T00:00:00+00:00', 'dance', '{}')"),
        ("fills", "UPDATE fills SET quantity = 'many' WHERE id = 2"),
        ("fills", "UPDATE fills SET price = x'00ff' WHERE id = 2"),
        ("fills", "UPDATE fills SET price = 'NaN' WHERE id = 2"),
        ("intents", "UPDATE intents SET opens = '2024-01-02' WHERE id = 1"),
        ("intents", "UPDATE intents SET side = 'hold' WHERE id = 1"),
        ("order_events", "UPDATE order_events SET state = '' WHERE id = 1"),
        ("orders", "DELETE FROM intents WHERE id = 1"),
        ("targets", "UPDATE targets SET positions = '{' WHERE id = 1"),
        ("targets", "UPDATE targets SET positions = '{\"AA\": 5}' WHERE id = 1"),
        ("decisions", "UPDATE decisions SET state = '[1]' WHERE id = 1"),
        ("decisions", "UPDATE decisions SET bar = 'monday' WHERE id = 1"),
        ("decisions", "UPDATE decisions SET detail = '{' WHERE id = 1"),
        ("decisions", "UPDATE decisions SET detail = '[1]' WHERE id = 1"),
        ("decisions", 'UPDATE decisions SET weights = \'{"AA": "much"}\' WHERE weights IS NOT NULL'),
        ("settings", "UPDATE settings SET content = '[1]' WHERE id = 1"),
        ("cash_marks", "UPDATE cash_marks SET cash = '1,5' WHERE id = 1"),
    ],
)
def test_unreadable_row_is_named(path: Path, table: str, statement: str) -> None:
    change(path, statement)
    store = Store.open(path)
    with pytest.raises(JournalError, match=rf"row \d+ of table ({table}|intent_events) .* cannot be read"):
        check_rows(store)
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["status", "orders", "gains", "verify", "halt", "track", "track --journal"])
def test_commands_name_the_damaged_row(path: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    change(path, "UPDATE decisions SET detail = 'nothing' WHERE outcome = 'orders'")
    name, *options = command.split()
    settings = path.with_name("paper.toml")
    settings.write_text(f'symbols = ["AA"]\nstrategy = "equal_weight"\njournal = "{path}"\n')
    code = main.run(["paper", name, *(options or [str(settings)]), *([str(path)] if options else [])])
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (2, 1)
    assert "of table decisions in journal" in error
    with pytest.raises(JournalError, match="cannot be read"):
        recorded_settings(path)


@pytest.mark.slow
def test_random_damage_of_the_file_is_refused_or_harmless(path: Path) -> None:
    """Each page is overwritten, or random bytes of it: no exception but JournalError leaves, whatever is read then."""
    content, draw = path.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(40):
        damaged, start = bytearray(content), draw.randrange(len(content) // 4096) * 4096
        length = draw.choice((1, 8, 100, 4096))
        start += draw.randrange(4097 - length)
        damaged[start : start + length] = draw.randbytes(length)
        path.write_bytes(damaged)
        for companion in path.parent.glob(f"{path.name}-*"):
            companion.unlink()
        store = None
        try:
            store = Store.open(path)
            check_rows(store)
            Ledger(store)
            for read in (orders, lambda store: status(store, config()), lambda store: Metrics(store, config())()):
                read(store)
        except JournalError:
            refused += 1
        finally:
            if store is not None:
                store.close()
    assert refused > 10
