"""Soak test: a daemon process trades simulated months against the fake server with random faults and kills.

    python tests/soak/run.py OUT --sessions 252 --fault-rate 0.02 --kills 12 --seed 1

Two strategies share a cash account with dividends and splits. At the end the difference from their backtests must be
explained, and no target may be missed by more than MAX_DISTANCE.

In the first WATCHED_SESSIONS of the run without faults, each figure of the paper page of the dashboard must equal what
follows from the rows of the journal.

The same sessions are traded by three runs in parallel: `killed` with faults and kills, `faulty` with the same faults
only, where the daemon's memory is measured, and `fault_free`. Each run is checked with its server log and journal, and
`faulty` must fill the same orders as `fault_free`. OUT receives the logs, journals and output of each run.

Options make the account harder to trade:

--losses N      a fourth run, `lost`, without faults: its daemon is killed and its journal deleted at N random moments,
                and rebuilt by `paper adopt`. The books must equal the lost ones; it trades on from them.
--hand-over     the second strategy is the champion of a promoted run; a newer one replaces it after half the sessions.
--whole-shares  orders are in fractions of shares; two symbols lose them after a third of the sessions.

Server, daemon, timeouts and rate limiter share one clock. It runs at WORKING_PACE while the daemon works or waits for a
response, and at WAITING_PACE while it sleeps, so a slow machine only makes the soak longer. A killed daemon is
restarted after a few minutes and a random delay.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import shutil
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

from finrl_pod.data.panel import select
from finrl_pod.data.store import Store
from finrl_pod.fake_alpaca.faults import random_faults
from finrl_pod.fake_alpaca.scaled_clock import Pace
from finrl_pod.fake_alpaca.server import FakeAlpaca
from finrl_pod.fake_alpaca.settings import CorporateAction, Settings
from finrl_pod.paper.domain.schedule import Calendar
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.decision_state import TargetState
from finrl_pod.paper.journal.ledger import Ledger
from finrl_pod.paper.journal.store import Store as Journal
from finrl_pod.paper.settings import load

ROOT = Path(__file__).parents[2]
SYMBOLS = ("AAPL", "AMD", "BAC", "HD", "JNJ", "JPM", "KO", "LLY", "MRK", "XOM")
START = date(2019, 1, 2)
WORKING_PACE, WAITING_PACE = 20.0, 800_000.0  # simulated seconds per second
LEAD = 30.0  # minutes before the opening at which the daemon decides
BEFORE, AFTER = 60 * LEAD, 60.0 * 17  # kills happen within these seconds around an opening
HANG = 0.9  # real seconds: longer than the daemon's response timeout
STARTING = Pace(30.0, 30.0)  # pace while a daemon starts, which takes some simulated minutes
RESTARTING = Pace(3.0, 3.0)  # the same, without the loss of a decision
TIMEOUT = 120.0  # real seconds for one simulated day
MAX_LATENCY = 5.0  # simulated seconds that a request may take to arrive
WARMUP_SESSIONS = 20  # memory growth is measured after these sessions
MAX_GROWTH = 20.0  # MiB
WATCHED_SESSIONS = 20  # in which the paper page is compared with the journal
ACTION_INTERVAL = 4  # sessions between two corporate actions
MAX_DISTANCE = 0.01  # of equity that a missed target may lack
WHOLE_SHARES = ("LLY", "XOM")  # symbols that lose their fractions
HANDED_OVER = "monthly"  # strategy with promoted champions


@dataclass
class Soak:
    """Plan and measurements of one run.

    losses: deletions of the journal. whole_shares: two symbols lose their fractions. champions: folder of two promoted
    runs that are traded one after the other, None for a baseline. memory: (session, bytes) pairs. faults: of rebuilt
    journals and of the paper page. figures: number of those compared. seconds: real duration.
    """

    out: Path
    sessions: int
    fault_rate: float
    kills: int
    seed: int
    losses: int = 0
    whole_shares: bool = False
    champions: Path | None = None
    memory: list[tuple[int, int]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    figures: int = 0
    seconds: float = 0.0


def soak(plan: Soak) -> Soak:
    """Execute a run; log, journal and the daemon's output are written to `plan.out`."""
    plan.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(plan.seed)
    faults = random_faults(plan.fault_rate, hang=HANG) if plan.fault_rate else []
    log, clock = plan.out / "server.jsonl", plan.out / "clock.json"
    server = FakeAlpaca(
        Store().load("sample"),
        Settings(seed=plan.seed, partial=0.1, multiplier=1, actions=corporate_actions(plan.sessions)),
        start=START,
        pace=STARTING,
        faults=faults,
        log=log,
        clock=clock,
    )
    days = [s for s in server.exchange.prices.sessions.all if s.date >= START][: plan.sessions]
    # Kills and losses happen around the opening, when orders are in flight.
    disturb = _lose if plan.losses else _kill
    kills = sorted(rng.sample(range(1, len(days) - 1), min(plan.losses or plan.kills, len(days) - 2)))
    moments = [days[i].open + rng.uniform(-BEFORE, AFTER) for i in kills]
    if plan.champions is not None:
        shutil.copytree(plan.champions / "one", plan.out / "runs" / "one")
    start = time.monotonic()
    with server, (plan.out / "daemon.log").open("ab") as output:
        daemon = _start(plan, server, clock, output)
        server.follow_client_sleep(WORKING_PACE, WAITING_PACE)
        for number, day in enumerate(days):
            while moments and moments[0] < day.close:
                daemon = disturb(plan, server, daemon, moments.pop(0), clock, output, rng)
            reach(server, day.close, daemon)
            if number < WATCHED_SESSIONS and not (plan.fault_rate or plan.kills or plan.losses):
                _watch(plan, server)
            if plan.whole_shares and day is days[len(days) // 3]:
                server.call(lambda: server.exchange.conditions.whole_shares.update(WHOLE_SHARES))
            if plan.champions is not None and day is days[len(days) // 2]:
                shutil.copytree(plan.champions / "two", plan.out / "two")
                (plan.out / "two").rename(plan.out / "runs" / "two")
            plan.memory.append((len(plan.memory), psutil.Process(daemon.pid).memory_info().rss))
        server.call(lambda: server.faults.clear())
        # Stop the daemon after the last close, at a pace that leaves it time to shut down.
        reach(server, days[-1].close + 3600, daemon, lambda: server.set_pace(Pace(WORKING_PACE, WORKING_PACE)))
        daemon.send_signal(signal.SIGTERM)
        code = daemon.wait(timeout=60)
        if code != 0:
            raise SystemExit(f"the daemon exited with code {code}: see {plan.out / 'daemon.log'}")
    plan.seconds = time.monotonic() - start
    return plan


def corporate_actions(sessions: int) -> tuple[CorporateAction, ...]:
    """A dividend or a split every ACTION_INTERVAL sessions, symbol by symbol; every third one is a split."""
    days = [s.date for s in Calendar().sessions(START, date(START.year + 2, 12, 31))]
    found = []
    for number, at in enumerate(range(3, sessions - 1, ACTION_INTERVAL)):
        symbol, day = SYMBOLS[number % len(SYMBOLS)], str(days[at])
        if number % 3 == 2:
            found.append(CorporateAction(symbol, day, new=2, old=1))
        else:
            found.append(CorporateAction(symbol, day, kind="dividend", cash=0.5))
    return tuple(found)


def track(plan: Soak) -> tuple[list[str], dict[str, float]]:
    """Return faults of the difference from the backtest and of the targets, and the difference by cause."""
    from finrl_pod_app.paper.backtest_difference import compare_with_backtest

    from tests.paper.process.daemon_main import add_strategies

    add_strategies()
    config = load(plan.out / "paper.toml")
    panel = select(Store().load("sample"), config.symbols)
    store = Journal.open(Path(config.journal))
    try:
        missed = [
            f"{row.run}: the target of {row.bar} was missed by {float(row.distance):.1%} of equity"
            for row in store.rows(schema.targets, schema.targets.c.state == TargetState.MISSED)
            if float(row.distance) > MAX_DISTANCE and not plan.whole_shares
        ]
        if plan.champions is not None:  # no backtest trades two champions
            traded = {r.sha256 for r in store.rows(schema.strategies, schema.strategies.c.run.contains(HANDED_OVER))}
            return [*missed, *([] if len(traded) == 2 else [f"{len(traded)} champions were traded, not 2"])], {}
        # The server trades a panel without opens at its closes.
        found = compare_with_backtest(config, store, dataclasses.replace(panel, open=panel.close))
    finally:
        store.close()
    unexplained = found.attribution["unexplained"]
    alarm = [f"{unexplained:+.2f} of the difference from the backtest are unexplained"] if found.alarm else []
    return alarm + missed, found.attribution


def growth(plan: Soak) -> float | None:
    """Return the daemon's memory growth after WARMUP_SESSIONS in MiB; None if it was killed or the run is too short."""
    measured = [size for session, size in plan.memory if session >= WARMUP_SESSIONS]
    return (measured[-1] - measured[0]) / 2**20 if len(measured) > 1 and not plan.kills else None


def train_champions(out: Path) -> Path:
    """Train two tiny runs that count as promoted."""
    from finrl_pod_app.training.tournaments import run_tournament

    from tests.paper.trained_run import TINY, update_report

    for seed, name in enumerate(("one", "two")):
        run_tournament(dataclasses.replace(TINY, seed=seed), out / name, device="cpu")
        update_report(out / name, verdict={"promoted": True, "reasons": []})
    return out


def _start(plan: Soak, server: FakeAlpaca, clock: Path, output: Any) -> subprocess.Popen[bytes]:
    config = plan.out / "paper.toml"
    second = 'strategy = "equal_weight"' if plan.champions is None else 'run = "runs"'
    config.write_text(
        f"""name = "soak"
journal = "journal.sqlite"
symbols = {json.dumps(SYMBOLS)}
capital = 100000.0
[[strategies]]
name = "daily"
strategy = "random_daily"
share = 0.6
[[strategies]]
name = "{HANDED_OVER}"
{second}
share = 0.4
[orders]
fractional = {str(plan.whole_shares).lower()}
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
    seen = len(server.log.records)
    daemon = _command(plan, "run", output)
    end = time.monotonic() + 120
    while not any(_recovered(r) for r in server.log.records[seen:]):
        if daemon.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"the daemon did not start: see {plan.out / 'daemon.log'}")
        time.sleep(0.02)
    return daemon


def _command(plan: Soak, name: str, output: Any, *options: str) -> subprocess.Popen[bytes]:
    """Start a command of `finrl-pod paper` on the config of a run."""
    roots = os.pathsep.join(str(ROOT / part) for part in (".", "envs", "strategies", "app"))
    environment = {**os.environ, "PYTHONPATH": roots, "APCA_API_KEY_ID": "soak", "APCA_API_SECRET_KEY": "soak-secret"}
    main_file = str(ROOT / "tests/paper/process/daemon_main.py")
    command = [sys.executable, main_file, "paper", name, str(plan.out / "paper.toml"), *options]
    return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)


def _watch(plan: Soak, server: FakeAlpaca) -> None:
    """Compare the paper page with the journal while the clock stands still."""
    from finrl_pod_app.dashboard.settings import JOURNAL_VARIABLE

    from tests.dashboard.page_figures import compare_account, compare_orders, open_page

    server.call(lambda: server.set_pace(Pace(0.0, 0.0)))
    journal = plan.out / "journal.sqlite"
    os.environ[JOURNAL_VARIABLE] = str(journal)
    account = compare_account(open_page("paper"), journal, {"daily": 0.6, HANDED_OVER: 0.4})
    orders = compare_orders(open_page("paper", view="Orders and fills"), journal)
    plan.faults += account.faults + orders.faults
    plan.figures += account.count + orders.count
    server.follow_client_sleep(WORKING_PACE, WAITING_PACE)


def _recovered(record: dict[str, Any]) -> bool:
    """Return whether the record is a successful request for positions, which ends a daemon's recovery."""
    positions = record["kind"] == "request" and record["path"] == "/v2/positions"
    return positions and record["status"] == 200 and record["fault"] is None


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


def _lose(
    plan: Soak,
    server: FakeAlpaca,
    daemon: subprocess.Popen[bytes],
    moment: float,
    clock: Path,
    output: Any,
    rng: random.Random,
) -> subprocess.Popen[bytes]:
    """Kill the daemon, delete its journal, rebuild it, and compare the books; `rng` is not used."""
    from tests.paper.test_adoption import books

    journal = plan.out / "journal.sqlite"

    def read_books() -> dict[str, Any]:
        """Return the books, without orders that the broker refused."""
        names = {order.client_order_id for order in server.exchange.orders.values()}
        with contextlib.closing(Journal.open(journal)) as store:
            found = books(store)
            return {**found, "orders": [order for order in found["orders"] if order[0] in names]}

    def is_complete() -> bool:
        """Whether the journal has all fills, and no order is on its way to the broker."""
        names = {order.client_order_id for order in server.exchange.orders.values()}
        with contextlib.closing(Journal.open(journal)) as store:
            has_arrived = all(order.client_order_id in names for _, order in Ledger(store).live_orders())
            return has_arrived and store.count(schema.fills) == sum(
                r["kind"] == "order" and r["event"] in ("fill", "partial_fill") for r in server.log.records
            )

    reach(server, moment, daemon, lambda: server.set_pace(Pace(0.0, 0.0)))
    end = time.monotonic() + TIMEOUT
    while not is_complete():
        if daemon.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"the journal lacks fills: see {plan.out / 'daemon.log'}")
        server.call(lambda: server.set_pace(Pace(WORKING_PACE, WORKING_PACE)))
        time.sleep(0.2)
        server.call(lambda: server.set_pace(Pace(0.0, 0.0)))
        time.sleep(0.2)
    daemon.kill()
    daemon.wait()
    server.clock.sleep_mark[0] = 0.0
    before = read_books()
    for file in plan.out.glob(f"{journal.name}*"):
        file.rename(plan.out / f"lost-{int(moment)}{file.name.removeprefix(journal.name)}")
    if _command(plan, "adopt", output, "--yes").wait(TIMEOUT):
        raise SystemExit(f"the journal was not rebuilt: see {plan.out / 'daemon.log'}")
    after = read_books()
    when = datetime.fromtimestamp(moment, UTC)
    plan.faults += [
        f"{when:%Y-%m-%d %H:%M}: {name} were {before[name]}, and are {after[name]} in the rebuilt journal"
        for name in before
        if before[name] != after[name]
    ]
    server.call(lambda: server.set_pace(RESTARTING))
    started = _start(plan, server, clock, output)
    server.follow_client_sleep(WORKING_PACE, WAITING_PACE)
    return started


def reach(
    server: FakeAlpaca, moment: float, daemon: subprocess.Popen[bytes], action: Callable[[], None] = lambda: None
) -> None:
    """Wait for a simulated time and run `action` at that time; ends the soak if the daemon exits before."""
    reached, end = server.schedule(moment, action), time.monotonic() + TIMEOUT
    while not reached.wait(timeout=0.2):
        if daemon.poll() is not None or time.monotonic() > end:
            when = datetime.fromtimestamp(server.clock.seconds(), UTC)
            raise SystemExit(
                f"the daemon (exit code {daemon.returncode}) stopped at {when:%Y-%m-%d %H:%M}: see its log"
            )


def all_runs(plan: Soak) -> dict[str, Soak]:
    """Execute the runs in parallel; each uses less than one core, as server and daemon wait for each other.

    plan: that of the run `killed`, with the losses of the run `lost`.
    """
    plans = {
        name: dataclasses.replace(plan, out=plan.out / name, memory=[], faults=[], **changes)
        for name, changes in {
            "faulty": {"kills": 0, "losses": 0},
            "fault_free": {"kills": 0, "losses": 0, "fault_rate": 0.0},
            "killed": {"losses": 0},
            "lost": {"kills": 0, "fault_rate": 0.0},
        }.items()
        if name != "lost" or plan.losses
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
    parser.add_argument("--losses", type=int, default=0)
    parser.add_argument("--hand-over", action="store_true")
    parser.add_argument("--whole-shares", action="store_true")
    a = parser.parse_args()
    if a.out.exists() and any(a.out.iterdir()):
        parser.error(f"{a.out} is not empty: choose another folder")
    start = time.monotonic()
    champions = train_champions(a.out / "champions") if a.hand_over else None
    runs = all_runs(Soak(a.out, a.sessions, a.fault_rate, a.kills, a.seed, a.losses, a.whole_shares, champions))
    seconds = time.monotonic() - start
    verdicts = {
        n: check_run(run.out / "server.jsonl", run.out / "journal.sqlite", MAX_LATENCY) for n, run in runs.items()
    }
    faults = [f"{name}: {fault}" for name, verdict in verdicts.items() for fault in verdict.faults]
    faults += [f"{name}: {fault}" for name, run in runs.items() for fault in run.faults]
    tracks = {name: track(run) for name, run in runs.items() if not run.losses}  # rebuilt ones have no earlier equity
    faults += [f"{name}: {fault}" for name, (found, _) in tracks.items() for fault in found]
    different = compare_fills(verdicts["faulty"], verdicts["fault_free"])
    grown_mib = growth(runs["faulty"])
    if grown_mib is not None and grown_mib >= MAX_GROWTH:
        faults.append(
            f"faulty: the daemon grew by {grown_mib:.1f} MiB after session {WARMUP_SESSIONS}; allowed {MAX_GROWTH:.0f}"
        )
    facts = {
        name: {"seconds": round(runs[name].seconds, 1), "difference": tracks.get(name, ([], {}))[1], **verdict.facts}
        for name, verdict in verdicts.items()
    }
    sys.stdout.write(json.dumps({"faults": faults + different, "growth_mib": grown_mib, **facts}, indent=1) + "\n")
    memory = "too few sessions to measure memory" if grown_mib is None else f"memory grew by {grown_mib:.1f} MiB"
    sys.stdout.write(
        f"soak: {a.sessions} sessions {len(runs)} times in {seconds:.0f} s, {a.kills} kills, {a.losses} lost journals; "
        f"{len(faults)} faults, {runs['fault_free'].figures} figures of the paper page compared, "
        f"{len(different)} fills differ from the fault-free run, {memory} (less than {MAX_GROWTH:.0f} allowed): "
        f"{'FAILED' if faults or different else 'passed'}\n"
    )
    return 1 if faults or different else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
