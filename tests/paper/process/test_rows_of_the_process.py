"""More faults against the real daemon process, one after another: a second daemon, damaged bars, refused keys."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from finrl_pod.fake_alpaca.faults import Fault
from tests.paper.process.harness import PATIENCE, SYMBOLS, Rig, environment
from tests.soak.judge import judge

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("rows")) as rig:
        rig.launch()
        rig.started()
        rig.go()
        bar = rig.days[0].date.isoformat()
        edit = {("AAPL", bar): {"c": 0}, ("AMD", bar): {}, ("BAC", bar): {"c": math.nan}}

        def damage() -> None:
            rig.slow()
            rig.server.data.flaws.edits.update(edit)

        rig.reach(rig.days[0].close + 600, damage)
        first = rig.daemon
        rig.second = rig.launch().wait()  # type: ignore[attr-defined]
        rig.daemon = first
        rig.go()
        rig.reach(rig.days[1].close + 600, lambda: outdate(rig))
        rig.reach(rig.days[2].close + 600, rig.slow)
        # Here the account is as the journal has it: what comes next ends the daemon.
        shutil.copy(rig.log, rig.folder / "before.jsonl")
        rig.server.faults.add([Fault("answer", times=0, status=401, body={"message": "unauthorized."})])
        rig.go()
        assert rig.daemon is not None
        rig.code = rig.daemon.wait()  # type: ignore[attr-defined]
        yield rig


def outdate(rig: Rig) -> None:
    """The bars are sound again, and from now on no new ones come."""
    rig.server.data.flaws.edits.clear()
    rig.server.data.flaws.stale_after = rig.days[0].date.isoformat()


def test_both_invariants_hold(ran: Rig) -> None:
    verdict = judge(ran.folder / "before.jsonl", ran.journal)
    assert verdict.faults == []
    assert verdict.facts["decisions"]["orders"] >= 1


def test_the_second_daemon_on_a_journal_leaves(ran: Rig) -> None:
    assert ran.second == 2  # type: ignore[attr-defined]
    text = (ran.folder / "daemon.log").read_text()
    assert "Traceback" not in text
    assert "finrl-pod: " in text


def test_damaged_and_missing_bars_stop_their_symbols_alone(ran: Rig) -> None:
    bar = ran.days[0].date.isoformat()
    damaged = ("AAPL", "AMD", "BAC")
    assert not any(ran.posts(bar, symbol) for symbol in damaged)
    assert len([s for s in SYMBOLS if ran.orders(bar, s)]) >= 5
    for symbol in damaged:
        assert any(alert.startswith(f"warning prices: {symbol}:") for alert in ran.alerts()), ran.alerts()


def test_without_new_bars_nothing_is_decided(ran: Rig) -> None:
    bar = ran.days[1].date.isoformat()
    assert ran.rows(f"select outcome from decisions where bar = '{bar}'") == [("missed",)]
    assert not [r for r in ran.requests("POST", "/v2/orders") if f".{bar.replace('-', '')}." in str(r["body"])]
    told = [alert for alert in ran.alerts() if alert.startswith("critical unavailable") and "are stale" in alert]
    assert len(told) == 1
    assert bar in told[0]


def test_refused_keys_end_the_daemon_with_an_alert_and_code_2(ran: Rig) -> None:
    assert ran.code == 2  # type: ignore[attr-defined]
    assert any(alert.startswith("critical keys") for alert in ran.alerts())
    refused = [r for r in ran.server.log.records if r["kind"] == "request" and r["status"] == 401]
    assert 1 <= len(refused) <= 3
    assert "rig-secret" not in (ran.folder / "daemon.log").read_text()


def test_with_a_live_address_it_does_not_start_and_sends_nothing(ran: Rig) -> None:
    def sent() -> int:  # a stream of the life before may still be closing
        return sum(record["kind"] == "request" for record in ran.server.log.records)

    before = sent()
    live = {"": {"strategy": "equal_weight"}, "broker": {"url": "https://api.alpaca.markets", "clock": None}}
    path = ran.write_config(live, ran.folder / "live.toml")
    command = [sys.executable, "-m", "finrl_pod_app.cli.main", "paper", "run", str(path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert "paper-api.alpaca.markets" in done.stderr
    assert "Traceback" not in done.stderr
    assert sent() == before
