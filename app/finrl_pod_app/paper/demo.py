"""`finrl-pod paper demo`: the daemon process trades one simulated month against the fake server."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from finrl_pod.errors import SetupError
from finrl_pod.fake_alpaca.scaled_clock import Pace
from finrl_pod.fake_alpaca.server import FakeAlpaca
from finrl_pod.fake_alpaca.settings import CorporateAction, Settings
from finrl_pod.files import write_json, write_text
from finrl_pod.paper.domain.records import SUMMARY
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.monitoring.status import AlertStatus, Slippage, read_heartbeat, status
from finrl_pod.paper.settings import load
from finrl_pod.types import Panel
from finrl_pod_app.paper.backtest_difference import CENT, TrackReport, compare_with_backtest, save_difference
from finrl_pod_app.paper.sources import load_promoted
from finrl_pod_app.prices.stored_prices import load_panel
from finrl_pod_app.setup.output_folder import TEMPORARY, check_room
from finrl_pod_app.setup.presets import preset
from finrl_pod_app.training.tournaments import run_tournament

# Simulated seconds per real second: before the daemon starts, while it works, while it waits. Timeouts of 15 simulated
# seconds scale with the clock but computation does not: responses must be in time on slow machines as well.
STOPPED = 0.0
WORKING = 4.0
WAITING = 400_000.0
LEAD = 20  # minutes before the close at which the daemon decides
AFTER_CLOSE = 1_200.0  # simulated seconds after the close at which a day ends
CASH = 100_000
EX_SESSION = 2  # sessions from the start to an ex-date, and the dividend as a share of the price
DIVIDEND = 0.01
START_TIMEOUT = 120.0  # real seconds
_CONFIG = """\
# One simulated month against the fake server: two strategies in one account.
name = "demo"
journal = "journal.sqlite"
symbols = {symbols}
capital = {cash}.0

[[strategies]]
name = "champion"
run = "{run}"
share = 0.6

[[strategies]]
name = "low_risk"
strategy = "inverse_volatility"
share = 0.4

[broker]
kind = "alpaca"
url = "{url}"
clock = "clock.json"

[schedule]
mode = "close"  # the sample has no opening prices
lead_minutes = {lead}

[data]
window = 300  # the longest feature looks back 252 sessions

[monitoring]
heartbeat = "heartbeat.json"
"""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class DemoReport:
    """Result of the demo. agrees: journal and server have the same shares. summary: last end-of-day summary."""

    state: str
    positions: Mapping[str, Decimal]
    cash: Decimal
    counts: Mapping[str, int]
    slippage: Slippage
    alerts: Sequence[AlertStatus]
    capital: Decimal
    first: str
    last: str
    sessions: int
    days: Sequence[str]
    equity: Decimal
    backtest_equity: Decimal
    agrees: bool
    summary: str
    track: TrackReport
    folder: str


def run_demo(out: Path, start: date, sessions: int, progress: Progress) -> DemoReport:
    """Train a champion unless `out` holds one, trade `sessions` sessions, and compare with the backtest.

    progress: called with one line at each step. Raises SetupError if the daemon does not start or exits early.
    """
    import exchange_calendars  # noqa: F401  a missing extra is reported before the training

    check_room(out)
    run = out / "champion"
    if not (run / "report.json").is_file():
        progress("training a small champion for this demo only; it passed no promotion gate (a minute or two)")
        resume = (run / "config.json").exists()
        write_json(run / TEMPORARY, {"trained_by": "finrl-pod paper demo"})
        run_tournament(preset("quick"), run, device="cpu", resume=resume)
    panel = load_panel(preset("quick"))
    load_promoted(run, panel.symbols, allow_unpromoted=True)  # raises RunError for a run of another version
    folder = out / f"paper-{time.strftime('%Y%m%d-%H%M%S')}"
    folder.mkdir(parents=True)
    log = folder / "server.jsonl"
    server = FakeAlpaca(
        panel, Settings(cash=Decimal(CASH), partial=0.1, actions=_dividends(panel, start)), start=start,
        pace=Pace(STOPPED, STOPPED), log=log, clock=folder / "clock.json",
    )  # fmt: skip
    days = [s for s in server.exchange.prices.sessions.all if s.date >= start][: sessions + 1]
    with server, (folder / "daemon.log").open("wb") as output:
        config = folder / "paper.toml"
        symbols = "[" + ", ".join(f'"{symbol}"' for symbol in panel.symbols) + "]"
        write_text(config, _CONFIG.format(run=run.resolve(), symbols=symbols, url=server.url, cash=CASH, lead=LEAD))
        progress(
            f"two strategies share {CASH:,} for {len(days) - 1} sessions, and one more day to compare them: champion "
            f"(60%) and low_risk (inverse_volatility, 40%); config, journal and logs are in {folder}"
        )
        daemon = _start_daemon(config, output, folder)
        try:
            server.follow_client_sleep(WORKING, WAITING)
            for day in days:
                equity: list[Decimal] = []
                record = functools.partial(_record_equity, server, equity)
                _wait_until(server, day.close + AFTER_CLOSE, record, daemon, folder)
                progress(f"{day.date}: account equity {equity[0]:,.2f}")
            server.call(lambda: server.set_pace(Pace(WORKING, WORKING)))  # slow enough for an orderly stop
            daemon.send_signal(signal.SIGTERM)
            code = daemon.wait(timeout=60)
            server_shares = server.call(lambda: {s: h.qty for s, h in server.exchange.ledger.holdings.items() if h.qty})
        finally:
            if daemon.poll() is None:
                daemon.kill()
    if code != 0:
        raise SetupError(f"the daemon exited with code {code}: see {folder / 'daemon.log'}")
    return _summary(config, folder, server_shares, [day.date for day in days])


def _dividends(panel: Panel, start: date) -> tuple[CorporateAction, ...]:
    """A dividend of two symbols. Paper accounts are not paid it, so that the track has a difference to attribute."""
    first = int(np.searchsorted(panel.times.astype("datetime64[D]"), np.datetime64(start)))
    return tuple(
        CorporateAction(
            symbol=panel.symbols[n], ex_date=str(panel.times[first + EX_SESSION].astype("datetime64[D]")),
            kind="dividend", cash=round(DIVIDEND * float(panel.close[first, n]), 2),
        )
        for n in (0, len(panel.symbols) - 1)
    )  # fmt: skip


def _summary(config_file: Path, folder: Path, server_shares: Mapping[str, Decimal], days: Sequence[date]) -> DemoReport:
    """Return the journal result, compared with the server positions (held) and the equivalent backtest."""
    config = load(config_file)
    with contextlib.closing(Store.open(Path(config.journal))) as store:
        account = status(store, config)
        track = compare_with_backtest(config, store, load_panel(preset("quick")))
        summary = store.last(schema.alerts, schema.alerts.c.kind == SUMMARY)
    save_difference(Path(config.journal), track)
    return DemoReport(
        state=account.state,
        positions=account.positions,
        cash=account.cash,
        counts=account.counts,
        slippage=account.slippage,
        alerts=account.alerts,
        capital=Decimal(CASH),
        first=track.sessions[0],
        last=track.sessions[-1],
        sessions=len(track.sessions),
        days=[str(day) for day in days],
        equity=Decimal(str(track.equity[-1])).quantize(CENT),
        backtest_equity=Decimal(str(track.backtest[-1])).quantize(CENT),
        agrees=account.positions == server_shares,
        summary="" if summary is None else summary.message,
        track=track,
        folder=str(folder),
    )


def _start_daemon(config: Path, output: Any, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "finrl_pod_app.cli.main", "paper", "run", str(config), "--allow-unpromoted"]
    keys = {"APCA_API_KEY_ID": "no-key-needed-here", "APCA_API_SECRET_KEY": "no-secret-needed-here"}
    daemon = subprocess.Popen(command, env={**os.environ, **keys}, stdout=output, stderr=subprocess.STDOUT)
    end = time.monotonic() + START_TIMEOUT
    while not read_heartbeat(str(folder / "heartbeat.json")).trading:
        if daemon.poll() is not None or time.monotonic() > end:
            daemon.kill()
            raise SetupError(f"the daemon did not start: see {folder / 'daemon.log'}")
        time.sleep(0.05)
    return daemon


def _record_equity(server: FakeAlpaca, equity: list[Decimal]) -> None:
    equity.append(server.exchange.balances(server.exchange.now).equity)


def _wait_until(
    server: FakeAlpaca, moment: float, action: Callable[[], None], daemon: subprocess.Popen[bytes], folder: Path
) -> None:
    """Wait for a simulated time (Unix seconds), at which the server calls `action`."""
    is_reached = server.schedule(moment, action)
    while not is_reached.wait(timeout=0.1):
        if daemon.poll() is not None:
            raise SetupError(f"the daemon exited with {daemon.returncode}: see {folder / 'daemon.log'}")
