"""Further faults against the real daemon process: a second daemon, damaged bars, refused keys."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from finrl_pod.fake_alpaca.faults import Fault
from tests.paper.process.harness import SYMBOLS, TIMEOUT, DaemonHarness, environment
from tests.soak.consistency import check_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonHarness]:
    with DaemonHarness(tmp_path_factory.mktemp("rows")) as harness:
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        bar = harness.days[0].date.isoformat()
        edit = {("AAPL", bar): {"c": 0}, ("AMD", bar): {}, ("BAC", bar): {"c": math.nan}}

        def damage() -> None:
            harness.slow_clock()
            harness.server.data.flaws.edits.update(edit)

        harness.run_until(harness.days[0].close + 600, damage)
        first = harness.daemon
        harness.second = harness.launch().wait()  # type: ignore[attr-defined]
        harness.daemon = first
        harness.run_clock()
        harness.run_until(harness.days[1].close + 600, lambda: stop_new_bars(harness))
        harness.run_until(harness.days[2].close + 600, harness.slow_clock)
        # The account matches the journal here; the next fault stops the daemon.
        shutil.copy(harness.log, harness.folder / "before.jsonl")
        harness.server.faults.add([Fault("answer", times=0, status=401, body={"message": "unauthorized."})])
        harness.run_clock()
        assert harness.daemon is not None
        harness.code = harness.daemon.wait()  # type: ignore[attr-defined]
        yield harness


def stop_new_bars(harness: DaemonHarness) -> None:
    """Restore the bars and serve no newer ones."""
    harness.server.data.flaws.edits.clear()
    harness.server.data.flaws.stale_after = harness.days[0].date.isoformat()


def test_run_is_consistent(run: DaemonHarness) -> None:
    verdict = check_run(run.folder / "before.jsonl", run.journal)
    assert verdict.faults == []
    assert verdict.facts["decisions"]["orders"] >= 1


def test_second_daemon_on_a_journal_exits(run: DaemonHarness) -> None:
    assert run.second == 2  # type: ignore[attr-defined]
    text = (run.folder / "daemon.log").read_text()
    assert "Traceback" not in text
    assert "finrl-pod: " in text


def test_damaged_and_missing_bars_exclude_only_their_symbols(run: DaemonHarness) -> None:
    bar = run.days[0].date.isoformat()
    damaged = ("AAPL", "AMD", "BAC")
    assert not any(run.posts(bar, symbol) for symbol in damaged)
    assert len([s for s in SYMBOLS if run.orders(bar, s)]) >= 5
    for symbol in damaged:
        assert any(alert.startswith(f"warning prices: {symbol}:") for alert in run.alerts()), run.alerts()


def test_no_decision_without_new_bars(run: DaemonHarness) -> None:
    bar = run.days[1].date.isoformat()
    assert run.query(f"select outcome from decisions where bar = '{bar}'") == [("missed",)]
    assert not [r for r in run.requests("POST", "/v2/orders") if f".{bar.replace('-', '')}." in str(r["body"])]
    alerts = [alert for alert in run.alerts() if alert.startswith("critical unavailable") and "are stale" in alert]
    assert len(alerts) == 1
    assert bar in alerts[0]


def test_refused_keys_stop_the_daemon_with_an_alert_and_exit_code_2(run: DaemonHarness) -> None:
    assert run.code == 2  # type: ignore[attr-defined]
    assert any(alert.startswith("critical keys") for alert in run.alerts())
    refused = [r for r in run.server.log.records if r["kind"] == "request" and r["status"] == 401]
    assert 4 <= len(refused) <= 100
    assert "harness-secret" not in (run.folder / "daemon.log").read_text()


def test_live_address_is_refused_without_sending_requests(run: DaemonHarness) -> None:
    def sent() -> int:  # a stream of the previous daemon may still be closing
        return sum(record["kind"] == "request" for record in run.server.log.records)

    before = sent()
    live = {"": {"strategy": "equal_weight"}, "broker": {"url": "https://api.alpaca.markets", "clock": None}}
    path = run.write_config(live, run.folder / "live.toml")
    command = [sys.executable, "-m", "finrl_pod_app.cli.main", "paper", "run", str(path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 2
    assert "paper-api.alpaca.markets" in done.stderr
    assert "Traceback" not in done.stderr
    assert sent() == before
