"""Row 40 against the real daemon process: its journal cannot be written, for want of space or because of a lock."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from finrl_pod.fake_alpaca.orders import Order
from finrl_pod.paper.journal.store import BUSY_SECONDS
from tests.paper.process.harness import Rig
from tests.soak.judge import judge

pytestmark = pytest.mark.slow


def with_live_orders(rig: Rig) -> list[Order]:
    """A daemon whose orders wait for their auction, a quarter of an hour before it; time runs slowly from here."""
    rig.launch()
    rig.started()
    rig.go()
    rig.reach(rig.days[1].open - 900, rig.slow)
    live = [o for o in rig.exchange.open_orders() if o.origin == "client"]
    assert len(live) >= 5
    return live


def goes_on(rig: Rig) -> None:
    """The daemon is started again, recovers, and trades another day."""
    rig.launch()
    rig.started()
    rig.go()
    rig.reach(rig.days[2].close + 600, rig.slow)
    assert rig.stop() == 0
    assert judge(rig.log, rig.journal).faults == []
    assert rig.orders(rig.days[1].date.isoformat())


def test_a_full_disk_ends_the_daemon_and_its_live_orders(tmp_path: Path) -> None:
    import resource

    with Rig(tmp_path) as rig:
        live = with_live_orders(rig)
        rig.server.call(rig.still)
        daemon = rig.daemon
        assert daemon is not None
        # No file may grow beyond what the journal's log is now: the next write fails as on a full disk.
        size = Path(f"{rig.journal}-wal").stat().st_size
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (size, size))
        rig.command("reconcile", "--wait", "0")  # something to write an answer to
        assert daemon.wait() == 2
        assert {o.status for o in live} == {"canceled"}
        assert "the journal" in (rig.folder / "daemon.log").read_text()
        goes_on(rig)


@contextlib.contextmanager
def locked(journal: Path) -> Iterator[None]:
    """Another program holds the journal: nobody else can write."""
    with contextlib.closing(sqlite3.connect(journal, isolation_level=None, timeout=60.0)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def by_hand(rig: Rig, order: Order) -> None:
    """Somebody cancels our order at the broker: the daemon has something to write."""
    rig.server.call(lambda: rig.exchange.cancel(order.id, rig.exchange.now))


def written(rig: Rig, order: Order) -> bool:
    """Whether the journal knows that the order ended."""
    of_order = f"join orders o on e.order_id = o.id where o.client_order_id = '{order.client_order_id}'"
    return ("ended",) in rig.rows(f"select e.state from order_events e {of_order}")


def test_a_journal_that_another_program_holds_ends_the_daemon_and_its_live_orders(tmp_path: Path) -> None:
    with Rig(tmp_path, config={"timing": {"poll": 60.0}}, awake=10.0) as rig:
        first, second, *others = with_live_orders(rig)
        daemon = rig.daemon
        assert daemon is not None
        # A lock that is short is waited for.
        with locked(rig.journal):
            by_hand(rig, first)
            time.sleep(BUSY_SECONDS / 5)
            assert not written(rig, first)
        rig.wait(lambda: written(rig, first))
        with locked(rig.journal):
            by_hand(rig, second)
            assert daemon.wait() == 2
            assert {o.status for o in others} == {"canceled"}
            # Nor does another one start on it; nothing is sent.
            sent = len(rig.requests("POST", "/v2/orders"))
            assert rig.launch().wait() == 2
            assert len(rig.requests("POST", "/v2/orders")) == sent
        log = (rig.folder / "daemon.log").read_text()
        assert "is locked" in log
        assert "end that one" in log
        assert "Traceback" not in log
        assert not written(rig, second)
        goes_on(rig)
        assert written(rig, second)
