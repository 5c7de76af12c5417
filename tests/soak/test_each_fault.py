"""A fault a day, each on purpose, against the real daemon process over HTTP and websocket; judged at the end."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finrl_pod.data.store import Store
from finrl_pod.paper.fake_alpaca.faults import Fault
from finrl_pod.paper.fake_alpaca.server import FakeAlpaca
from finrl_pod.paper.fake_alpaca.settings import Settings
from finrl_pod.paper.scaled_clock import Pace
from tests.soak.judge import judge
from tests.soak.run import AFTER, BEFORE, FAST, ON_ITS_WAY, START, Soak, _go, _start, _until

BUSY, SLOW = 100.0, 1_800.0
ORDERS = "/v2/orders$"


def post(kind: str, **more: Any) -> Fault:
    return Fault(kind, method="POST", path=ORDERS, **more)


def refusal(status: int, code: int, message: str, **more: Any) -> Fault:
    return post("answer", status=status, body={"code": code, "message": message, **more})


def foreign(server: FakeAlpaca) -> None:
    order = {"symbol": "WMT", "qty": "3", "side": "buy", "type": "market", "time_in_force": "day"}
    server.exchange.submit(order, server.clock.seconds(), "foreign")


# What is done on each day; what the days are named after is the row of the table in docs/paper-trading.md.
DAYS: dict[str, list[Fault] | Callable[[FakeAlpaca], Any]] = {
    "no fault": [],
    "5 the POST hangs": [post("hang", seconds=1.5)],
    "6 a 504 after the order was taken": [post("answer_after", status=504, body={"message": "gateway timeout"})],
    "7 a 504 before it was taken": [post("answer", status=504, body={"message": "gateway timeout"})],
    "9 refused for its parameters": [refusal(422, 40010001, "invalid order")],
    "10 no buying power": [refusal(403, 40310000, "insufficient buying power", buying_power="0")],
    "14 the limit is spent": [post("answer", status=429, body={"message": "rate limit exceeded"})],
    "16 a page instead of JSON": [
        post("answer", status=200, body="<html>maintenance</html>", headers={"Content-Type": "text/html"})
    ],
    "17 a status that nobody knows": [post("edit", body={"status": "quarantined"}, times=2)],
    "20 updates twice and out of order": [Fault("duplicate", times=0), Fault("hold", times=0, seconds=0.2)],
    "22 a silent stream": [Fault("silence", seconds=2.0)],
    "23 the stream breaks at a fill": [Fault("disconnect", event="fill", times=2)],
    "24 new connections are refused": [Fault("disconnect", event="fill"), Fault("refuse", times=2)],
    "30 a symbol that is not traded": lambda server: setattr(server.exchange.conditions, "untradable", {"KO"}),
    "31 an order of somebody else": foreign,
    "34 positions are not answered": [Fault("answer", method="GET", path="/v2/positions", status=500, times=3)],
}


@pytest.mark.slow
def test_a_fault_a_day(tmp_path: Path) -> None:
    plan = Soak(tmp_path, sessions=len(DAYS) + 1, fault_rate=0.0, kills=0, seed=5)
    clock, log = tmp_path / "clock.json", tmp_path / "server.jsonl"
    server = FakeAlpaca(
        Store().load("sample"), Settings(seed=5, partial=0.2), start=START, pace=Pace(0.0, 0.0), log=log, clock=clock,
        busy_speed=BUSY,
    )  # fmt: skip
    days = [s for s in server.exchange.prices.sessions.all if s.date >= START][: plan.sessions]
    last = days[-1].close + 3600
    pace = Pace(SLOW, FAST, (*((s.open - BEFORE, s.open + AFTER) for s in days), (last, last + 30 * 86_400.0)))
    waiting = {}
    with server, (tmp_path / "daemon.log").open("wb") as output:
        daemon = _start(plan, server, clock, output)
        _go(server, pace)
        for day, (name, deed) in zip(days, DAYS.items(), strict=False):
            if callable(deed):
                server.call(lambda deed=deed: deed(server))
            else:
                server.call(lambda deed=deed: server.faults.add(deed))
            _until(server, day.close, daemon)
            waiting[name] = server.call(lambda: [f for f in server.faults.waiting if f.times])
            server.call(server.faults.clear)
            server.call(lambda: setattr(server.exchange.conditions, "untradable", set()))
        _until(server, last, daemon)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(timeout=60) == 0
        time.sleep(0.1)
    assert not {name: left for name, left in waiting.items() if left}, "a fault did not come to pass"
    verdict = judge(log, tmp_path / "journal.sqlite", ON_ITS_WAY)
    assert verdict.faults == []
    with sqlite3.connect(tmp_path / "journal.sqlite") as journal:
        outcomes = dict(journal.execute("SELECT bar, outcome FROM decisions").fetchall())
        sources = {row[0] for row in journal.execute("SELECT DISTINCT source FROM order_events")}
        states = dict(
            journal.execute("SELECT state, count(*) FROM intent_events WHERE state != 'open' GROUP BY state").fetchall()
        )
        messages = " ".join(row[0] for row in journal.execute("SELECT message FROM alerts"))
        strangers = journal.execute("SELECT symbol, quantity FROM foreign_fills").fetchall()
    assert set(outcomes.values()) == {"orders"}, outcomes
    assert "lookup" in sources
    assert states["rejected"] == 2
    assert "quarantined" in messages
    assert "KO is left as it is" in messages
    assert strangers == [("WMT", "3")]
    assert "soak-secret" not in (tmp_path / "daemon.log").read_text() + json.dumps(server.log.records)
