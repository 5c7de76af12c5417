"""Rows 1 to 4: SIGKILL of the real daemon process at every journal write of a day."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from finrl_pod.paper.journal.commands import CommandName, enqueue
from finrl_pod.paper.journal.store import Store
from tests.paper.process.harness import DaemonHarness
from tests.soak.consistency import RunReport, check_run, compare_fills

pytestmark = pytest.mark.slow

# Two symbols, one sale and one buy per day, each filled in two parts; fractional shares require DAY orders.
TWO: dict[str, dict[str, Any]] = {
    "": {"strategy": "swapping", "symbols": ["KO", "XOM"]},
    "orders": {"fractional": True},
    "risk": {"max_position": 0.8, "max_order": 0.8},
    "timing": {"poll": 900.0},
}
BEFORE = 31 * 60.0  # seconds before the opening from which writes are counted
MAX_DAYS = 60
MIN_WRITES = 20  # a day has more writes than this


def prepare(harness: DaemonHarness, days: int) -> None:
    """Halt each symbol at the exchange after the first partial fill of its purchase, until the end of the day.

    Half an hour after each opening the daemon is halted by command, which cancels the order, and it is resumed half an
    hour before the close.
    """

    def halt(kind: str, what: dict[str, Any]) -> None:
        if kind == "order" and what["event"] == "partial_fill" and what["order"]["side"] == "buy":
            harness.exchange.conditions.halted_symbols.add(what["order"]["symbol"])
        elif kind == "account" and what["event"] == "close":
            harness.exchange.conditions.halted_symbols.clear()

    harness.exchange.listeners.insert(0, halt)

    def send_command(name: CommandName) -> None:
        store = Store.open(harness.journal)
        enqueue(store, name, harness.server.clock.now())
        store.close()

    for day in harness.days[:days]:
        harness.server.schedule(day.open + 1800, lambda: send_command(CommandName.HALT))
        harness.server.schedule(day.close - 1800, lambda: send_command(CommandName.RESUME))


def run_undisturbed(folder: Path, days: int) -> RunReport:
    """Trade the same days without a kill and return the checked report."""
    folder.mkdir()
    with DaemonHarness(folder, config=TWO, partial=1.0) as harness:
        prepare(harness, days)
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        harness.run_until(harness.days[days - 1].close + 3600, harness.slow_clock)
        assert harness.stop() == 0
    verdict = check_run(harness.log, harness.journal)
    assert verdict.faults == []
    return verdict


@pytest.mark.parametrize(("before", "step"), [(True, 2), (False, 4)], ids=["before the write", "after the write"])
def test_killed_at_the_writes_of_a_day_trades_the_same_orders(tmp_path: Path, before: bool, step: int) -> None:
    """Kill the daemon `step` writes later each day and restart it immediately, until a day has no more writes.

    A kill before a write covers everything since the previous write. A kill after a write differs from one before the
    next write by requests only: kills before writes 1, 3, 5 and after 1, 5, 9 cover three of four gaps between writes
    with real processes. tests/paper/test_recovery.py kills at every write.
    """
    (tmp_path / "killed").mkdir()
    killed = 0
    with DaemonHarness(tmp_path / "killed", config=TWO, partial=1.0) as harness:
        prepare(harness, MAX_DAYS)
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        harness.run_until(harness.days[0].close + 3600, harness.kill)
        for day, number in zip(harness.days[1:], range(1, MAX_DAYS, step), strict=False):
            clock = str(harness.folder / "clock.json")
            where = {"number": number, "before": before, "since": day.open - BEFORE, "clock": clock}
            assert harness.daemon is not None
            assert harness.daemon.wait() == -signal.SIGKILL
            daemon = harness.launch(hooks={"die_at_write": where})
            over = harness.server.schedule(
                day.close + 3600, lambda daemon=daemon: daemon.poll() is not None or harness.slow_clock()
            )
            harness.run_clock()
            harness.wait(lambda over=over, daemon=daemon: over.is_set() or daemon.poll() is not None)
            if daemon.poll() is None:
                break  # the day has fewer writes
            assert not over.is_set()
            killed += 1
        assert daemon.poll() is None, "a day has more writes than MAX_DAYS"
        harness.kill()  # the hook would kill it at one of its last writes
        daemon.wait()
        harness.launch()
        harness.wait_until_recovered()
        assert harness.stop() == 0
    assert killed * step > MIN_WRITES
    verdict = check_run(harness.log, harness.journal)
    assert verdict.faults == []
    assert set(verdict.facts["decisions"]) == {"orders"}
    assert {o.status for o in harness.orders()} == {"filled", "canceled"}
    assert compare_fills(verdict, run_undisturbed(tmp_path / "undisturbed", killed + 2)) == []
