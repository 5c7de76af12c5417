"""A soak: the daemon as a process trades simulated months against the fake server, among random faults and kills.

    python tests/soak/run.py OUT --sessions 252 --fault-rate 0.02 --kills 12 --seed 1

The same sessions are traded three times at once: `killed`, with faults and kills; `steady`, with the same faults
alone, where the daemon's memory is measured; `calm`, without any. Each is judged from the server's log and its
journal, and `steady` must fill what `calm` fills. OUT keeps logs, journals and the daemons' output of each.

Server, daemon, timeouts and limiter share one clock. It runs at WORKING_PACE while the daemon works
or waits for an answer, and at WAITING_PACE while it sleeps: a slow machine makes the soak longer, nothing else. A
killed daemon is missing for some minutes, and a few random ones more.
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
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil

from finrl_pod.data.store import Store
from finrl_pod.fake_alpaca.faults import random_faults
from finrl_pod.fake_alpaca.scaled_clock import Pace
from finrl_pod.fake_alpaca.server import FakeAlpaca
from finrl_pod.fake_alpaca.settings import Settings

ROOT = Path(__file__).parents[2]
SYMBOLS = ("AAPL", "AMD", "BAC", "HD", "JNJ", "JPM", "KO", "LLY", "MRK", "XOM")
START = date(2019, 1, 2)
WORKING_PACE, WAITING_PACE = 20.0, 800_000.0  # simulated seconds a second
LEAD = 30.0  # minutes before the opening at which the daemon decides
BEFORE, AFTER = 60 * LEAD, 60.0 * 17  # seconds around each opening in which a kill may come
HANG = 0.9  # real seconds: longer than the daemon waits for an answer
STARTING = Pace(30.0, 30.0)  # while a daemon starts: some simulated minutes, as for a real one
TIMEOUT = 120.0  # real seconds for one simulated day
ON_ITS_WAY = 5.0  # simulated seconds that a request may take
SETTLED = 20  # sessions after which memory should not grow any more
GROWTH = 20.0  # MiB that it may grow all the same


@dataclass
class Soak:
    """What a run is told, and what it measures. memory: (session, bytes)."""

    out: Path
    sessions: int
    fault_rate: float
    kills: int
    seed: int
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
    )
    days = [s for s in server.exchange.prices.sessions.all if s.date >= START][: plan.sessions]
    # Kills come around the opening, when there is something to lose.
    kills = sorted(rng.sample(range(1, len(days) - 1), min(plan.kills, len(days) - 2)))
    moments = [days[i].open + rng.uniform(-BEFORE, AFTER) for i in kills]
    began = time.monotonic()
    with server, (plan.out / "daemon.log").open("ab") as output:
        daemon = _start(plan, server, clock, output)
        server.follow_client_sleep(WORKING_PACE, WAITING_PACE)
        for day in days:
            while moments and moments[0] < day.close:
                daemon = _kill(plan, server, daemon, moments.pop(0), clock, output, rng)
            reach(server, day.close, daemon)
            plan.memory.append((len(plan.memory), psutil.Process(daemon.pid).memory_info().rss))
        server.call(lambda: server.faults.clear())
        # The daemon stops where nothing is to happen any more, and has time for it.
        reach(server, days[-1].close + 3600, daemon, lambda: server.set_pace(Pace(WORKING_PACE, WORKING_PACE)))
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
    command = [sys.executable, str(ROOT / "tests/paper/process/daemon_main.py"), "paper", "run", str(config)]
    daemon = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    end = time.monotonic() + 120
    while not any(_recovered(r) for r in server.log.records[seen:]):
        if daemon.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"the daemon did not start: see {plan.out / 'daemon.log'}")
        time.sleep(0.02)
    return daemon


def _recovered(record: dict[str, Any]) -> bool:
    """A starting daemon has come as far as to be told its positions."""
    told = record["kind"] == "request" and record["path"] == "/v2/positions"
    return told and record["status"] == 200 and record["fault"] is None


def _kill(
    plan: Soak,
    server: FakeAlpaca,
    daemon: subprocess.Popen[bytes],
    moment: float,
    clock: Path,
    output: Any,
    rng: random.Random,
) -> subprocess.Popen[bytes]:
    def kill() -> None:
        daemon.kill()
        server.set_pace(STARTING)

    reach(server, moment, daemon, kill)
    daemon.wait()
    server.jump(server.clock.now() + timedelta(minutes=rng.uniform(0.0, 10.0)))
    started = _start(plan, server, clock, output)
    server.follow_client_sleep(WORKING_PACE, WAITING_PACE)
    return started


def reach(
    server: FakeAlpaca, moment: float, daemon: subprocess.Popen[bytes], action: Callable[[], None] = lambda: None
) -> None:
    """Wait for a simulated moment and do something just then. Ends the soak when the daemon has left before."""
    reached, end = server.schedule(moment, action), time.monotonic() + TIMEOUT
    while not reached.wait(timeout=0.2):
        if daemon.poll() is not None or time.monotonic() > end:
            when = datetime.fromtimestamp(server.clock.seconds(), UTC)
            raise SystemExit(f"the daemon ({daemon.returncode}) does not go on at {when:%Y-%m-%d %H:%M}: see its log")


def all_runs(out: Path, sessions: int, fault_rate: float, kills: int, seed: int) -> dict[str, Soak]:
    """All at once: each keeps less than one core busy, for its server and its daemon wait for each other."""
    plans = {
        "steady": Soak(out / "steady", sessions, fault_rate, 0, seed),
        "calm": Soak(out / "calm", sessions, 0.0, 0, seed),
        "killed": Soak(out / "killed", sessions, fault_rate, kills, seed),
    }
    with ProcessPoolExecutor(len(plans), get_context("spawn")) as processes:
        return dict(zip(plans, processes.map(soak, plans.values()), strict=True))


def main() -> int:
    from tests.soak.consistency import check_run, compare_fills

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sessions", type=int, default=252)
    parser.add_argument("--fault-rate", type=float, default=0.02)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    if a.out.exists() and any(a.out.iterdir()):
        parser.error(f"{a.out} is not empty: name another folder")
    began = time.monotonic()
    runs = all_runs(a.out, a.sessions, a.fault_rate, a.kills, a.seed)
    seconds = time.monotonic() - began
    verdicts = {
        n: check_run(run.out / "server.jsonl", run.out / "journal.sqlite", ON_ITS_WAY) for n, run in runs.items()
    }
    faults = [f"{name}: {fault}" for name, verdict in verdicts.items() for fault in verdict.faults]
    different = compare_fills(verdicts["steady"], verdicts["calm"])
    grown = growth(runs["steady"])
    if grown is not None and grown >= GROWTH:
        faults.append(f"steady: the daemon grew by {grown:.1f} MiB after session {SETTLED}, {GROWTH:.0f} are allowed")
    facts = {name: {"seconds": round(runs[name].seconds, 1), **verdict.facts} for name, verdict in verdicts.items()}
    sys.stdout.write(json.dumps({"faults": faults + different, "growth_mib": grown, **facts}, indent=1) + "\n")
    memory = "too few sessions to tell of memory" if grown is None else f"memory grew by {grown:.1f} MiB"
    sys.stdout.write(
        f"soak: {a.sessions} sessions three times in {seconds:.0f} s, {a.kills} kills; {len(faults)} things wrong, "
        f"{len(different)} fills differ from those without faults, {memory} (less than {GROWTH:.0f} allowed): "
        f"{'FAILED' if faults or different else 'passed'}\n"
    )
    return 1 if faults or different else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
