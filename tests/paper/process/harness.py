"""The daemon as a process, trading against the fake server in this one; time is slow around each opening."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from finrl_pod.data.store import Store
from finrl_pod.paper.fake_alpaca.faults import Fault
from finrl_pod.paper.fake_alpaca.server import FakeAlpaca
from finrl_pod.paper.fake_alpaca.settings import Settings
from finrl_pod.paper.scaled_clock import Pace

ROOT = Path(__file__).parents[3]
SYMBOLS = ("AAPL", "AMD", "BAC", "HD", "JNJ", "JPM", "KO", "LLY", "MRK", "XOM")
START = date(2019, 1, 2)
BUSY, SLOW, FAST = 60.0, 600.0, 400_000.0
LEAD = 30.0
BEFORE, AFTER = 60 * (LEAD + 2), 60.0 * 6
PATIENCE = 120.0  # real seconds for anything at all

CONFIG = """name = "row"
journal = "journal.sqlite"
strategy = "restless"
symbols = {symbols}
capital = 90000.0
[broker]
kind = "alpaca"
url = "{url}"
clock = "{clock}"
[schedule]
lead_minutes = {lead}
[data]
window = 30
[timing]
poll = 120.0
[risk]
daily_loss = 0.9
drawdown = 0.9
max_turnover = 10.0
{more}
"""


class Rig:
    """A server with a daemon beside it."""

    def __init__(self, folder: Path, faults: Sequence[Fault] = (), more: str = "", **settings: Any) -> None:
        self.folder = folder
        self.log, self.journal = folder / "server.jsonl", folder / "journal.sqlite"
        self._clock = folder / "clock.json"
        self.server = FakeAlpaca(
            Store().load("sample"),
            Settings(**{"partial": 0.0, **settings}),
            start=START,
            pace=Pace(0.0, 0.0),
            faults=faults,
            log=self.log,
            clock=self._clock,
            busy_speed=BUSY,
        )
        self.days = [s for s in self.server.exchange.prices.sessions.all if s.date >= START][:30]
        self._more = more
        self.daemon: subprocess.Popen[str] | None = None

    def __enter__(self) -> Rig:
        self.server.__enter__()
        config = {"symbols": list(SYMBOLS), "url": self.server.url, "clock": self._clock, "lead": LEAD}
        (self.folder / "paper.toml").write_text(CONFIG.format(**config, more=self._more).replace("'", '"'))
        return self

    def __exit__(self, *_: object) -> None:
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.kill()
            self.daemon.wait()
        self.server.__exit__()

    def launch(self, **environment: str) -> subprocess.Popen[str]:
        """Start a daemon; its output goes to daemon.log."""
        keys = {"APCA_API_KEY_ID": "rig-key", "APCA_API_SECRET_KEY": "rig-secret"}
        command = [sys.executable, str(ROOT / "tests/soak/daemon.py"), "paper", "run", str(self.folder / "paper.toml")]
        with (self.folder / "daemon.log").open("a") as output:
            self.daemon = subprocess.Popen(
                command,
                env={**self.environment(), **keys, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        return self.daemon

    def environment(self) -> dict[str, str]:
        """This process's, with the sources on the path and without keys."""
        roots = os.pathsep.join(str(ROOT / part) for part in (".", "envs", "strategies", "app"))
        mine = {k: v for k, v in os.environ.items() if not k.startswith("APCA_")}
        return {**mine, "PYTHONPATH": roots}

    def go(self, sessions: int) -> None:
        """Let time run: fast, slow around that many openings, and slow for good after the last close."""
        days = self.days[:sessions]
        end = days[-1].close + 600.0
        windows = (*((d.open - BEFORE, d.open + AFTER) for d in days), (end, end + 86_400.0 * 30))
        self.server.call(lambda: self.server.set_pace(Pace(SLOW, FAST, windows)))

    def started(self) -> None:
        """Wait until a new daemon has been told its positions, and had a moment to go on from there."""
        seen = len(self.server.log.records)
        self._wait(lambda: any(r.get("path") == "/v2/positions" for r in self.server.log.records[seen:]))
        time.sleep(2.0)

    def until(self, moment: float) -> None:
        """Wait for a simulated moment."""
        self._wait(lambda: self.server.clock.seconds() >= moment)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGTERM)
        return self.daemon.wait(timeout=PATIENCE)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(f"file:{self.journal}?mode=ro", uri=True) as base:
            return base.execute(sql).fetchall()

    def alerts(self) -> list[str]:
        return [f"{level} {kind}: {text}" for level, kind, text in self.rows("select level, kind, message from alerts")]

    def posts(self, bar: str, symbol: str) -> list[dict[str, Any]]:
        """Requests for orders of one symbol decided on one bar."""
        part = f".{bar.replace('-', '')}.{symbol}."
        return [
            r
            for r in self.server.log.records
            if r["kind"] == "request" and r["method"] == "POST" and part in (r["body"] or {}).get("client_order_id", "")
        ]

    def orders(self, bar: str, symbol: str) -> list[Any]:
        """What the server's account has of them."""
        part = f".{bar.replace('-', '')}.{symbol}."
        return [o for o in self.server.exchange.orders.values() if part in o.client_order_id]

    def _wait(self, condition: Any) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"it did not happen; see {self.folder / 'daemon.log'}"
            if self.daemon is not None and self.daemon.poll() is not None:
                raise AssertionError((self.folder / "daemon.log").read_text()[-2000:])
            time.sleep(0.01)
