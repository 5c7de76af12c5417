"""Row 15 against the real daemon process: a universe of 500 symbols is rebalanced within 200 requests a minute."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import date
from decimal import Decimal

import psutil
import pytest

from tests.paper.made import prices
from tests.paper.process.harness import Rig
from tests.soak.judge import Verdict, judge

pytestmark = pytest.mark.slow

SYMBOLS = tuple(f"S{number:03d}" for number in range(500))
AWAKE = 2.0  # simulated seconds a second: 500 orders are work for a server and a daemon on one machine
LEAD = 1800.0  # seconds before the opening at which the daemon decides
DECISION = 2.0  # seconds


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One day. The daemon's work is looked at just before it wakes up to decide, and when its first order arrives."""
    config = {"": {"strategy": "equal_weight", "symbols": list(SYMBOLS), "capital": 50e6}, "data": {"window": 5}}
    panel = prices(date(2024, 1, 2), date(2024, 1, 31), symbols=SYMBOLS)
    with Rig(
        tmp_path_factory.mktemp("rows"), config=config, panel=panel, start=date(2024, 1, 16), awake=AWAKE,
        cash=Decimal(60_000_000),
    ) as rig:  # fmt: skip
        daemon = psutil.Process(rig.launch().pid)
        rig.started()
        rig.worked = []  # type: ignore[attr-defined]

        def look() -> None:
            used = daemon.cpu_times()
            rig.worked.append(used.user + used.system)  # type: ignore[attr-defined]

        rig.server.schedule(rig.days[0].open - LEAD - 1, look)
        rig.on("pending_new", None, look)
        rig.go()
        rig.reach(rig.days[0].close + 600, rig.slow)
        rig.code = rig.stop()  # type: ignore[attr-defined]
        yield rig


@pytest.fixture(scope="module")
def verdict(ran: Rig) -> Verdict:
    return judge(ran.log, ran.journal)


def test_both_invariants_hold(ran: Rig, verdict: Verdict) -> None:
    assert verdict.faults == []
    assert ran.code == 0  # type: ignore[attr-defined]
    assert len(ran.orders()) == len(SYMBOLS)
    assert {o.status for o in ran.orders()} == {"filled"}


def test_500_symbols_are_bought_within_the_limit_of_requests_and_before_the_cutoff(ran: Rig, verdict: Verdict) -> None:
    assert 150 < verdict.facts["most_requests_in_a_minute"] <= 200
    assert not [r for r in ran.requests() if r["status"] == 429]
    last = max(r["arrived"] for r in ran.requests("POST", "/v2/orders"))
    assert last < ran.days[0].open - 120


def test_a_decision_over_500_symbols_is_the_work_of_two_seconds_at_most(ran: Rig) -> None:
    """From waking up to the first order, in seconds of the daemon's processor, whatever else the machine does."""
    before, after = ran.worked  # type: ignore[attr-defined]
    sys.stdout.write(f"a decision over {len(SYMBOLS)} symbols: {after - before:.2f} s of work\n")
    assert after - before <= DECISION
