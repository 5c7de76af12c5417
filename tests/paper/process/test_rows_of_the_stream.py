"""Rows 20 to 24 against the real daemon process: what the stream of updates does, and what becomes of the orders.

Five sessions: an undisturbed one; one with a stream that is connected and says nothing; one whose connection breaks at
fills; one whose new connections are refused; one with every message twice and late.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from finrl_pod.fake_alpaca.faults import Fault
from tests.paper.process.harness import AWAKE, Rig
from tests.soak.judge import judge

pytestmark = pytest.mark.slow

DAYS: tuple[tuple[Fault, ...], ...] = (
    (),
    (Fault("silence", event="pending_new", seconds=1e6),),
    (Fault("disconnect", event="fill", times=2),),
    (Fault("disconnect", event="fill"), Fault("refuse", times=3)),
    (Fault("duplicate", event="fill", times=0), Fault("hold", times=0, seconds=0.2)),
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("rows")) as rig:
        rig.launch()
        rig.started()
        for day, faults in zip(rig.days, DAYS, strict=False):

            def morning(faults: tuple[Fault, ...] = faults) -> None:
                rig.server.faults.clear()
                rig.server.faults.add(faults)
                rig.server.hub.end_silence()

            rig.go()
            rig.reach(day.open - 3600, morning)
            rig.reach(day.open + 1200, rig.slow)
            if {f.kind for f in faults} & {"silence", "disconnect"}:  # it comes back, if not at once
                rig.wait(lambda opening=day.open: happened(rig, "listening", opening))
        rig.go()
        rig.reach(day.close + 600, rig.slow)
        rig.code = rig.stop()  # type: ignore[attr-defined]
        yield rig


def happened(rig: Rig, what: str, after: float, until: float = float("inf")) -> list[dict[str, Any]]:
    """Records of the stream between two simulated moments."""
    found = [r for r in rig.server.log.records if r["kind"] == "stream" and r["what"] == what]
    return [r for r in found if after <= datetime.fromisoformat(r["at"]).timestamp() < until]


def test_both_invariants_hold(ran: Rig) -> None:
    verdict = judge(ran.log, ran.journal)
    assert verdict.faults == []
    assert verdict.facts["decisions"] == {"orders": len(DAYS)}
    assert ran.code == 0  # type: ignore[attr-defined]


def test_every_fill_is_booked_once_whatever_the_stream_did(ran: Rig) -> None:
    for number in range(len(DAYS) - 1):
        bar = ran.days[number].date.isoformat()
        assert len(ran.orders(bar)) >= 5
        assert {o.status for o in ran.orders(bar)} == {"filled"}
    assert ran.rows("select order_id from fills group by order_id, cumulative_quantity having count(*) > 1") == []
    booked = dict(ran.rows("select source, count(*) from fills group by source"))
    assert booked["fills"] + booked.get("rest", 0) > 5, booked


def test_a_silent_stream_raises_an_alarm_and_is_connected_anew(ran: Rig) -> None:
    told = [alert for alert in ran.alerts() if "stale_stream" in alert]
    assert "connected and tells nothing" in told[0]
    assert "back" in told[1]
    opening = ran.days[1].open
    assert happened(ran, "disconnected", opening, opening + 7200)
    assert happened(ran, "listening", opening, opening + 7200)
    assert len(happened(ran, "listening", 0.0, opening)) == 1  # and before that nobody had to connect again
    ((late,),) = ran.rows(
        f"select max(julianday(f.at) - julianday(f.time)) * 86400 from fills f join orders o on f.order_id = o.id "
        f"join intents i on o.intent_id = i.id where i.bar = '{ran.days[0].date}'"
    )
    assert late < 180.0  # found by polling


def test_a_connection_that_breaks_at_fills_is_made_again(ran: Rig) -> None:
    opening = ran.days[2].open
    assert len(happened(ran, "listening", opening - 60, opening + 3600)) >= 1


def test_a_refused_connection_is_tried_again_ever_more_patiently(ran: Rig) -> None:
    opening = ran.days[3].open
    refused = happened(ran, "refused", opening - 60, opening + 7200)
    assert len(refused) == 3
    back = happened(ran, "listening", opening, opening + 7200)
    assert len(back) == 1
    moments = [r["real"] for r in [*refused, *back]]
    gaps = [AWAKE * (b - a) for a, b in pairwise(moments)]
    assert min(gaps) >= 15.0, gaps  # half of REFUSED_PAUSE, in simulated seconds


def test_there_is_one_session_at_any_time(ran: Rig) -> None:
    connected = 0
    for record in ran.server.log.records:
        if record["kind"] == "stream":
            connected += {"connected": 1, "disconnected": -1}.get(record["what"], 0)
            assert connected <= 1
