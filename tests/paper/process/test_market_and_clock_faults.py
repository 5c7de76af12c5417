"""Rows 26 to 28, 32, 38 and 42 against the real daemon process: prices, calendars, clocks, accounts, its own loop."""

from __future__ import annotations

import json
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from finrl_pod.data.panel import make_panel
from finrl_pod.fake_alpaca.settings import CorporateAction
from finrl_pod.types import Panel
from tests.paper.factories import prices
from tests.paper.process.harness import DaemonHarness
from tests.soak.consistency import check_run

pytestmark = pytest.mark.slow

NEW_YORK = ZoneInfo("America/New_York")
JUMP = date(2024, 2, 14)


def jumping() -> Panel:
    """BB loses 35% and CC half overnight before the session of JUMP; AA's split on that day is the broker's to tell.

    AA's prices are those after it, as the stand-in takes them.
    """
    made = prices()
    late = made.times.astype("datetime64[D]") >= np.datetime64(JUMP)
    factor = np.ones((len(made.times), 3))
    factor[late, 1], factor[late, 2] = 0.65, 0.5
    columns = {name: np.round(getattr(made, name) * factor, 2) for name in ("open", "high", "low", "close")}
    columns["low"] = np.minimum(columns["low"], np.minimum(columns["open"], columns["close"]))
    return make_panel(made.times, list(made.symbols), {**columns, "volume": made.volume}, name="made", source="made")


@pytest.mark.parametrize(("new", "old"), [(2.0, 1.0), (1.0, 4.0)], ids=["split", "reverse split"])
def test_a_split_is_booked_a_real_move_trades_on_and_a_jump_halts_its_symbol(
    tmp_path: Path, new: float, old: float
) -> None:
    split = CorporateAction("AA", JUMP.isoformat(), "split", new=new, old=old)
    config = {"": {"symbols": ["AA", "BB", "CC"]}, "data": {"window": 20}, "orders": {"collar": 0.2}}
    with DaemonHarness(tmp_path, config=config, panel=jumping(), start=date(2024, 2, 12), actions=(split,)) as harness:
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        before: list[Any] = []
        (day,) = [s for s in harness.days if s.date == JUMP]
        symbols = ("AA", "BB", "CC")
        harness.run_until(
            day.open - 7 * 3600, lambda: before.append({s: harness.exchange.ledger.qty(s) for s in symbols})
        )
        harness.run_until(harness.days[4].close + 600, harness.slow_clock)
        assert harness.stop() == 0
        verdict = check_run(harness.log, harness.journal)
        assert verdict.faults == []
        booked = harness.query("select kind, symbol, own_change from corporate_actions")
        ratio = Decimal(new) / Decimal(old)
        change = before[0]["AA"] * (ratio - 1)
        assert [(kind, symbol, Decimal(c)) for kind, symbol, c in booked] == [("split", "AA", change)]
        row = harness.days.index(day) - 1
        panel, bar = jumping(), harness.days[row].date.isoformat()
        (closes,) = panel.close[panel.times.astype("datetime64[D]") == np.datetime64(bar)]
        sized = harness.query(f"select reference_price from intents where symbol = 'AA' and bar = '{bar}'")
        assert [float(price) for (price,) in sized] == [pytest.approx(closes[0])]  # of a share after the split
        value = sum(
            float(before[0][symbol] * (ratio if symbol == "AA" else 1)) * close
            for symbol, close in zip(panel.symbols, closes.tolist(), strict=True)
        )
        ((equity, cash),) = harness.query(f"select equity, cash from equity where session = '{bar}'")
        assert float(equity) - float(cash) == pytest.approx(value)  # the night made nobody richer
        told = [alert for alert in harness.alerts() if "symbol_halted" in alert]
        assert len(told) == 1
        assert "CC is halted until acknowledged" in told[0]
        after = {o.symbol for o in harness.orders(JUMP.isoformat())}
        assert "BB" in after
        assert "CC" not in after


def test_half_days_holidays_and_daylight_saving_whatever_the_host_thinks(tmp_path: Path) -> None:
    """The host lives in Tokyo and its clock is five minutes ahead; the broker's clock and calendar rule."""
    config = {"schedule": {"mode": "close", "lead_minutes": 20.0}}
    with DaemonHarness(tmp_path, config=config, start=date(2019, 3, 8)) as harness:
        harness.launch(TZ="Asia/Tokyo", hooks={"wrong_clock": 300.0})
        harness.wait_until_recovered()
        harness.run_clock()
        harness.run_until(harness.days[1].close + 1800, lambda: (harness.kill(), harness.stop_clock()))
        assert harness.daemon is not None
        harness.daemon.wait()
        harness.server.jump(datetime(2019, 7, 2, 21, 0, tzinfo=UTC))
        harness.launch(TZ="Asia/Tokyo", hooks={"wrong_clock": 300.0})
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
        # 20 minutes before the close: of whole days, and of 3 July's half one. The clocks were changed on 10 March.
        assert set(sent) == {"2019-03-08", "2019-03-11", "2019-07-03", "2019-07-05"}
        assert min(sent["2019-07-03"]) >= "12:40"
        assert max(sent["2019-07-03"]) < "12:50"
        for day in ("2019-03-08", "2019-03-11", "2019-07-05"):
            assert min(sent[day]) >= "15:40"
            assert max(sent[day]) < "15:50"
        assert any(alert.startswith("warning clock") and "+300 s" in alert for alert in harness.alerts())
        missed = harness.query("select count(*) from decisions where outcome = 'missed'")
        assert missed[0][0] > 70  # each one that the months in between would have had


def test_an_account_that_is_not_as_it_was_left_is_not_traded(tmp_path: Path) -> None:
    with DaemonHarness(tmp_path) as harness:
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        days = harness.days

        def gift() -> None:
            harness.exchange.ledger.cash += 5_000

        harness.run_until(days[0].close + 600, gift)
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
        assert harness.launch().wait() == 2  # the account has another number now
        assert "belongs to account" in (harness.folder / "daemon.log").read_text()


def test_a_loss_beyond_the_limit_leaves_reducing_orders_only(tmp_path: Path) -> None:
    with DaemonHarness(
        tmp_path, config={"risk": {"daily_loss": 0.0005, "drawdown": 0.9, "max_turnover": 10.0}}
    ) as harness:
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        harness.run_until(harness.days[11].close + 600, harness.slow_clock)
        assert harness.stop() == 0
        assert check_run(harness.log, harness.journal).faults == []
        ((since,),) = harness.query("select at from risk_states where state = 'reducing'")
        assert any(alert.startswith("critical reducing") for alert in harness.alerts())
        later = [
            (r["body"]["side"])
            for r in harness.requests("POST", "/v2/orders")
            if datetime.fromtimestamp(r["arrived"], UTC).isoformat() > since
        ]
        assert set(later) <= {"sell"}
        kept_back = harness.query(f"select count(*) from intent_events where state = 'withheld' and at > '{since}'")
        assert kept_back[0][0] >= 1


@pytest.fixture
def watchdog(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket that systemd would listen at."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.settimeout(0.02)
        yield made


def test_a_loop_that_stalls_is_seen_from_outside(tmp_path: Path, watchdog: socket.socket) -> None:
    freeze = tmp_path / "freeze"
    freeze.touch()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with DaemonHarness(tmp_path, config={"monitoring": {"heartbeat": "heartbeat.json", "port": port}}) as harness:
        harness.launch(hooks={"stall_while": str(freeze)}, NOTIFY_SOCKET=str(tmp_path / "notify"))
        harness.wait_until_recovered()
        harness.wait(lambda: health(port) == 200)
        assert heard(watchdog)
        harness.run_clock()
        # Unwell it may be for a moment, when time has flown; in the stall it says nothing more.
        harness.wait(lambda: health(port) == 503 and silent(watchdog))
        stale = os.stat(harness.folder / "heartbeat.json").st_mtime
        assert silent(watchdog)
        assert os.stat(harness.folder / "heartbeat.json").st_mtime == stale
        freeze.unlink()
        harness.wait(lambda: health(port) == 200)
        assert heard(watchdog)
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


def silent(watchdog: socket.socket) -> bool:
    """Whether nothing is told for a while from now on."""
    heard(watchdog)
    time.sleep(2.0)
    return not heard(watchdog)


def heard(watchdog: socket.socket) -> list[bytes]:
    """What systemd's watchdog was told since the last call."""
    found = []
    while True:
        try:
            found.append(watchdog.recv(100))
        except TimeoutError:
            return [words for words in found if b"WATCHDOG=1" in words]
