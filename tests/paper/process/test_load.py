"""Row 15 against the real daemon process: rebalancing 500 symbols within 200 requests per minute."""

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
WORKING_PACE = 2.0  # simulated seconds per second: server and daemon process 500 orders on the same machine
LEAD = 1800.0  # seconds before the opening at which the daemon decides
DECISION = 2.0  # seconds of CPU time


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonHarness]:
    """Run one day, recording the daemon's CPU time before the decision and when its first order arrives."""
    config = {"": {"strategy": "equal_weight", "symbols": list(SYMBOLS), "capital": 50e6}, "data": {"window": 5}}
    panel = prices(date(2024, 1, 2), date(2024, 1, 31), symbols=SYMBOLS)
    with DaemonHarness(
        tmp_path_factory.mktemp("rows"), config=config, panel=panel, start=date(2024, 1, 16), working_pace=WORKING_PACE,
        cash=Decimal(60_000_000),
    ) as harness:  # fmt: skip
        daemon = psutil.Process(harness.launch().pid)
        harness.wait_until_recovered()
        harness.cpu_times = []  # type: ignore[attr-defined]

        def record_cpu_time() -> None:
            used = daemon.cpu_times()
            harness.cpu_times.append(used.user + used.system)  # type: ignore[attr-defined]

        harness.server.schedule(harness.days[0].open - LEAD - 1, record_cpu_time)
        harness.on_order_event("pending_new", None, record_cpu_time)
        harness.run_clock()
        harness.run_until(harness.days[0].close + 600, harness.slow_clock)
        harness.code = harness.stop()  # type: ignore[attr-defined]
        yield harness


@pytest.fixture(scope="module")
def verdict(run: DaemonHarness) -> RunReport:
    return check_run(run.log, run.journal)


def test_run_is_consistent(run: DaemonHarness, verdict: RunReport) -> None:
    assert verdict.faults == []
    assert run.code == 0  # type: ignore[attr-defined]
    assert len(run.orders()) == len(SYMBOLS)
    assert {o.status for o in run.orders()} == {"filled"}


def test_500_symbols_are_bought_within_the_rate_limit_before_the_cutoff(run: DaemonHarness, verdict: RunReport) -> None:
    assert 150 < verdict.facts["most_requests_in_a_minute"] <= 200
    assert not [r for r in run.requests() if r["status"] == 429]
    last = max(r["arrived"] for r in run.requests("POST", "/v2/orders"))
    assert last < run.days[0].open - 120


def test_decision_for_500_symbols_takes_at_most_two_seconds_of_cpu_time(run: DaemonHarness) -> None:
    """From waking up to the first order, in CPU seconds of the daemon."""
    before, after = run.cpu_times  # type: ignore[attr-defined]
    sys.stdout.write(f"decision for {len(SYMBOLS)} symbols: {after - before:.2f} s of CPU time\n")
    assert after - before <= DECISION
