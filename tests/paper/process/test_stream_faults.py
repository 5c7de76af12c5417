"""Rows 20 to 24 against the real daemon process: faults of the stream of order updates.

Five sessions: one without faults; one with a connected but silent stream; one whose connection breaks at fills; one
whose new connections are refused; one with every message duplicated and delayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from finrl_pod.fake_alpaca.faults import Fault
from tests.paper.process.harness import WORKING_PACE, DaemonHarness
from tests.soak.consistency import check_run

pytestmark = pytest.mark.slow

LEAD = 30.0  # minutes before the opening at which orders are sent
DAYS: tuple[tuple[Fault, ...], ...] = (
    (),
    (Fault("silence", event="pending_new", seconds=1e6),),
    (Fault("disconnect", event="fill", times=2),),
    (Fault("disconnect", event="fill"), Fault("refuse", times=3)),
    (Fault("duplicate", event="fill", times=0), Fault("hold", times=0, seconds=0.2)),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonHarness]:
    with DaemonHarness(tmp_path_factory.mktemp("rows")) as harness:
        harness.launch()
        harness.wait_until_recovered()
        for day, faults in zip(harness.days, DAYS, strict=False):

            def morning(faults: tuple[Fault, ...] = faults) -> None:
                harness.server.faults.clear()
                harness.server.faults.add(faults)
                harness.server.hub.end_silence()

            harness.run_clock()
            harness.run_until(day.open - 3600, morning)
            if any(f.kind == "refuse" for f in faults):  # pauses can be compared only while the pace is constant
                harness.run_until(day.open - 5, harness.slow_clock)
                harness.wait(lambda opening=day.open: stream_records(harness, "listening", opening))
                harness.run_clock()
            harness.run_until(day.open + 1200, harness.slow_clock)
            if {f.kind for f in faults} & {"silence", "disconnect"}:  # the stream reconnects eventually
                harness.wait(lambda opening=day.open: stream_records(harness, "listening", opening))
        harness.run_clock()
        harness.run_until(day.close + 600, harness.slow_clock)
        harness.code = harness.stop()  # type: ignore[attr-defined]
        yield harness


def stream_records(
    harness: DaemonHarness, what: str, after: float, until: float = float("inf")
) -> list[dict[str, Any]]:
    """Return the stream's log records between two simulated times."""
    found = [r for r in harness.server.log.records if r["kind"] == "stream" and r["what"] == what]
    return [r for r in found if after <= datetime.fromisoformat(r["at"]).timestamp() < until]


def test_run_is_consistent(run: DaemonHarness) -> None:
    verdict = check_run(run.log, run.journal)
    assert verdict.faults == []
    assert verdict.facts["decisions"] == {"orders": len(DAYS)}
    assert run.code == 0  # type: ignore[attr-defined]


def test_every_fill_is_booked_once_despite_stream_faults(run: DaemonHarness) -> None:
    for number in range(len(DAYS) - 1):
        bar = run.days[number].date.isoformat()
        assert len(run.orders(bar)) >= 5
        assert {o.status for o in run.orders(bar)} == {"filled"}
    assert run.query("select order_id from fills group by order_id, cumulative_quantity having count(*) > 1") == []
    booked = dict(run.query("select source, count(*) from fills group by source"))
    assert booked["fills"] + booked.get("rest", 0) > 5, booked


def test_silent_stream_is_alerted_and_reconnected(run: DaemonHarness) -> None:
    alerts = [alert for alert in run.alerts() if "stale_stream" in alert]
    assert "connected but silent" in alerts[0]
    assert "back" in alerts[1]
    opening = run.days[1].open
    times = run.query("select at from alerts where kind = 'stale_stream' order by id")
    back = datetime.fromisoformat(times[1][0]).timestamp()
    assert back > run.days[2].open - 60 * LEAD  # with the first update of the next session, not at night
    assert stream_records(run, "disconnected", opening, opening + 7200)
    assert stream_records(run, "listening", opening, opening + 7200)
    assert len(stream_records(run, "listening", 0.0, opening)) == 1  # no reconnection before that
    ((late,),) = run.query(
        f"select max(julianday(f.at) - julianday(f.time)) * 86400 from fills f join orders o on f.order_id = o.id "
        f"join intents i on o.intent_id = i.id where i.bar = '{run.days[0].date}'"
    )
    assert late < 180.0  # found by polling


def test_connection_broken_at_fills_is_reopened(run: DaemonHarness) -> None:
    opening = run.days[2].open
    assert len(stream_records(run, "listening", opening - 60, opening + 3600)) >= 1


def test_refused_connection_is_retried_with_increasing_pauses(run: DaemonHarness) -> None:
    opening = run.days[3].open
    refused = stream_records(run, "refused", opening - 60, opening + 7200)
    assert len(refused) == 3
    back = stream_records(run, "listening", opening, opening + 7200)
    assert len(back) == 1
    moments = [r["real"] for r in [*refused, *back]]
    gaps = [WORKING_PACE * (b - a) for a, b in pairwise(moments)]
    assert min(gaps) >= 15.0, gaps  # half of REFUSED_PAUSE, in simulated seconds


def test_at_most_one_stream_session_at_a_time(run: DaemonHarness) -> None:
    connected = 0
    for record in run.server.log.records:
        if record["kind"] == "stream":
            connected += {"connected": 1, "disconnected": -1}.get(record["what"], 0)
            assert connected <= 1
