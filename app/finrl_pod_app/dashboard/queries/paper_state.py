"""State of the paper account: daemon, prices, reconciliation, risk limits, commands and decisions."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Literal

import pandas as pd

from finrl_pod.errors import RunError, count_text
from finrl_pod.files import read_json
from finrl_pod.paper.domain.schedule import Calendar
from finrl_pod.paper.monitoring.health import PROCESS_CHECK_AFTER, has_ended
from finrl_pod_app.dashboard.queries.paper_account import positions
from finrl_pod_app.dashboard.queries.paper_journal import CACHED_JOURNALS, Journal
from finrl_pod_app.dashboard.theme import age, exchange_time

# Seconds since the last heartbeat; the daemon writes one every second.
LATE_AFTER = 10.0
STOPPED_AFTER = 60.0
DEMO = "demo"  # name of the account of `paper demo`
NEAR_LIMIT = 0.8  # share of a risk limit

Level = Literal["good", "warning", "bad", "unknown"]


@dataclass(frozen=True)
class StatusBadge:
    """One status on the page. name: identifier. label: the short text of the badge. detail: the sentence below it."""

    name: str
    level: Level
    label: str
    detail: str


def trading_status(journal: Journal) -> StatusBadge:
    """The risk state with its reason."""
    state, reason = journal.state
    level, detail = {
        "active": ("good", "orders are sent within the risk limits"),
        "reducing": ("warning", "only orders that reduce a position are sent"),
        "halted": ("bad", "no orders are sent"),
    }.get(state, ("unknown", state))
    return StatusBadge("trading", level, f"Trading: {state}", f"{detail} ({reason})" if reason else detail)  # type: ignore[arg-type]


def daemon_status(journal: Journal, now: datetime) -> StatusBadge:
    """Whether the daemon runs, by its heartbeat file and its process."""
    path = journal.config.monitoring.heartbeat if journal.config else ""
    if not path:
        return StatusBadge("daemon", "unknown", "Daemon: unknown", "no heartbeat file is configured")
    try:
        beat = read_json(Path(path))
        beat_time = datetime.fromisoformat(beat["at"])
        trading = bool(beat["trading"])
        pid = int(beat["pid"])
        seconds = (now - beat_time).total_seconds()
    except RunError:
        return StatusBadge("daemon", "bad", "Daemon: stopped", "the heartbeat file is missing")
    except (KeyError, TypeError, ValueError):
        return StatusBadge("daemon", "warning", "Daemon: unknown", "the heartbeat file is damaged")
    if seconds > PROCESS_CHECK_AFTER and has_ended(pid):
        return StatusBadge("daemon", "bad", "Daemon: stopped", f"process ended; last heartbeat {age(seconds)} ago")
    if seconds > STOPPED_AFTER:
        return StatusBadge("daemon", "bad", "Daemon: not responding", f"no heartbeat for {age(seconds)}")
    if seconds > LATE_AFTER:
        return StatusBadge("daemon", "warning", "Daemon: late", f"last heartbeat {age(seconds)} ago")
    return StatusBadge("daemon", "good", "Daemon: running", "trading" if trading else "no orders are sent now")


def price_status(journal: Journal, now: datetime) -> StatusBadge:
    """Whether the last decision used the prices of the last complete session."""
    if not journal.priced:
        return StatusBadge("prices", "unknown", "Prices: none", "no prices read yet")
    feed = str(journal.price_reads.feed.iloc[-1]) if len(journal.price_reads) else "the feed"
    closes = f"closes of {journal.priced} from {feed}"
    if is_simulated(journal):
        return StatusBadge("prices", "unknown", "Prices: simulated", f"{closes}, simulated clock")
    missing_sessions = sessions_behind(journal.calendar, journal.priced, now)
    if missing_sessions <= 0:
        return StatusBadge("prices", "good", "Prices: current", closes)
    # Between the close and the next decision the daemon is always one session behind.
    level, label = ("good", "Prices: current") if missing_sessions == 1 else ("bad", "Prices: stale")
    detail = f"{closes}, {count_text(missing_sessions, 'session')} behind"
    return StatusBadge("prices", level, label, detail)  # type: ignore[arg-type]


def sessions_behind(calendar: Calendar, bar: str, now: datetime) -> int:
    """Number of complete sessions after `bar` (an ISO date)."""
    day = datetime.fromisoformat(bar).date()
    if (now.date() - day).days > 10 * 366:
        return len(pd.bdate_range(day, now.date())) - 1  # approximate: the calendar covers decades only
    return sum(1 for s in calendar.sessions(day + timedelta(days=1), now.date()) if s.close <= now)


def is_simulated(journal: Journal) -> bool:
    """Whether the daemon runs on a simulated clock or broker."""
    config = journal.config
    return config is not None and (bool(config.broker.clock) or config.broker.kind == "simulated")


def reconciliation_status(journal: Journal) -> StatusBadge:
    """Whether alerts since the last acknowledgement report differences between journal and broker."""
    results = journal.commands.dropna(subset=["outcome"])
    acknowledged_at = results[results["name"] == "acknowledge"]["answered"].max()
    alerts = journal.alerts[journal.alerts.kind.isin(["mismatch", "refused"])]
    alerts = alerts[alerts["at"] > acknowledged_at] if pd.notna(acknowledged_at) else alerts
    if alerts.empty:
        return StatusBadge("reconciliation", "good", "Reconciled", "journal and broker agree")
    return StatusBadge("reconciliation", "bad", "Not reconciled", f"{alerts.message.iloc[-1]}")


def overall_status(journal: Journal, now: datetime) -> StatusBadge:
    """One status for the account: its most serious one. A demo is finished when its daemon has ended."""
    if is_finished_demo(journal, now):
        detail = f"{count_text(len(journal.equity), 'session')} traded on a simulated clock; the daemon ended with them"
        return StatusBadge("overall", "good", "Demo finished", detail)
    badges = statuses(journal, now)
    as_planned = StatusBadge("overall", "good", "Trading as planned", "daemon, prices and reconciliation are in order")
    worst = next((badge for level in ("bad", "warning") for badge in badges if badge.level == level), as_planned)
    return replace(worst, name="overall")


def is_finished_demo(journal: Journal, now: datetime) -> bool:
    """Whether this is the account of `paper demo` after its month: nothing will run again, and nothing is wrong."""
    return journal.name == DEMO and is_simulated(journal) and daemon_status(journal, now).level == "bad"


def statuses(journal: Journal, now: datetime) -> tuple[StatusBadge, ...]:
    """All statuses: trading, daemon, prices, reconciliation."""
    if is_finished_demo(journal, now):
        daemon = StatusBadge("daemon", "unknown", "Daemon: ended", "the simulated month is over")
    else:
        daemon = daemon_status(journal, now)
    return trading_status(journal), daemon, price_status(journal, now), reconciliation_status(journal)


def halted_symbols(journal: Journal) -> pd.DataFrame:
    """Symbols not traded until acknowledged: symbol, at, reason."""
    last = journal.halts.groupby("symbol", sort=True).last().reset_index()
    return last[last.halted == 1][["symbol", "at", "reason"]]


def risk_limits(journal: Journal) -> pd.DataFrame:
    """One row per risk limit: limit, used and allowed (shares of equity), share (used over allowed), level.

    Without the largest position if the config leaves it to the mandates of several strategies.
    """
    columns = ["limit", "used", "allowed", "share", "level"]
    if journal.config is None:
        return pd.DataFrame(columns=columns)
    risk = journal.config.risk
    weights = positions(journal).weight.fillna(0.0)
    daily_loss, drawdown = daily_loss_and_drawdown(journal)
    usage = {
        "largest position": (float(weights.abs().max()) if len(weights) else 0.0, risk.max_position),
        "gross exposure": (float(weights.abs().sum()), risk.max_gross),
        "net exposure": (abs(float(weights.sum())), risk.max_net),
        "daily loss": (daily_loss, risk.daily_loss),
        "drawdown": (drawdown, risk.drawdown),
    }
    rows = [(name, value, limit, value / limit) for name, (value, limit) in usage.items() if limit]
    frame = pd.DataFrame(rows, columns=columns[:-1])
    frame["level"] = ["bad" if s > 1 else "warning" if s > NEAR_LIMIT else "good" for s in frame.share]
    return frame


def daily_loss_and_drawdown(journal: Journal) -> tuple[float, float]:
    """Loss of the last session, and drawdown from the peak since trading was last resumed; 0 for a gain."""
    marks = journal.equity
    if marks.empty:
        return 0.0, 0.0
    resumed_at = journal.risk[journal.risk.state == "active"]["at"].max()
    marks_since = marks[marks["at"] > resumed_at] if pd.notna(resumed_at) else marks
    last = float(marks.equity.iloc[-1])
    previous = float(marks.equity.iloc[-2]) if len(marks) > 1 else journal.capital
    peak = max(*marks_since.equity, last, 0.0 if pd.notna(resumed_at) else journal.capital)
    return max(0.0, 1 - last / previous if previous > 0 else 0.0), max(0.0, 1 - last / peak if peak > 0 else 0.0)


@dataclass(frozen=True)
class Summary:
    """Key figures of the account.

    session: session of the last equity, empty before the first. cash: dollars at the same time. day: return of the last
    session, None before the first. total: return. drawdown: decline of the last equity from the highest one so far, at
    most 0. max_drawdown: largest drawdown of all sessions.
    """

    equity: float
    cash: float
    session: str
    day: float | None
    total: float
    drawdown: float
    max_drawdown: float


@lru_cache(maxsize=CACHED_JOURNALS)
def summary(journal: Journal) -> Summary:
    """Key figures from the equity by session; the capital before the first session."""
    marks = journal.equity.equity
    capital = journal.capital
    if marks.empty:
        return Summary(capital, journal.cash, "", None, 0.0, 0.0, 0.0)
    last = float(marks.iloc[-1])
    day = last / (float(marks.iloc[-2]) if len(marks) > 1 else capital) - 1
    declines = drawdowns(marks, capital)
    newest = journal.equity.iloc[-1]
    return Summary(
        equity=last,
        cash=float(newest.cash),
        session=str(newest.session),
        day=day,
        total=last / capital - 1,
        drawdown=float(declines.iloc[-1]),
        max_drawdown=float(declines.min()),
    )


def drawdowns(equity: pd.Series[float], capital: float) -> pd.Series[float]:
    """Decline of the equity of each session from the highest one so far, at least the capital; 0 or negative."""
    marks = equity.astype(float)
    declines: pd.Series[float] = (marks / marks.cummax().clip(lower=capital) - 1).clip(upper=0.0)
    return declines


def pending_commands(journal: Journal, now: datetime) -> str:
    """A notice of commands that the daemon has not executed yet; empty without any."""
    frame = journal.commands[journal.commands.outcome.isna()]
    if frame.empty:
        return ""
    names = ", ".join(frame["name"])
    seconds = (now - frame["at"].iloc[0]).total_seconds()
    if daemon_status(journal, now).level == "bad":
        return f"Pending for {age(seconds)}: {names}. The daemon is stopped and will execute it when it starts."
    return f"Pending for {age(seconds)}: {names}."


def journal_caption(journal: Journal) -> str:
    """Name, account, strategies with what decides for them, and path of the journal in one line."""
    definitions = dict(zip(journal.strategies.strategy, journal.strategies["name"], strict=True))
    texts = [name if name == definition else f"{name} ({definition})" for name, definition in definitions.items()]
    label = "strategies" if len(texts) > 1 else "strategy"
    clock = "simulated clock; " if is_simulated(journal) else ""
    return (
        f"{journal.name}, account {journal.account or 'unknown'}, {label} {', '.join(texts) or 'none yet'}; "
        f"{clock}{journal.path}"
    )


def as_of(journal: Journal) -> str:
    """Time of the newest entry, and the moments that the figures of the page belong to, in one sentence."""
    if journal.last is None:
        return "The journal has no entries yet."
    session = f"at the close of {journal.equity.session.iloc[-1]}" if len(journal.equity) else "before the first close"
    return (
        f"As of {exchange_time(journal.last.to_pydatetime())}. Equity, cash and profit {session}; positions and orders "
        f"now, at the closes of {journal.priced or 'no session yet'}."
    )


def title_alarm(journal: Journal) -> str:
    """What the title of the browser tab reports: a halt, a mismatch, or nothing."""
    is_halted = journal.state[0] == "halted"
    is_different = reconciliation_status(journal).level == "bad"
    words = [word for word, applies in (("halted", is_halted), ("mismatch", is_different)) if applies]
    return ", ".join(words).capitalize()


def commands_table(journal: Journal) -> pd.DataFrame:
    """Commands, newest first: at, name, user, address, answered, outcome ("pending" without one), pending."""
    frame = journal.commands.iloc[::-1].reset_index(drop=True)
    frame["pending"] = frame.outcome.isna()
    frame["outcome"] = frame.outcome.fillna("pending")
    for column in ("user", "address"):
        frame[column] = frame[column].fillna("")
    return frame


def decisions_table(journal: Journal) -> pd.DataFrame:
    """Decisions, newest first, with reasons by symbol written as text."""
    frame = journal.decisions.iloc[::-1].reset_index(drop=True)
    frame["detail"] = [_detail_text(text) for text in frame.detail]
    return frame


def _detail_text(detail: str) -> str:
    """Detail of a decision: a JSON object of reasons by symbol becomes a list, a sentence stays as it is."""
    try:
        return "; ".join(f"{symbol}: {reason}" for symbol, reason in json.loads(detail).items())
    except (ValueError, AttributeError):
        return detail


def utc_now() -> datetime:
    """The current time, UTC."""
    return datetime.now(UTC)
