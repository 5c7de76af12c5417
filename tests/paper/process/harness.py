"""Test harness: a fake server in this process and the daemon in its own process, sharing one simulated clock.

Time runs at WORKING_PACE simulated seconds per second while the daemon works and at WAITING_PACE while it sleeps.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from finrl_pod.data.store import Store
from finrl_pod.fake_alpaca.account import Order
from finrl_pod.fake_alpaca.faults import Fault
from finrl_pod.fake_alpaca.scaled_clock import Pace
from finrl_pod.fake_alpaca.server import FakeAlpaca
from finrl_pod.fake_alpaca.settings import Settings
from finrl_pod.types import Panel

ROOT = Path(__file__).parents[3]
SYMBOLS = ("AAPL", "AMD", "BAC", "HD", "JNJ", "JPM", "KO", "LLY", "MRK", "XOM")
START = date(2019, 1, 2)
WORKING_PACE, WAITING_PACE = 20.0, 400_000.0
TIMEOUT = 120.0  # real seconds for any wait
KEYS = {"APCA_API_KEY_ID": "harness-key", "APCA_API_SECRET_KEY": "harness-secret"}

# The config's top level (key ""), then its tables; tests override or add keys.
CONFIG: dict[str, dict[str, Any]] = {
    "": {
        "name": "row",
        "journal": "journal.sqlite",
        "strategy": "random_daily",
        "symbols": list(SYMBOLS),
        "capital": 90e3,
    },
    "broker": {"kind": "alpaca", "clock": "clock.json"},
    "schedule": {"lead_minutes": 30.0},
    "data": {"window": 30},
    "timing": {"poll": 120.0},
    "risk": {"daily_loss": 0.9, "drawdown": 0.9, "max_turnover": 10.0},
    "monitoring": {"heartbeat": "heartbeat.json", "summary_minutes": 0},
}


class DaemonProcess:
    """A daemon forked by the fork server, with a subset of the `subprocess.Popen` interface."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.ended = threading.Event()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float = TIMEOUT) -> int:
        assert self.ended.wait(timeout), "the daemon did not exit"
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


class ForkServer:
    """Client of fork_server.py."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("fork_server.py"))]
        self._process = subprocess.Popen(
            command, env=environment(OMP_NUM_THREADS="1"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._children: dict[int, DaemonProcess] = {}
        self._started: list[DaemonProcess] = []
        self._change = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()
        atexit.register(self._process.kill)

    def spawn(self, request: dict[str, Any]) -> DaemonProcess:
        assert self._process.stdin is not None
        with self._change:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            assert self._change.wait_for(lambda: self._started, TIMEOUT), "the fork server does not respond"
            return self._started.pop()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if "pid" not in message:
                continue
            with self._change:
                child = self._children.get(message["pid"])
                if child is None:
                    child = self._children[message["pid"]] = DaemonProcess(message["pid"])
                    if "code" not in message:
                        self._started.append(child)
                if "code" in message:
                    child.returncode = message["code"]
                    child.ended.set()
                self._change.notify_all()


@cache
def fork_server() -> ForkServer:
    """Return the fork server shared by all tests of this process."""
    return ForkServer()


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment with the sources on PYTHONPATH and without API keys."""
    roots = os.pathsep.join(str(ROOT / part) for part in (".", "envs", "strategies", "app"))
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("APCA_")}
    return {**inherited, "PYTHONPATH": roots, **more}


class DaemonHarness:
    """A fake server and a daemon.

    config: {"table": {"key": value}}, merged into CONFIG. settings: `Settings` of the server. working_pace: simulated
    seconds per second while the daemon works; lower it for tests with much computation, because the daemon's time
    limits are in simulated seconds.
    """

    def __init__(
        self,
        folder: Path,
        faults: Sequence[Fault] = (),
        config: dict[str, dict[str, Any]] | None = None,
        *,
        panel: Panel | None = None,
        start: date = START,
        working_pace: float = WORKING_PACE,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.working_pace = working_pace
        self.log, self.journal = folder / "server.jsonl", folder / "journal.sqlite"
        self.toml = folder / "paper.toml"
        self.server = FakeAlpaca(
            Store().load("sample") if panel is None else panel,
            Settings(**{"partial": 0.0, **settings}),
            start=start,
            pace=Pace(0.0, 0.0),
            faults=faults,
            log=self.log,
            clock=folder / "clock.json",
        )
        self.exchange = self.server.exchange
        self.days = [s for s in self.exchange.prices.sessions.all if s.date >= start][:150]
        self._config = config or {}
        self.daemon: DaemonProcess | None = None
        self.code: int | None = None  # of the daemon that `stop_at` ended

    def __enter__(self) -> DaemonHarness:
        self.server.__enter__()
        self.write_config(self._config)
        return self

    def __exit__(self, *_: object) -> None:
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.send_signal(signal.SIGKILL)
            self.daemon.wait()
        self.server.__exit__()

    def write_config(self, more: dict[str, dict[str, Any]], path: Path | None = None) -> Path:
        lines = []
        for table in {**CONFIG, **more}:
            values = {**CONFIG.get(table, {}), **more.get(table, {})}
            if table == "broker":
                values = {"url": self.server.url, **values}
            lines += [f"[{table}]"] if table else []
            lines += [f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None]
        path = path or self.toml
        path.write_text("\n".join(lines) + "\n")
        return path

    # ------------------------------------------------------------------ the daemon

    def launch(self, toml: Path | None = None, hooks: dict[str, Any] | None = None, **more: str) -> DaemonProcess:
        """Start a daemon; its output goes to daemon.log."""
        self.daemon = fork_server().spawn(
            {
                "arguments": ["paper", "run", str(toml or self.toml)],
                "environment": environment(**{**KEYS, **more}),
                "log": str(self.folder / "daemon.log"),
                "hooks": hooks or {},
            }
        )
        return self.daemon

    def kill(self) -> None:
        """SIGKILL, and clear the daemon's sleep mark; may be called while the clock is stopped."""
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGKILL)
        self.server.clock.sleep_mark[0] = 0.0

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGTERM)
        return self.daemon.wait()

    def command(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run `finrl-pod paper ...` on the harness's config in a subprocess, with more environment variables."""
        command = [sys.executable, "-m", "finrl_pod_app.cli.main", "paper", words[0], str(self.toml), *words[1:]]
        return subprocess.run(command, env=environment(**more), capture_output=True, text=True, timeout=TIMEOUT)

    def start(self) -> None:
        """Launch a daemon and run the clock once it has recovered."""
        self.launch()
        self.wait_until_recovered()
        self.run_clock()

    def relaunch(self, hooks: dict[str, Any] | None = None) -> None:
        """Launch the next daemon after one was killed."""
        assert self.daemon is not None
        self.daemon.wait()
        self.launch(hooks=hooks)
        self.wait_until_recovered()

    def kill_at(self, moment: float) -> None:
        """SIGKILL at a simulated time (Unix seconds), and a new daemon."""
        self.run_until(moment, self.kill)
        self.relaunch()

    def kill_at_acceptance(self, symbol: str | None = None) -> None:
        """SIGKILL when the server accepts the next order, of any symbol if None, and a new daemon."""
        accepted = self.on_order_event("pending_new", symbol, self.kill)
        self.wait(accepted.is_set)
        self.relaunch()

    def stop_at(self, moment: float) -> None:
        """SIGTERM at a simulated time; `code` is the exit code."""
        self.run_until(moment, self.slow_clock)
        self.code = self.stop()

    # ------------------------------------------------------------------ time

    def wait_until_recovered(self) -> None:
        """Wait until a new daemon has queried its positions."""
        seen = len(self.server.log.records)
        self.wait(lambda: any(r.get("path") == "/v2/positions" for r in self.server.log.records[seen:]))

    def run_clock(self) -> None:
        """Run the clock: fast while the daemon sleeps, at the working pace otherwise."""
        self.server.follow_client_sleep(self.working_pace, WAITING_PACE)

    def slow_clock(self) -> None:
        """Run the clock at the working pace even while the daemon sleeps; call in the server's thread."""
        self.server.set_pace(Pace(self.working_pace, self.working_pace))

    def stop_clock(self) -> None:
        """Stop the clock; call in the server's thread."""
        self.server.set_pace(Pace(0.0, 0.0))

    def run_until(self, moment: float, action: Callable[[], Any] = lambda: None) -> None:
        """Wait for a simulated time (Unix seconds) and run `action` in the server's thread at that time."""
        reached = self.server.schedule(moment, action)
        self.wait(reached.is_set)

    def on_order_event(self, event: str, symbol: str | None, action: Callable[[], Any]) -> threading.Event:
        """Run `action` at the first matching order event, before other listeners; symbol None matches any symbol."""
        done = threading.Event()

        def listen(kind: str, what: dict[str, Any]) -> None:
            if kind != "order" or done.is_set():
                return
            if what["event"] == event and symbol in (None, what["order"]["symbol"]):
                done.set()
                action()

        self.server.call(lambda: self.exchange.listeners.insert(0, listen))
        return done

    def wait(self, condition: Callable[[], Any], *, alive: bool = True) -> None:
        end = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < end, f"timed out; see {self.folder / 'daemon.log'}"
            if alive and self.daemon is not None and self.daemon.poll() not in (None, -signal.SIGKILL):
                raise AssertionError((self.folder / "daemon.log").read_text()[-2000:])
            time.sleep(0.005)

    # ------------------------------------------------------------------ external actions

    def replace(self, order: Order, **fields: str) -> None:
        """Replace an order (PATCH) as an external client."""
        names = {"APCA-API-KEY-ID": KEYS["APCA_API_KEY_ID"], "APCA-API-SECRET-KEY": KEYS["APCA_API_SECRET_KEY"]}
        url = f"{self.server.url}/v2/orders/{order.id}"
        request = urllib.request.Request(url, json.dumps(fields).encode(), names, method="PATCH")
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200

    # ------------------------------------------------------------------ queries

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(f"file:{self.journal}?mode=ro", uri=True) as base:
            return base.execute(sql).fetchall()

    def alerts(self) -> list[str]:
        return [
            f"{level} {kind}: {text}" for level, kind, text in self.query("select level, kind, message from alerts")
        ]

    def requests(self, method: str = "", path: str = "", after: int = -1) -> list[dict[str, Any]]:
        """Return the requests that the server answered, oldest first."""
        return [
            r
            for r in self.server.log.records[after + 1 :]
            if r["kind"] == "request" and r["method"].startswith(method) and path in r["path"]
        ]

    def posts(self, bar: str, symbol: str) -> list[dict[str, Any]]:
        """Return the POST requests for orders of one symbol decided on one bar."""
        part = f".{bar.replace('-', '')}.{symbol}."
        return [r for r in self.requests("POST") if part in (r["body"] or {}).get("client_order_id", "")]

    def orders(self, bar: str = "", symbol: str = "") -> list[Order]:
        """Return the daemon's orders at the server in order of arrival, optionally of one bar or symbol."""
        part = f".{bar.replace('-', '')}.{symbol}." if symbol else f".{bar.replace('-', '')}"
        return [o for o in self.exchange.orders.values() if o.origin == "client" and part in o.client_order_id]

    def intended(self, bar: str, symbol: str) -> str:
        ((quantity,),) = self.query(f"select quantity from intents where bar = '{bar}' and symbol = '{symbol}'")
        return str(quantity)
