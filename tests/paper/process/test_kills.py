"""Rows 1 to 4, 18 and 19: SIGKILL of the real daemon process, at every write of a day and where it hurts most."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from finrl_pod.fake_alpaca.faults import Fault
from finrl_pod.paper.journal.commands import CommandName, enqueue
from finrl_pod.paper.journal.store import Store
from tests.paper.process.harness import DaemonHarness
from tests.soak.consistency import RunReport, check_run, compare_fills

pytestmark = pytest.mark.slow

# Two symbols, one sale and one purchase a day, each filled in two parts; fractions, so that they are DAY orders.
TWO: dict[str, dict[str, Any]] = {
    "": {"strategy": "swapping", "symbols": ["KO", "XOM"]},
    "orders": {"fractional": True},
    "risk": {"max_position": 0.8, "max_order": 0.8},
    "timing": {"poll": 900.0},
}
BEFORE = 31 * 60.0  # seconds before the opening at which a day's writes begin to count
LIMIT = 60  # days
WRITES = 20  # more than so many has a day


def prepare(harness: DaemonHarness, days: int) -> None:
    """After its first part every purchase waits for the rest in vain: trading in it is halted for the day. Half an hour
    after each opening somebody tells the daemon to halt, which cancels it, and to resume before the close.
    """

    def halt(kind: str, what: dict[str, Any]) -> None:
        if kind == "order" and what["event"] == "partial_fill" and what["order"]["side"] == "buy":
            harness.exchange.conditions.halted.add(what["order"]["symbol"])
        elif kind == "account" and what["event"] == "close":
            harness.exchange.conditions.halted.clear()

    harness.exchange.listeners.insert(0, halt)

    def tell(name: CommandName) -> None:
        store = Store.open(harness.journal)
        enqueue(store, name, harness.server.clock.now())
        store.close()

    for day in harness.days[:days]:
        harness.server.schedule(day.open + 1800, lambda: tell(CommandName.HALT))
        harness.server.schedule(day.close - 1800, lambda: tell(CommandName.RESUME))


def undisturbed(folder: Path, days: int) -> RunReport:
    """The same days without a kill."""
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


@pytest.mark.parametrize(("before", "step"), [(True, 1), (False, 4)], ids=["before the write", "after the write"])
def test_dying_at_every_write_changes_nothing(tmp_path: Path, before: bool, step: int) -> None:
    """Each day the daemon dies at a later write of that day, and is started again at once, until a day has no more.

    A write that is not there yet stands for everything between it and the one before; what dies just after a write has
    done nothing else than what dies before the next one, requests apart: every fourth of those is enough.
    """
    (tmp_path / "killed").mkdir()
    killed = 0
    with DaemonHarness(tmp_path / "killed", config=TWO, partial=1.0) as harness:
        prepare(harness, LIMIT)
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        harness.run_until(harness.days[0].close + 3600, harness.kill)
        for day, number in zip(harness.days[1:], range(1, LIMIT, step), strict=False):
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
                break  # the day has no write of that number
            assert not over.is_set()
            killed += 1
        assert daemon.poll() is None, "a day has more writes than days were made ready"
        harness.kill()  # the hook would end it at one of its last writes
        daemon.wait()
        harness.launch()
        harness.wait_until_recovered()
        assert harness.stop() == 0
    assert killed * step > WRITES
    verdict = check_run(harness.log, harness.journal)
    assert verdict.faults == []
    assert set(verdict.facts["decisions"]) == {"orders"}
    assert {o.status for o in harness.orders()} == {"filled", "canceled"}
    assert compare_fills(verdict, undisturbed(tmp_path / "undisturbed", killed + 2)) == []


# ---------------------------------------------------------------------- where it hurts most


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonHarness]:
    """One daemon after the other: killed before a POST, twice; after the broker took it; at a fill, and at a part."""
    with DaemonHarness(tmp_path_factory.mktemp("rows"), partial=1.0, partial_gap=60.0) as harness:
        days = harness.days
        harness.launch(hooks={"die_before_post": ".20190102.KO."})
        harness.wait_until_recovered()
        harness.run_clock()
        assert harness.daemon is not None
        harness.daemon.wait()  # row 1, in time
        harness.launch(hooks={"die_before_post": ".20190103.KO."})
        harness.run_until(days[1].close)
        harness.daemon.wait()  # row 1, too late: it sleeps over the opening
        harness.server.call(harness.slow_clock)
        harness.server.schedule(days[2].open + 60)
        harness.server.jump(
            harness.server.clock.now().fromtimestamp(days[2].open + 60, harness.server.clock.now().tzinfo)
        )
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        # Row 2: the answer never comes, and the daemon is dead before it notices.
        harness.run_until(days[2].close, lambda: harness.server.faults.add([hang]))
        taken = harness.on_order_event("pending_new", "KO", harness.kill)
        harness.wait(taken.is_set)
        harness.daemon.wait()
        harness.launch()
        # Row 3 and 19: dead before anybody tells it of a first part, and up again before the second one.
        parted = harness.on_order_event("partial_fill", "KO", harness.kill)
        harness.run_clock()
        harness.wait(parted.is_set)
        harness.daemon.wait()
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        # Row 3: the same with a last part.
        harness.run_until(days[4].open - 600)
        filled = harness.on_order_event("fill", "XOM", harness.kill)
        harness.wait(filled.is_set)
        harness.daemon.wait()
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        harness.run_until(days[5].close + 600, harness.slow_clock)
        harness.code = harness.stop()  # type: ignore[attr-defined]
        yield harness


hang = Fault("hang_after", method="POST", path="/v2/orders$", symbol="KO", seconds=30.0)


def test_both_invariants_hold(run: DaemonHarness) -> None:
    verdict = check_run(run.log, run.journal)
    assert verdict.faults == []
    assert verdict.facts["most_live_orders_of_an_intent"] == 1
    assert run.code == 0  # type: ignore[attr-defined]


def test_killed_before_the_post_the_order_is_sent_once_after_the_restart(run: DaemonHarness) -> None:
    assert len(run.posts("2019-01-02", "KO")) == 1
    (order,) = run.orders("2019-01-02", "KO")
    assert (order.status, str(order.filled)) == ("filled", run.intended("2019-01-02", "KO"))


def test_killed_before_the_post_and_started_too_late_it_is_expired(run: DaemonHarness) -> None:
    assert run.posts("2019-01-03", "KO") == []
    state = "select e.state from intents i join intent_events e on e.intent_id = i.id where i.bar = '2019-01-03' "
    assert run.query(state + "and i.symbol = 'KO' order by e.id desc limit 1") == [("expired",)]


def test_killed_after_the_broker_took_it_the_order_is_adopted(run: DaemonHarness) -> None:
    bar = "2019-01-04"
    assert len(run.posts(bar, "KO")) == len(run.orders(bar, "KO")) == 1
    sources = run.query(
        "select distinct e.source from order_events e join orders o on e.order_id = o.id "
        "where o.client_order_id like '%.20190104.KO.%'"
    )
    assert ("lookup",) in sources


@pytest.mark.parametrize(("bar", "symbol"), [("2019-01-04", "KO"), ("2019-01-07", "XOM")])
def test_killed_between_a_fill_and_its_write_the_fill_is_booked_once(run: DaemonHarness, bar: str, symbol: str) -> None:
    (order,) = run.orders(bar, symbol)
    booked = run.query(
        "select f.quantity from fills f join orders o on f.order_id = o.id "
        f"where o.client_order_id = '{order.client_order_id}'"
    )
    assert len(booked) == 2
    assert sum(float(quantity) for (quantity,) in booked) == float(order.filled)
    assert str(order.filled) == run.intended(bar, symbol)
