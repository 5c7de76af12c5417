"""How the paper account stands: sign of life, fresh data, risk limits, commands, alerts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pandas as pd
import psutil

from finrl_pod.errors import RunError
from finrl_pod.files import read_json
from finrl_pod_app.dashboard.queries.paper_account import positions
from finrl_pod_app.dashboard.queries.paper_journal import Journal
from finrl_pod_app.dashboard.theme import moment

MISSED = 3.0  # seconds without a beat after which the daemon's process is looked for
QUIET = 10.0  # seconds without a beat after which the daemon counts as late; it beats every second
SILENT = 60.0  # and as down or hanging
NEAR = 0.8  # share of a limit from which on it is shown as near

Level = Literal["good", "warning", "bad", "unknown"]


@dataclass(frozen=True)
class Sign:
    """One thing that is well or not: words for a person. level: how bad it is."""

    title: str
    level: Level
    words: str


def heartbeat(journal: Journal, now: datetime) -> Sign:
    """Whether the daemon's loop is alive."""
    path = journal.config.outside.heartbeat if journal.config else ""
    if not path:
        return Sign("Daemon", "unknown", "no heartbeat is configured ([outside] heartbeat)")
    try:
        beat = read_json(Path(path))
        at, trading, pid = datetime.fromisoformat(beat["at"]), bool(beat["trading"]), int(beat["pid"])
        age = (now - at).total_seconds()
    except RunError:
        return Sign("Daemon", "bad", "no sign of life: the heartbeat's file is not there")
    except (KeyError, TypeError, ValueError):
        return Sign("Daemon", "bad", "the heartbeat's file holds no heartbeat")
    if age > MISSED and _ended(pid):
        return Sign("Daemon", "bad", f"its process ended; last sign of life {spoken(age)} ago")
    if age > SILENT:
        return Sign("Daemon", "bad", f"silent for {spoken(age)}: it is down or hangs")
    if age > QUIET:
        return Sign("Daemon", "warning", f"last sign of life {spoken(age)} ago")
    return Sign("Daemon", "good", "alive and trading" if trading else "alive, recovering")


def freshness(journal: Journal, now: datetime) -> Sign:
    """Whether the prices of the last decision are those of the last complete session."""
    if not journal.priced:
        return Sign("Prices", "unknown", "no prices were looked at yet")
    feed = str(journal.looks.feed.iloc[-1]) if len(journal.looks) else "its feed"
    seen = f"closes of {journal.priced} from {feed}"
    if simulated(journal):
        return Sign("Prices", "unknown", f"{seen}, on a simulated clock")
    behind = sessions_behind(journal.priced, now)
    if behind <= 0:
        return Sign("Prices", "good", seen)
    # Between the close and the next decision one session is always ahead of the daemon.
    level: Level = "good" if behind == 1 else "bad"
    return Sign("Prices", level, f"{seen}, {behind} session{'s' if behind > 1 else ''} behind")


def sessions_behind(bar: str, now: datetime) -> int:
    """Complete sessions of the exchange after `bar` (an ISO date)."""
    from finrl_pod.paper.runtime.schedule import Calendar

    day = datetime.fromisoformat(bar).date()
    if (now.date() - day).days > 10 * 366:
        return len(pd.bdate_range(day, now.date())) - 1  # about: the calendar is kept by decades
    return sum(1 for s in Calendar().sessions(day + timedelta(days=1), now.date()) if s.close <= now)


def simulated(journal: Journal) -> bool:
    """Whether the daemon followed another clock than the world's."""
    config = journal.config
    return config is not None and (bool(config.broker.clock) or config.broker.kind == "simulated")


def agreement(journal: Journal) -> Sign:
    """Whether the alerts since the last acknowledgement say that journal and broker differ."""
    answered = journal.commands.dropna(subset=["outcome"])
    accepted = answered[answered["name"] == "acknowledge"]["answered"].max()
    found = journal.alerts[journal.alerts.kind.isin(["mismatch", "refused"])]
    found = found[found["at"] > accepted] if pd.notna(accepted) else found
    if found.empty:
        return Sign("Books", "good", "journal and broker agree")
    return Sign("Books", "bad", f"{found.message.iloc[-1]}")


def halted_symbols(journal: Journal) -> pd.DataFrame:
    """Symbols that are not traded until a person acknowledges them: symbol, at, reason."""
    last = journal.halts.groupby("symbol", sort=True).last().reset_index()
    return last[last.halted == 1][["symbol", "at", "reason"]]


def limits(journal: Journal) -> pd.DataFrame:
    """A row a risk limit: limit, used, allowed (both as shares of own equity), share (used of allowed), level."""
    columns = ["limit", "used", "allowed", "share", "level"]
    if journal.config is None:
        return pd.DataFrame(columns=columns)
    risk, held = journal.config.risk, positions(journal)
    weights = held.weight.fillna(0.0)
    day, fall = losses(journal)
    used = {
        "largest position": (float(weights.abs().max()) if len(weights) else 0.0, risk.max_position),
        "gross exposure": (float(weights.abs().sum()), risk.max_gross),
        "net exposure": (abs(float(weights.sum())), risk.max_net),
        "loss of the day": (day, risk.daily_loss),
        "drawdown": (fall, risk.drawdown),
    }
    frame = pd.DataFrame(
        [
            {"limit": name, "used": value, "allowed": most, "share": value / most}
            for name, (value, most) in used.items()
        ],
        columns=columns,
    )
    frame["level"] = ["bad" if s > 1 else "warning" if s > NEAR else "good" for s in frame.share]
    return frame


def losses(journal: Journal) -> tuple[float, float]:
    """Loss of the last session and fall from the highest mark since trading was last resumed; 0 for a gain."""
    marks = journal.equity
    if marks.empty:
        return 0.0, 0.0
    resumed = journal.risk[journal.risk.state == "active"]["at"].max()
    since = marks[marks["at"] > resumed] if pd.notna(resumed) else marks
    last = float(marks.equity.iloc[-1])
    before = float(marks.equity.iloc[-2]) if len(marks) > 1 else journal.capital
    peak = max(float(since.equity.max()) if len(since) else last, last, 0.0 if pd.notna(resumed) else journal.capital)
    return max(0.0, 1 - last / before if before > 0 else 0.0), max(0.0, 1 - last / peak if peak > 0 else 0.0)


@dataclass(frozen=True)
class Summary:
    """The account in figures. day, total, drawdown: shares; drawdown is from the highest mark of all sessions, and
    not above 0. session: of the last mark, empty before the first.
    """

    equity: float
    session: str
    day: float | None
    total: float
    drawdown: float


def summary(journal: Journal) -> Summary:
    """From the marks of equity, the capital before the first."""
    marks, capital = journal.equity.equity, journal.capital
    if marks.empty:
        return Summary(capital, "", None, 0.0, 0.0)
    last = float(marks.iloc[-1])
    day = last / float(marks.iloc[-2]) - 1 if len(marks) > 1 else None
    peak = max(float(marks.max()), capital)
    return Summary(last, str(journal.equity.session.iloc[-1]), day, last / capital - 1, min(0.0, last / peak - 1))


def signs(journal: Journal, now: datetime) -> tuple[Sign, ...]:
    """All but the risk state."""
    return heartbeat(journal, now), freshness(journal, now), agreement(journal)


def waiting(journal: Journal, now: datetime) -> str:
    """What the daemon has not taken yet, in a sentence; empty where nothing waits."""
    frame = journal.commands[journal.commands.outcome.isna()]
    if frame.empty:
        return ""
    first = frame["at"].iloc[0]
    names = ", ".join(frame["name"])
    since = f"since {spoken((now - first).total_seconds())}"
    if heartbeat(journal, now).level == "bad":
        return f"Waiting {since}: {names}. The daemon is down: it will obey as soon as it runs."
    return f"Waiting {since}: {names}. The daemon has not taken it yet."


def footer(journal: Journal) -> str:
    """Which journal this is, and how fresh."""
    last = journal.last
    age = "nothing has happened yet" if last is None else f"last entry {moment(last.to_pydatetime())}"
    strategy = str(journal.strategies["name"].iloc[-1]) if len(journal.strategies) else "none yet"
    clock = ", on a simulated clock" if simulated(journal) else ""
    account = journal.account or "not seen yet"
    return f"{journal.name}, account {account}, strategy {strategy}; {age}{clock}; {journal.path}"


def commands(journal: Journal) -> pd.DataFrame:
    """Commands, the newest first: at, name, user, address, outcome (the words "waiting" while nobody took it)."""
    frame = journal.commands.iloc[::-1].reset_index(drop=True)
    frame["waiting"] = frame.outcome.isna()
    frame["outcome"] = frame.outcome.fillna("waiting for the daemon")
    for column in ("user", "address"):
        frame[column] = frame[column].fillna("")
    return frame[["at", "name", "user", "address", "answered", "outcome", "waiting"]]


def decisions(journal: Journal) -> pd.DataFrame:
    """Decisions, the newest first, with what was left alone in words."""
    frame = journal.decisions.iloc[::-1].reset_index(drop=True)
    frame["detail"] = [_in_words(text) for text in frame.detail]
    return frame


def _in_words(detail: str) -> str:
    """A sentence as it is; an object of reasons by symbol as a list."""
    try:
        reasons = json.loads(detail)
    except ValueError:
        return detail
    return "; ".join(f"{symbol}: {why}" for symbol, why in reasons.items()) if isinstance(reasons, dict) else detail


def spoken(seconds: float) -> str:
    """A length of time in the largest unit that fits: 42 s, 5 min, 3 h, 2 days."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def now() -> datetime:
    """The world's time."""
    return datetime.now(UTC)


def _ended(pid: int) -> bool:
    """Whether no such process runs on this machine; one that ended but was not waited for runs no more."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False
