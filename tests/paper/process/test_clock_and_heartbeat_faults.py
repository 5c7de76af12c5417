"""Rows 28, 32 and 42: calendars, clocks, reset accounts and a hanging loop against the real daemon process."""

from __future__ import annotations

import json
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.paper.process.harness import DaemonHarness
from tests.soak.consistency import check_run

pytestmark = pytest.mark.slow

NEW_YORK = ZoneInfo("America/New_York")


def test_half_days_holidays_and_daylight_saving_with_a_wrong_host_clock(tmp_path: Path) -> None:
    """The host is in Tokyo with its clock five minutes ahead; the broker's clock and the exchange calendar are used."""
    config = {"schedule": {"mode": "close", "lead_minutes": 20.0}}
    with DaemonHarness(tmp_path, config=config, start=date(2019, 3, 8)) as harness:
        harness.launch(TZ="Asia/Tokyo", hooks={"offset_clock": 300.0})
        harness.wait_until_recovered()
        harness.run_clock()
        harness.run_until(harness.days[1].close + 1800, lambda: (harness.kill(), harness.stop_clock()))
        assert harness.daemon is not None
        harness.daemon.wait()
        harness.server.jump(datetime(2019, 7, 2, 21, 0, tzinfo=UTC))
        harness.launch(TZ="Asia/Tokyo", hooks={"offset_clock": 300.0})
        harness.wait_until_recovered()
        harness.run_clock()
        (last,) = [s for s in harness.days if s.date == date(2019, 7, 5)]
        harness.run_until(last.close + 600, harness.slow_clock)
        assert harness.stop() == 0
        assert check_run(harness.log, harness.journal).faults == []
        sent: dict[str, set[str]] = {}
        for post in harness.requests("POST", "/v2/orders"):
            at = datetime.fromtimestamp(post["arrived"], NEW_YORK)
            sent.setdefault(f"{at:%Y-%m-%d}", set()).add(f"{at:%H:%M}")
        # 20 minutes before the close, also on the half day of 3 July. Daylight saving started on 10 March.
        assert set(sent) == {"2019-03-08", "2019-03-11", "2019-07-03", "2019-07-05"}
        assert min(sent["2019-07-03"]) >= "12:40"
        assert max(sent["2019-07-03"]) < "12:50"
        for day in ("2019-03-08", "2019-03-11", "2019-07-05"):
            assert min(sent[day]) >= "15:40"
            assert max(sent[day]) < "15:50"
        assert any(alert.startswith("warning clock") and "+300 s" in alert for alert in harness.alerts())
        missed = harness.query("select count(*) from decisions where outcome = 'missed'")
        assert missed[0][0] > 70  # one for each session while the daemon was down


def test_account_that_changed_while_idle_is_not_traded(tmp_path: Path) -> None:
    with DaemonHarness(tmp_path) as harness:
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        days = harness.days

        def add_cash() -> None:
            harness.exchange.ledger.cash += 5_000

        harness.run_until(days[0].close + 600, add_cash)
        harness.run_until(days[1].close + 600, harness.slow_clock)
        assert harness.orders(days[0].date.isoformat()) == []
        assert any("5000" in alert.replace(",", "") or "in cash" in alert for alert in harness.alerts())
        done = harness.command("reconcile", "--acknowledge", "--wait", "60", "--json")
        assert "1 differences acknowledged" in json.loads(done.stdout)["outcome"]
        harness.run_clock()
        harness.run_until(days[2].close + 600, harness.slow_clock)
        assert harness.orders(days[1].date.isoformat())
        harness.server.call(lambda: harness.exchange.reset(harness.server.settings.cash, harness.exchange.now))
        sent = len(harness.requests("POST", "/v2/orders"))
        harness.run_clock()
        harness.run_until(days[3].close + 600, lambda: (harness.kill(), harness.stop_clock()))
        assert harness.daemon is not None
        harness.daemon.wait()
        assert len(harness.requests("POST", "/v2/orders")) == sent
        assert harness.launch().wait() == 2  # the account id has changed
        assert "belongs to account" in (harness.folder / "daemon.log").read_text()


@pytest.fixture
def watchdog(tmp_path: Path) -> Iterator[socket.socket]:
    """The notify socket of systemd."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.settimeout(0.02)
        yield made


def test_hanging_loop_is_reported_by_heartbeat_health_and_watchdog(tmp_path: Path, watchdog: socket.socket) -> None:
    freeze = tmp_path / "freeze"
    freeze.touch()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with DaemonHarness(tmp_path, config={"monitoring": {"heartbeat": "heartbeat.json", "port": port}}) as harness:
        harness.launch(hooks={"stall_while": str(freeze)}, NOTIFY_SOCKET=str(tmp_path / "notify"))
        harness.wait_until_recovered()
        harness.wait(lambda: health(port) == 200)
        assert notifications(watchdog)
        harness.run_clock()
        # It may be unhealthy briefly after the clock ran fast; while it hangs it sends nothing.
        harness.wait(lambda: health(port) == 503 and no_notification(watchdog))
        stale = os.stat(harness.folder / "heartbeat.json").st_mtime
        assert no_notification(watchdog)
        assert os.stat(harness.folder / "heartbeat.json").st_mtime == stale
        freeze.unlink()
        harness.wait(lambda: health(port) == 200)
        assert notifications(watchdog)
        harness.run_until(harness.days[0].close, harness.slow_clock)
        assert harness.stop() == 0


def health(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def no_notification(watchdog: socket.socket) -> bool:
    """Return True if no watchdog notification arrives for two seconds."""
    notifications(watchdog)
    time.sleep(2.0)
    return not notifications(watchdog)


def notifications(watchdog: socket.socket) -> list[bytes]:
    """Return the watchdog notifications received since the last call."""
    found = []
    while True:
        try:
            found.append(watchdog.recv(100))
        except TimeoutError:
            return [message for message in found if b"WATCHDOG=1" in message]
