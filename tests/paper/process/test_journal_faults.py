"""Row 40 against the real daemon process: the journal cannot be written because of a full disk or a lock."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from finrl_pod.fake_alpaca.account import Order
from finrl_pod.paper.journal.store import BUSY_SECONDS, Store
from finrl_pod.paper.monitoring.status import orders as order_rows
from finrl_pod.paper.monitoring.status import status
from finrl_pod.paper.settings import load
from tests.paper.process.harness import KEYS, DaemonHarness
from tests.soak.consistency import check_run

pytestmark = pytest.mark.slow


def run_until_orders_are_live(harness: DaemonHarness) -> list[Order]:
    """Run a daemon until its orders are live, 15 minutes before the auction, and slow the clock down."""
    harness.launch()
    harness.wait_until_recovered()
    harness.run_clock()
    harness.run_until(harness.days[1].open - 900, harness.slow_clock)
    live = [o for o in harness.exchange.open_orders() if o.origin == "client"]
    assert len(live) >= 5
    return live


def restart_and_trade(harness: DaemonHarness) -> None:
    """Restart the daemon and check that it recovers and trades another day."""
    harness.launch()
    harness.wait_until_recovered()
    harness.run_clock()
    harness.run_until(harness.days[2].close + 600, harness.slow_clock)
    assert harness.stop() == 0
    assert check_run(harness.log, harness.journal).faults == []
    assert harness.orders(harness.days[1].date.isoformat())


def test_full_disk_stops_the_daemon_and_cancels_live_orders(tmp_path: Path) -> None:
    import resource

    with DaemonHarness(tmp_path) as harness:
        live = run_until_orders_are_live(harness)
        harness.server.call(harness.stop_clock)
        daemon = harness.daemon
        assert daemon is not None
        # No file may grow beyond the journal's current WAL size: the next write fails as on a full disk.
        size = Path(f"{harness.journal}-wal").stat().st_size
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (size, size))
        harness.command("reconcile", "--wait", "0")  # its result must be written
        assert daemon.wait() == 2
        assert {o.status for o in live} == {"canceled"}
        assert "the journal" in (harness.folder / "daemon.log").read_text()
        restart_and_trade(harness)


@contextlib.contextmanager
def locked(journal: Path) -> Iterator[None]:
    """Hold a write lock on the journal from another connection."""
    with contextlib.closing(sqlite3.connect(journal, isolation_level=None, timeout=60.0)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def cancel_manually(harness: DaemonHarness, order: Order) -> None:
    """Cancel an order at the broker externally, which the daemon has to write."""
    harness.server.call(lambda: harness.exchange.cancel(order.id, harness.exchange.now))


def end_is_recorded(harness: DaemonHarness, order: Order) -> bool:
    """Return whether the journal records the end of the order."""
    of_order = f"join orders o on e.order_id = o.id where o.client_order_id = '{order.client_order_id}'"
    return ("ended",) in harness.query(f"select e.state from order_events e {of_order}")


def test_locked_journal_stops_the_daemon_and_cancels_live_orders(tmp_path: Path) -> None:
    with DaemonHarness(tmp_path, config={"timing": {"poll": 60.0}}, working_pace=10.0) as harness:
        first, second, *others = run_until_orders_are_live(harness)
        daemon = harness.daemon
        assert daemon is not None
        # The daemon waits for a short lock.
        with locked(harness.journal):
            cancel_manually(harness, first)
            time.sleep(BUSY_SECONDS / 5)
            assert not end_is_recorded(harness, first)
        harness.wait(lambda: end_is_recorded(harness, first))
        with locked(harness.journal):
            cancel_manually(harness, second)
            assert daemon.wait() == 2
            assert {o.status for o in others} == {"canceled"}
            # A second daemon does not start either, and sends nothing.
            sent = len(harness.requests("POST", "/v2/orders"))
            assert harness.launch().wait() == 2
            assert len(harness.requests("POST", "/v2/orders")) == sent
        log = (harness.folder / "daemon.log").read_text()
        assert "is locked" in log
        assert "stop that program" in log
        assert "Traceback" not in log
        assert not end_is_recorded(harness, second)
        restart_and_trade(harness)
        assert end_is_recorded(harness, second)


def lose(harness: DaemonHarness, content: bytes | None = None) -> None:
    for file in harness.folder.glob("journal.sqlite*"):
        file.unlink()
    if content is not None:
        harness.journal.write_bytes(content)


def books(harness: DaemonHarness) -> tuple[Any, ...]:
    """Own positions and cash, the number of fills, and the orders, as `paper status` and `paper orders` show them."""
    store = Store.open(harness.journal)
    found = status(store, load(harness.toml))
    rows = sorted((o.client_order_id, o.symbol, o.side, str(o.quantity), float(o.filled)) for o in order_rows(store))
    store.close()
    positions = {symbol: str(shares) for symbol, shares in found.positions.items()}
    return positions, str(found.cash), found.counts["fills"], rows


def adopted(harness: DaemonHarness, *options: str) -> dict[str, Any]:
    done = harness.command("adopt", "--json", *options, **KEYS)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_lost_journal_stops_the_daemon_until_it_is_rebuilt(tmp_path: Path) -> None:
    """The files are deleted, or the main file lost its WAL, after a kill at the end of a traded session.

    The config names the journal by a link.
    """
    (tmp_path / "link.sqlite").symlink_to("journal.sqlite")
    with DaemonHarness(tmp_path, config={"": {"journal": "link.sqlite"}}, partial=0.5) as harness:
        harness.start()
        harness.run_until(harness.days[1].close + 600, harness.kill)
        assert harness.daemon is not None
        harness.daemon.wait()
        harness.server.call(harness.stop_clock)
        main, right, orders = harness.journal.read_bytes(), books(harness), len(harness.exchange.orders)
        assert orders > 5
        for content in (None, main):
            lose(harness, content)
            (tmp_path / "daemon.log").unlink()
            assert harness.launch().wait() == 2
            log = (tmp_path / "daemon.log").read_text()
            assert '"level": "critical"' in log
            assert "journal" in log
            assert "Traceback" not in log
        shown = adopted(harness)
        assert (shown["positions"], shown["written"]) == (right[0], False)
        assert harness.launch().wait() == 2
        written = adopted(harness, "--yes")
        assert (written["positions"], written["cash"], written["fills"], written["written"]) == (*right[:3], True)
        assert Path(written["kept"]).read_bytes()
        assert books(harness) == right
        assert (tmp_path / "link.sqlite").readlink() == Path("journal.sqlite")
        assert len(harness.exchange.orders) == orders
        assert not harness.requests("DELETE")
        again = harness.command("adopt", "--yes", **KEYS)
        assert (again.returncode, "nothing is to be rebuilt" in again.stderr) == (2, True)
        harness.start()
        harness.run_until(harness.days[2].close + 600, harness.slow_clock)
        assert harness.stop() == 0
        assert harness.orders(harness.days[1].date.isoformat())
        assert not [alert for alert in harness.alerts() if alert.startswith("critical")]
        assert check_run(harness.log, harness.journal).faults == []
