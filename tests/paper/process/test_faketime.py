"""Jumps of the host's real clock, by libfaketime, while the daemon runs on the system clock.

Skipped without the library: install it (Debian: libfaketime), or name its file in LIBFAKETIME.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from finrl_pod.fake_alpaca.scaled_clock import Pace
from tests.paper.process.harness import KEYS, DaemonHarness, DaemonProcess, environment
from tests.soak.consistency import check_run

PLACES = (
    os.environ.get("LIBFAKETIME", ""),
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
)
LIBRARY = next((place for place in PLACES if place and Path(place).is_file()), "")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not LIBRARY, reason="libfaketime is not installed")]

BEFORE = datetime(2019, 1, 3, 13, 59, tzinfo=UTC)  # a minute before the decision
UNFINISHED = "select 1 from intents where id not in (select intent_id from intent_events where state = 'done')"
CONFIG = {"broker": {"kind": "alpaca", "clock": None}, "timing": {"poll": 0.5}}
HOUR = 3600
# The library (0.9.10) fails the absolute sleeps of Python on the monotonic clock after a jump; relative ones work.
START = """
import select, sys, time
time.sleep = lambda seconds: select.select([], [], [], max(seconds, 0.0)) and None
from tests.paper.process.daemon_main import add_strategies
add_strategies()
from finrl_pod_app.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


class JumpingClock:
    """The clock that a process sees: real time plus an offset in seconds, changed through a file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "faketime"
        self.set(0)

    def set(self, offset: float) -> None:
        seconds = BEFORE.timestamp() - STARTED + offset
        self.file.write_text(f"{seconds:+.0f}\n")

    @property
    def variables(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": LIBRARY,
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",  # like a clock that is set
        }


STARTED = time.time()


class Process(DaemonProcess):
    """A daemon in a separate interpreter: a preloaded library needs one."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(process.pid)
        self._process = process

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout: float = 60.0) -> int:
        return self._process.wait(timeout)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[tuple[DaemonHarness, JumpingClock]]:
    """Broker at 8:59 in New York, a minute before the decision, with its clock stopped."""
    clock = JumpingClock(tmp_path)
    with DaemonHarness(tmp_path, config=CONFIG, start=date(2019, 1, 3)) as harness:
        harness.server.jump(BEFORE)
        command = [sys.executable, "-c", START, "paper", "run", str(harness.toml)]
        with (tmp_path / "daemon.log").open("wb") as log:
            process = subprocess.Popen(
                command, env=environment(**KEYS, **clock.variables), stdout=log, stderr=subprocess.STDOUT
            )
        harness.daemon = Process(process)
        harness.wait_until_recovered()
        yield harness, clock


def test_jumps_of_the_system_clock_neither_move_nor_repeat_a_decision(
    harness: tuple[DaemonHarness, JumpingClock],
) -> None:
    run, clock = harness
    for offset in (3 * HOUR, -3 * HOUR, 26 * HOUR):  # past the decision, back, and into the next day
        seen = len(run.requests("GET", "/v2/clock"))
        clock.set(offset)
        run.wait(lambda seen=seen: len(run.requests("GET", "/v2/clock")) > seen)  # type: ignore[misc]
        time.sleep(1.5)
        assert run.requests("POST") == []
        assert run.query("select count(*) from decisions") == [(0,)]
    run.server.jump(datetime(2019, 1, 3, 14, 0, 5, tzinfo=UTC))
    run.server.call(lambda: run.server.set_pace(Pace(1.0, 1.0)))
    clock.set(-5 * HOUR)
    run.wait(lambda: 0 < run.query("select count(*) from intents")[0][0] == len(run.requests("POST")))
    clock.set(7 * HOUR)
    run.server.jump(datetime(2019, 1, 3, 14, 31, tzinfo=UTC))
    run.wait(lambda: not run.query(UNFINISHED))
    assert run.query("select bar, outcome from decisions") == [("2019-01-02", "orders")]
    assert any(alert.startswith("warning clock") for alert in run.alerts())
    assert run.stop() == 0
    assert check_run(run.log, run.journal).faults == []
