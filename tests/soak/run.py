"""A soak: the daemon as a process trades simulated months against the fake server, among random faults and kills.

    python tests/soak/run.py OUT --sessions 252 --fault-rate 0.02 --kills 12 --seed 1

Server, daemon, timeouts and limiter share one clock: slow around each opening, slower while requests come in, fast for
the rest of the day. A killed daemon is missing for some minutes, and a few random ones more.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from finrl_pod.data.store import Store
from finrl_pod.paper.fake_alpaca.faults import random_faults
from finrl_pod.paper.fake_alpaca.server import FakeAlpaca
from finrl_pod.paper.fake_alpaca.settings import Settings
from finrl_pod.paper.scaled_clock import Pace

ROOT = Path(__file__).parents[2]
SYMBOLS = ("AAPL", "AMD", "BAC", "HD", "JNJ", "JPM", "KO", "LLY", "MRK", "XOM")
START = date(2019, 1, 2)
BUSY, SLOW, FAST = 300.0, 5400.0, 800_000.0  # simulated seconds a second
LEAD = 30.0  # minutes before the opening at which the daemon decides
BEFORE, AFTER = 60 * (LEAD + 2), 60.0 * 17  # seconds around each opening in which time is slow
HANG = 0.3  # real seconds
STARTING = Pace(30.0, 30.0)  # while a daemon starts: some simulated minutes, as for a real one
_SETTLING = 2.0  # real seconds
ON_ITS_WAY = 0.2 * SLOW  # simulated seconds that a request may take
SETTLED = 20  # sessions after which memory should not grow any more
GROWTH = 20.0  # MiB that it may grow all the same


@dataclass
class Soak:
    """What a run is told, and what it measures. busy: speed while requests come in. memory: (session, bytes)."""

    out: Path
    sessions: int
    fault_rate: float
    kills: int
    seed: int
    busy: float = BUSY
    memory: list[tuple[int, int]] = field(default_factory=list)
    seconds: float = 0.0


def soak(plan: Soak) -> Soak:
    """Run it; the log, the journal and the daemon's output are left in `plan.out`."""
    plan.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(plan.seed)
    faults = random_faults(plan.fault_rate, hang=HANG) if plan.fault_rate else []
    log, clock = plan.out / "server.jsonl", plan.out / "clock.json"
    server = FakeAlpaca(
        Store().load("sample"),
        Settings(seed=plan.seed, partial=0.1),
        start=START,
        pace=STARTING,
        faults=faults,
        log=log,
        clock=clock,
        busy_speed=plan.busy,
    )
    days = [s for s in server.exchange.prices.sessions.all if s.date >= START][: plan.sessions]
    windows = tuple((s.open - BEFORE, s.open + AFTER) for s in days)
    # After the last session time is slow again: the daemon stops, and nothing is to happen meanwhile.
    last = days[-1].close + 3600
    pace = Pace(SLOW, FAST, (*windows, (last, last + 30 * 86_400.0)))
    # Kills come around the opening, when there is something to lose.
    kills = sorted(rng.sample(range(1, len(days) - 1), min(plan.kills, len(days) - 2)))
    moments = [days[i].open + rng.uniform(-0.9 * BEFORE, 0.9 * AFTER) for i in kills]
    began = time.monotonic()
    with server, (plan.out / "daemon.log").open("ab") as output:
        daemon = _start(plan, server, clock, output)
        _go(server, pace)
        for day in days:
            while moments and moments[0] < day.close:
                _until(server, moments.pop(0), daemon)
                daemon = _kill(plan, server, daemon, clock, output, pace, rng)
            _until(server, day.close, daemon)
            plan.memory.append((len(plan.memory), psutil.Process(daemon.pid).memory_info().rss))
        server.call(lambda: server.faults.clear())
        _until(server, last, daemon)
        daemon.send_signal(signal.SIGTERM)
        code = daemon.wait(timeout=60)
        if code != 0:
            raise SystemExit(f"the daemon left with {code}: see {plan.out / 'daemon.log'}")
    plan.seconds = time.monotonic() - began
    return plan


def growth(plan: Soak) -> float | None:
    """MiB by which the daemon grew after it had settled; None where it was killed, or the run too short to tell."""
    settled = [size for session, size in plan.memory if session >= SETTLED]
    return (settled[-1] - settled[0]) / 2**20 if len(settled) > 1 and not plan.kills else None


def _start(plan: Soak, server: FakeAlpaca, clock: Path, output: Any) -> subprocess.Popen[bytes]:
    config = plan.out / "paper.toml"
    config.write_text(
        f"""name = "soak"
journal = "journal.sqlite"
strategy = "restless"
symbols = {json.dumps(SYMBOLS)}
capital = 90000.0
[broker]
kind = "alpaca"
url = "{server.url}"
clock = "{clock}"
[schedule]
lead_minutes = {LEAD}
[data]
window = 30
[timing]
poll = 200.0
[risk]
daily_loss = 0.9
drawdown = 0.9
max_turnover = 10.0
"""
    )
    roots = os.pathsep.join(str(ROOT / part) for part in (".", "envs", "strategies", "app"))
    environment = {**os.environ, "PYTHONPATH": roots, "APCA_API_KEY_ID": "soak", "APCA_API_SECRET_KEY": "soak-secret"}
    seen = len(server.log.records)
    command = [sys.executable, str(Path(__file__).with_name("daemon.py")), "paper", "run", str(config)]
    daemon = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    end = time.monotonic() + 120
    while not any(_recovered(r) for r in server.log.records[seen:]):
        if daemon.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"the daemon did not start: see {plan.out / 'daemon.log'}")
        time.sleep(0.02)
    # It reads calendars for the first time, which takes longer than anything later.
    time.sleep(_SETTLING)
    return daemon


def _recovered(record: dict[str, Any]) -> bool:
    """A starting daemon has come as far as to be told its positions."""
    told = record["kind"] == "request" and record["path"] == "/v2/positions"
    return told and record["status"] == 200 and record["fault"] is None


def _kill(
    plan: Soak,
    server: FakeAlpaca,
    daemon: subprocess.Popen[bytes],
    clock: Path,
    output: Any,
    pace: Pace,
    rng: random.Random,
) -> subprocess.Popen[bytes]:
    daemon.kill()
    daemon.wait()
    server.call(lambda: server.set_pace(STARTING))
    later = server.clock.now() + timedelta(minutes=rng.uniform(0.0, 10.0))
    server.jump(later)
    started = _start(plan, server, clock, output)
    _go(server, pace)
    return started


def _go(server: FakeAlpaca, pace: Pace) -> None:
    server.call(lambda: server.set_pace(pace))


def _until(server: FakeAlpaca, moment: float, daemon: subprocess.Popen[bytes]) -> None:
    while server.clock.seconds() < moment:
        if daemon.poll() is not None:
            when = datetime.fromtimestamp(server.clock.seconds(), UTC)
            raise SystemExit(f"the daemon left with {daemon.returncode} at {when:%Y-%m-%d %H:%M}: see its log")
        time.sleep(min(max(server.clock.real_until(moment), 0.001), 0.05))


def main() -> int:
    from tests.soak.judge import judge, same_fills

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sessions", type=int, default=252)
    parser.add_argument("--fault-rate", type=float, default=0.02)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--busy", type=float, default=BUSY, help="simulated seconds a second while requests come in")
    parser.add_argument(
        "--compare", action="store_true", help="run once more without faults: the fills must be the same"
    )
    a = parser.parse_args()
    if (a.out / "server.jsonl").exists():
        parser.error(f"{a.out} holds a soak already: name another folder")
    plan = soak(Soak(a.out, a.sessions, a.fault_rate, a.kills, a.seed, a.busy))
    verdict = judge(a.out / "server.jsonl", a.out / "journal.sqlite", ON_ITS_WAY)
    if a.compare:
        calm = a.out / "without-faults"
        soak(Soak(calm, a.sessions, 0.0, 0, a.seed, a.busy))
        verdict.faults += same_fills(verdict, judge(calm / "server.jsonl", calm / "journal.sqlite", ON_ITS_WAY))
    grown = growth(plan)
    if grown is not None and grown >= GROWTH:
        verdict.faults.append(f"the daemon grew by {grown:.1f} MiB after session {SETTLED}, {GROWTH:.0f} are allowed")
    facts = {"seconds": round(plan.seconds, 1), "growth_mib": grown, **verdict.facts}
    sys.stdout.write(json.dumps({"faults": verdict.faults, **facts}, indent=1) + "\n")
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
