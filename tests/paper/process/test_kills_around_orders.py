"""Rows 1 to 3, 18 and 19: SIGKILL of the real daemon process before and after a request, and at fills."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from finrl_pod.fake_alpaca.faults import Fault
from tests.paper.process.harness import DaemonHarness
from tests.soak.consistency import check_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonHarness]:
    """Daemons killed before a POST (twice), after the broker accepted it, at a partial fill and a fill."""
    with DaemonHarness(tmp_path_factory.mktemp("rows"), partial=1.0, partial_gap=60.0) as harness:
        days = harness.days
        harness.launch(hooks={"die_before_post": ".20190102.KO."})
        harness.wait_until_recovered()
        harness.run_clock()
        assert harness.daemon is not None
        harness.daemon.wait()  # row 1, restarted in time
        harness.launch(hooks={"die_before_post": ".20190103.KO."})
        harness.run_until(days[1].close)
        harness.daemon.wait()  # row 1, restarted after the opening
        harness.server.call(harness.slow_clock)
        harness.server.schedule(days[2].open + 60)
        harness.server.jump(
            harness.server.clock.now().fromtimestamp(days[2].open + 60, harness.server.clock.now().tzinfo)
        )
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        # Row 2: the response never comes, and the daemon is killed before its timeout.
        harness.run_until(days[2].close, lambda: harness.server.faults.add([hang]))
        accepted = harness.on_order_event("pending_new", "KO", harness.kill)
        harness.wait(accepted.is_set)
        harness.daemon.wait()
        harness.launch()
        # Rows 3 and 19: killed before the first partial fill is reported, and restarted before the second.
        partially_filled = harness.on_order_event("partial_fill", "KO", harness.kill)
        harness.run_clock()
        harness.wait(partially_filled.is_set)
        harness.daemon.wait()
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        # Row 3: killed before the last fill is reported.
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


def test_run_is_consistent(run: DaemonHarness) -> None:
    verdict = check_run(run.log, run.journal)
    assert verdict.faults == []
    assert verdict.facts["most_live_orders_of_an_intent"] == 1
    assert run.code == 0  # type: ignore[attr-defined]


def test_order_of_a_daemon_killed_before_the_post_is_sent_once(run: DaemonHarness) -> None:
    assert len(run.posts("2019-01-02", "KO")) == 1
    (order,) = run.orders("2019-01-02", "KO")
    assert (order.status, str(order.filled)) == ("filled", run.intended("2019-01-02", "KO"))


def test_order_of_a_daemon_killed_before_the_post_expires_after_a_late_restart(run: DaemonHarness) -> None:
    assert run.posts("2019-01-03", "KO") == []
    state = "select e.state from intents i join intent_events e on e.intent_id = i.id where i.bar = '2019-01-03' "
    assert run.query(state + "and i.symbol = 'KO' order by e.id desc limit 1") == [("expired",)]


def test_order_of_a_daemon_killed_after_acceptance_is_adopted(run: DaemonHarness) -> None:
    bar = "2019-01-04"
    assert len(run.posts(bar, "KO")) == len(run.orders(bar, "KO")) == 1
    sources = run.query(
        "select distinct e.source from order_events e join orders o on e.order_id = o.id "
        "where o.client_order_id like '%.20190104.KO.%'"
    )
    assert ("lookup",) in sources


@pytest.mark.parametrize(("bar", "symbol"), [("2019-01-04", "KO"), ("2019-01-07", "XOM")])
def test_fill_of_a_daemon_killed_before_writing_it_is_booked_once(run: DaemonHarness, bar: str, symbol: str) -> None:
    (order,) = run.orders(bar, symbol)
    booked = run.query(
        "select f.quantity from fills f join orders o on f.order_id = o.id "
        f"where o.client_order_id = '{order.client_order_id}'"
    )
    assert len(booked) == 2
    assert sum(float(quantity) for (quantity,) in booked) == float(order.filled)
    assert str(order.filled) == run.intended(bar, symbol)
