"""The journal of the paper daemon as dataframes, read in one transaction and cached until the file changes."""

from __future__ import annotations

import json
import sqlite3
from bisect import bisect_left
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path

import pandas as pd

from finrl_pod.errors import ConfigError
from finrl_pod.paper.domain.flows import capital_changes, flow_adjusted, recorded_capital, starting_capital
from finrl_pod.paper.domain.records import SUMMARY
from finrl_pod.paper.domain.schedule import Calendar, calendar_of
from finrl_pod.paper.journal.reader import file_signature, read_journal
from finrl_pod.paper.settings import PaperConfig, unpack

CACHED_JOURNALS = 8  # accounts that visitors look at
MAX_ALERTS = 200  # the newest, besides all differences from the broker and all summaries of days

_LAST_WEIGHTS = """
SELECT run, weights FROM decisions
WHERE id IN (SELECT max(id) FROM decisions WHERE weights IS NOT NULL GROUP BY run) ORDER BY id
"""
_MARKS = "SELECT at, equity FROM equity ORDER BY id"
_TRANSFERS = "SELECT at, cash FROM corporate_actions WHERE kind = 'transfer'"
_CALENDAR = "SELECT value FROM cursors WHERE name = 'calendar' ORDER BY id DESC LIMIT 1"
_SETTINGS = "SELECT at, content FROM settings ORDER BY id"
_TABLES = {
    # One row for each strategy that an action concerns.
    "actions": """
        SELECT a.at, a.kind, a.symbol, a.ex_date, coalesce(p.run, '') AS run,
               coalesce(p.own_change, a.own_change) AS own_change, coalesce(p.cash, a.cash) AS cash,
               coalesce(p.unpaid, '0') AS unpaid
        FROM corporate_actions a LEFT JOIN action_parts p ON p.action_id = a.id ORDER BY a.id, p.id
    """,
    "close_history": "SELECT at, symbol, session, price FROM closes ORDER BY id",
    "risk": "SELECT at, state, reason FROM risk_states ORDER BY id",
    "alerts": f"""
        SELECT at, level, kind, message FROM alerts
        WHERE id > (SELECT max(id) FROM alerts) - {MAX_ALERTS} OR kind IN ('mismatch', 'refused', '{SUMMARY}')
        ORDER BY id
    """,
    "halts": "SELECT at, symbol, halted, reason FROM symbol_halts ORDER BY id",
    "price_reads": "SELECT at, feed, start, end, symbols FROM price_fetches ORDER BY id DESC LIMIT 1",
    "strategies": "SELECT run, name FROM strategies ORDER BY id",
    "external": """
        SELECT symbol, quantity FROM foreign_positions UNION ALL SELECT symbol, quantity FROM foreign_fills
        UNION ALL SELECT symbol, foreign_change FROM corporate_actions
    """,
    # Growth of equal weights of the symbols from close to close. After a split the last close is written again, per new
    # share: it starts the next return and is none itself.
    "benchmark": """
        SELECT session, avg(price / before) AS growth FROM (
          SELECT id, session, CAST(price AS REAL) AS price, lag(session) OVER own AS earlier,
                 lag(CAST(price AS REAL)) OVER own AS before
          FROM closes WINDOW own AS (PARTITION BY symbol ORDER BY id)
        ) WHERE before > 0 AND earlier != session GROUP BY session ORDER BY min(id)
    """,
    "equity": "SELECT session, at, equity, cash, broker_equity FROM equity ORDER BY id",
    "decisions": """
        SELECT at, run, bar, strategy AS definition, feed, outcome, detail, state FROM decisions ORDER BY id
    """,
    "fills": """
        SELECT f.time, f.at, i.run, i.bar, i.symbol, i.side, f.quantity, f.price, i.reference_price, f.fee,
               o.client_order_id, f.source
        FROM fills f JOIN orders o ON f.order_id = o.id JOIN intents i ON o.intent_id = i.id ORDER BY f.id
    """,
    "orders": """
        SELECT o.at, i.run, i.bar, i.symbol, i.side, o.quantity, o.type, o.limit_price, o.time_in_force, e.state,
               e.status, e.filled, e.value, e.detail, o.client_order_id, o.intent_id
        FROM orders o JOIN intents i ON o.intent_id = i.id
        JOIN order_events e ON e.id = (SELECT max(id) FROM order_events WHERE order_id = o.id) ORDER BY o.id
    """,
    "intents": """
        SELECT i.id, i.at, i.run, i.bar, i.symbol, i.side, i.quantity, i.reference_price, i.deadline FROM intents i
        WHERE i.id NOT IN (SELECT intent_id FROM intent_events WHERE state != 'open') ORDER BY i.id
    """,
    "commands": """
        SELECT c.id, c.at, c.name, c.user, c.address, r.at AS answered, r.outcome
        FROM commands c LEFT JOIN command_results r ON r.command_id = c.id ORDER BY c.id
    """,
}
_NUMERIC_COLUMNS = {
    *("equity", "cash", "broker_equity", "quantity", "price", "reference_price", "fee", "limit_price", "filled"),
    *("value", "own_change", "unpaid"),
}
_TIME_COLUMNS = {"at", "time", "answered", "deadline"}
_DAMAGE = (pd.errors.DatabaseError, ValueError, TypeError, AttributeError, ArithmeticError)


@dataclass(frozen=True, eq=False)
class Journal:
    """The contents of a journal. Money in dollars and shares are float64, times are UTC, sessions are ISO dates.

    account: id at the broker. config: last settings of the daemon, None if not recorded. calendar: sessions, as the
    broker reported them. equity: one row for each session with `recorded` (as written), `flow` (deposits, withdrawals
    and changes of the capital since the row before) and `equity`, scaled by later flows so that they are no returns.
    allocated: capital in the config, the first equity if it is not recorded. started: capital at the start. capital:
    the same, scaled like the equity. cash: now. closes: last known price by symbol. priced: session of the newest
    close, empty without one. weights: target weights of the last decision of each strategy, by symbol. external: shares
    that the strategies do not own. price_reads: the last read of market data. benchmark: session, growth (of equal
    weights of the symbols, without dividends). Frames with a column `run` also have `strategy`, its name in the config.
    """

    path: Path
    account: str
    config: PaperConfig | None
    calendar: Calendar
    equity: pd.DataFrame
    decisions: pd.DataFrame
    fills: pd.DataFrame
    orders: pd.DataFrame
    intents: pd.DataFrame
    commands: pd.DataFrame
    actions: pd.DataFrame
    external: pd.DataFrame
    risk: pd.DataFrame
    alerts: pd.DataFrame
    halts: pd.DataFrame
    price_reads: pd.DataFrame
    benchmark: pd.DataFrame
    strategies: pd.DataFrame
    close_history: pd.DataFrame
    allocated: float
    started: float
    capital: float
    cash: float
    closes: dict[str, float]
    priced: str
    weights: dict[str, dict[str, float]]

    @property
    def name(self) -> str:
        """The configured name, else the name of the journal folder."""
        return self.config.name if self.config else self.path.parent.name

    @property
    def state(self) -> tuple[str, str]:
        """Risk state and its reason; active by default."""
        return ("active", "") if self.risk.empty else (str(self.risk.state.iloc[-1]), str(self.risk.reason.iloc[-1]))

    @property
    def last(self) -> pd.Timestamp | None:
        """Time of the newest equity, decision or fill on the clock of the daemon, real or simulated."""
        times = [frame["at"].iloc[-1] for frame in (self.equity, self.decisions, self.fills) if len(frame)]
        return max(times, default=None)


def load(path: Path) -> Journal:
    """The journal at `path`; the cached object until the file changes. Raises JournalError."""
    return _load(path, file_signature(path))


@lru_cache(maxsize=CACHED_JOURNALS)
def _load(path: Path, _: object) -> Journal:
    def read(connection: sqlite3.Connection) -> Journal:
        try:
            return _read_tables(path, connection)
        except _DAMAGE as error:  # `read_journal` handles errors of SQLite
            raise sqlite3.DatabaseError(str(error.__cause__ or error)) from error

    return read_journal(path, read)


def _read_tables(path: Path, connection: sqlite3.Connection) -> Journal:
    frames = {name: _with_types(pd.read_sql_query(query, connection)) for name, query in _TABLES.items()}
    settings = connection.execute(_SETTINGS).fetchall()
    config = _config(settings[-1][1]) if settings else None
    calendar = Calendar() if config is None else calendar_of(config)
    calendar.change(json.loads(_scalar(connection, _CALENDAR) or "{}"))
    account = _scalar(connection, "SELECT value FROM facts WHERE name = 'account'")
    for frame in frames.values():
        if "run" in frame.columns:
            frame["strategy"] = [strategy_name(config, run) for run in frame.run]
    equity = frames["equity"]
    equity["recorded"] = equity.equity
    flow_by_session = [0.0] * len(equity)
    allocated = config.capital if config else float(equity.equity.iloc[0]) if len(equity) else 0.0
    capitals = recorded_capital(settings)
    capital = started = starting_capital(capitals, allocated)
    if len(equity):
        marks, transfers = ([(at, Decimal(x)) for at, x in connection.execute(query)] for query in (_MARKS, _TRANSFERS))
        flows = [*transfers, *capital_changes(capitals)]
        times = [at for at, _ in marks]
        for at, amount in flows:
            if (row := bisect_left(times, at)) < len(times):
                flow_by_session[row] += float(amount)
        capital, *equity["equity"] = map(float, flow_adjusted(capital, marks, flows))
    equity["flow"] = flow_by_session
    closes = frames["close_history"]
    return Journal(
        path=path,
        account=account or "",
        allocated=allocated,
        started=started,
        capital=capital,
        cash=allocated + _cash_flow(frames["fills"], frames["actions"]),
        config=config,
        calendar=calendar,
        closes=dict(zip(closes.symbol, closes.price, strict=True)),  # the last one of each symbol
        priced=str(closes.session.max()) if len(closes) else "",
        weights={strategy_name(config, run): json.loads(weights) for run, weights in connection.execute(_LAST_WEIGHTS)},
        **frames,
    )


def strategy_name(config: PaperConfig | None, run: str) -> str:
    """Name of a strategy in the config: `run` without the name of the account that several share."""
    if config is None:
        return run
    return run.removeprefix(f"{config.name}/") if config.strategies else run or config.name


def _cash_flow(fills: pd.DataFrame, actions: pd.DataFrame) -> float:
    """Sales and dividends less purchases and fees, with deposits and withdrawals."""
    shares_bought = fills.quantity.where(fills.side == "buy", -fills.quantity)
    return float(actions.cash.sum()) - float((shares_bought * fills.price + fills.fee).sum())


def _with_types(frame: pd.DataFrame) -> pd.DataFrame:
    """Convert text of the journal to numbers and times."""
    for column in frame.columns:
        if column in _NUMERIC_COLUMNS:
            frame[column] = pd.to_numeric(frame[column])
        elif column in _TIME_COLUMNS:
            frame[column] = pd.to_datetime(frame[column], utc=True, format="ISO8601")
    return frame


def _scalar(connection: sqlite3.Connection, query: str) -> str | None:
    row = connection.execute(query).fetchone()
    return None if row is None else row[0]


def _config(content: str) -> PaperConfig | None:
    try:
        return unpack(content)
    except ConfigError:  # written by another version; the page omits what depends on it
        return None
