"""Row 15 against the real daemon process: a universe of 500 symbols is rebalanced within 200 requests a minute."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import date
from decimal import Decimal

import psutil
import pytest

from tests.paper.factories import prices
from tests.paper.process.harness import DaemonHarness
from tests.soak.consistency import RunReport, check_run

pytestmark = pytest.mark.slow

SYMBOLS = tuple(f"S{number:03d}" for number in range(500))
WORKING_PACE = 2.0  # simulated seconds a second: 500 orders are work for a server and a daemon on one machine
LEAD = 1800.0  # seconds before the opening at which the daemon decides
DECISION = 2.0  # seconds


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonHarness]:
    """One day. The daemon's work is looked at just before it wakes up to decide, and when its first order arrives."""
    config = {"": {"strategy": "equal_weight", "symbols": list(SYMBOLS), "capital": 50e6}, "data": {"window": 5}}
    panel = prices(date(2024, 1, 2), date(2024, 1, 31), symbols=SYMBOLS)
    with DaemonHarness(
        tmp_path_factory.mktemp("rows"), config=config, panel=panel, start=date(2024, 1, 16), awake=WORKING_PACE,
        cash=Decimal(60_000_000),
    ) as harness:  # fmt: skip
        daemon = psutil.Process(harness.launch().pid)
        harness.wait_until_recovered()
        harness.worked = []  # type: ignore[attr-defined]

        def look() -> None:
            used = daemon.cpu_times()
            harness.worked.append(used.user + used.system)  # type: ignore[attr-defined]

        harness.server.schedule(harness.days[0].open - LEAD - 1, look)
        harness.on_order_event("pending_new", None, look)
        harness.run_clock()
        harness.run_until(harness.days[0].close + 600, harness.slow_clock)
        harness.code = harness.stop()  # type: ignore[attr-defined]
        yield harness


@pytest.fixture(scope="module")
def verdict(run: DaemonHarness) -> RunReport:
    return check_run(run.log, run.journal)


def test_both_invariants_hold(run: DaemonHarness, verdict: RunReport) -> None:
    assert verdict.faults == []
    assert run.code == 0  # type: ignore[attr-defined]
    assert len(run.orders()) == len(SYMBOLS)
    assert {o.status for o in run.orders()} == {"filled"}


def test_500_symbols_are_bought_within_the_limit_of_requests_and_before_the_cutoff(
    run: DaemonHarness, verdict: RunReport
) -> None:
    assert 150 < verdict.facts["most_requests_in_a_minute"] <= 200
    assert not [r for r in run.requests() if r["status"] == 429]
    last = max(r["arrived"] for r in run.requests("POST", "/v2/orders"))
    assert last < run.days[0].open - 120


def test_a_decision_over_500_symbols_is_the_work_of_two_seconds_at_most(run: DaemonHarness) -> None:
    """From waking up to the first order, in seconds of the daemon's processor, whatever else the machine does."""
    before, after = run.worked  # type: ignore[attr-defined]
    sys.stdout.write(f"a decision over {len(SYMBOLS)} symbols: {after - before:.2f} s of work\n")
    assert after - before <= DECISION
