"""The journal of the paper daemon as dataframes, read in one transaction and cached until the file changes."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, lru_cache
from pathlib import Path

import pandas as pd

from finrl_pod.errors import ConfigError
from finrl_pod.paper.domain.flows import flow_adjusted
from finrl_pod.paper.journal.reader import file_signature, read_journal
from finrl_pod.paper.settings import PaperConfig, allocations, unpack

CACHED_JOURNALS = 8  # accounts that visitors look at
MAX_ALERTS = 200  # the newest

_LAST_WEIGHTS = """
SELECT run, weights FROM decisions
WHERE id IN (SELECT max(id) FROM decisions WHERE weights IS NOT NULL GROUP BY run) ORDER BY id
"""
_LAST_EQUITIES = """
SELECT run, equity FROM strategy_equity WHERE id IN (SELECT max(id) FROM strategy_equity GROUP BY run)
"""
_CAPITAL = (
    "SELECT at, equity FROM equity ORDER BY id",
    "SELECT at, cash FROM corporate_actions WHERE kind = 'transfer'",
)
_TABLES = {
    "actions": "SELECT at, kind, symbol, ex_date, own_change, cash FROM corporate_actions ORDER BY id",
    "risk": "SELECT at, state, reason FROM risk_states ORDER BY id",
    "alerts": f"SELECT at, level, kind, message FROM alerts ORDER BY id DESC LIMIT {MAX_ALERTS}",
    "halts": "SELECT at, symbol, halted, reason FROM symbol_halts ORDER BY id",
    "price_reads": "SELECT at, feed, start, end, symbols FROM price_fetches ORDER BY id DESC LIMIT 1",
    "strategies": "SELECT at, name, sha256, detail FROM strategies ORDER BY id",
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
    "decisions": "SELECT at, bar, strategy, feed, outcome, detail FROM decisions ORDER BY id",
    "fills": """
        SELECT f.time, f.at, i.bar, i.symbol, i.side, f.quantity, f.price, i.reference_price, f.fee, o.client_order_id,
               f.source
        FROM fills f JOIN orders o ON f.order_id = o.id JOIN intents i ON o.intent_id = i.id ORDER BY f.id
    """,
    "orders": """
        SELECT o.at, i.bar, i.symbol, i.side, o.quantity, o.type, o.limit_price, o.time_in_force, e.state, e.status,
               e.filled, e.value, e.detail, o.client_order_id, o.intent_id
        FROM orders o JOIN intents i ON o.intent_id = i.id
        JOIN order_events e ON e.id = (SELECT max(id) FROM order_events WHERE order_id = o.id) ORDER BY o.id
    """,
    "intents": """
        SELECT i.id, i.bar, i.symbol, i.side, i.quantity, i.reference_price, i.deadline FROM intents i
        WHERE i.id NOT IN (SELECT intent_id FROM intent_events WHERE state != 'open') ORDER BY i.id
    """,
    "commands": """
        SELECT c.id, c.at, c.name, c.user, c.address, r.at AS answered, r.outcome
        FROM commands c LEFT JOIN command_results r ON r.command_id = c.id ORDER BY c.id
    """,
}
_NUMERIC_COLUMNS = {
    *("equity", "cash", "broker_equity", "quantity", "price", "reference_price", "fee", "limit_price", "filled"),
    *("value", "own_change"),
}
_TIME_COLUMNS = {"at", "time", "answered", "deadline"}


@dataclass(frozen=True, eq=False)
class Journal:
    """The contents of a journal. Money in dollars and shares are float64, times are UTC, sessions are ISO dates.

    capital: allocated capital, the first equity if it is not recorded; like the equity scaled by later flows. config:
    last settings of the daemon, None if not recorded. closes: last known price by symbol. priced: session of the newest
    close, empty without one. targets: weights that the last decision of each strategy aims at, summed as shares of the
    account equity. external: shares that the strategies do not own. price_reads: the last read of market data.
    benchmark: session, growth (of equal weights of the symbols, without dividends).
    """

    path: Path
    account: str
    config: PaperConfig | None
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
    capital: float
    closes: dict[str, float]
    priced: str
    targets: dict[str, float]

    @property
    def name(self) -> str:
        """The configured name, else the name of the journal folder."""
        return self.config.name if self.config else self.path.parent.name

    @cached_property
    def cash(self) -> float:
        """Cash of the strategy: capital less purchases and fees, plus sales and dividends."""
        bought_quantity = self.fills.quantity.where(self.fills.side == "buy", -self.fills.quantity)
        purchases = float((bought_quantity * self.fills.price + self.fills.fee).sum())
        capital = self.config.capital if self.config else self.capital
        return capital - purchases + float(self.actions.cash.sum())

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
    return read_journal(path, lambda connection: _read_tables(path, connection))


def _read_tables(path: Path, connection: sqlite3.Connection) -> Journal:
    try:
        frames = {name: _with_types(pd.read_sql_query(query, connection)) for name, query in _TABLES.items()}
    except (pd.errors.DatabaseError, ValueError, TypeError) as error:  # `read` handles errors of SQLite
        raise sqlite3.DatabaseError(str(error.__cause__ or error)) from error
    frames["alerts"] = frames["alerts"].iloc[::-1].reset_index(drop=True)
    closes = connection.execute(
        "SELECT symbol, price, session FROM closes WHERE id IN (SELECT max(id) FROM closes GROUP BY symbol)"
    ).fetchall()
    config = _config(_scalar(connection, "SELECT content FROM settings ORDER BY id DESC LIMIT 1"))
    account = _scalar(connection, "SELECT value FROM facts WHERE name = 'account'")
    equity = frames["equity"]
    capital = config.capital if config else float(equity.equity.iloc[0]) if len(equity) else 0.0
    if len(equity):
        marks, flows = ([(at, Decimal(x)) for at, x in connection.execute(query)] for query in _CAPITAL)
        capital, *equity["equity"] = map(float, flow_adjusted(capital, marks, flows))
    return Journal(
        path=path,
        account=account or "",
        capital=capital,
        config=config,
        closes={symbol: float(price) for symbol, price, _ in closes},
        priced=max((session for *_, session in closes), default=""),
        targets=_account_targets(connection, config),
        **frames,
    )


def _account_targets(connection: sqlite3.Connection, config: PaperConfig | None) -> dict[str, float]:
    """Sum the target weights of the last decisions of all strategies, as shares of the account equity, by symbol."""
    weights_by_run: dict[str, dict[str, float]] = {
        run: json.loads(weights) for run, weights in connection.execute(_LAST_WEIGHTS)
    }
    if config is None or not config.strategies:  # one strategy has the equity of the account
        run = next(reversed(weights_by_run), "") if config is None else config.name
        return weights_by_run.get(run, {})
    equities = {run: float(equity) for run, equity in connection.execute(_LAST_EQUITIES)}
    account = float(_scalar(connection, "SELECT equity FROM equity ORDER BY id DESC LIMIT 1") or config.capital)
    targets: dict[str, float] = {}
    for strategy in allocations(config):
        share = equities.get(strategy.name, strategy.capital) / account if account > 0 else 0.0
        for symbol, weight in weights_by_run.get(strategy.name, {}).items():
            targets[symbol] = targets.get(symbol, 0.0) + share * weight
    return targets


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


def _config(content: str | None) -> PaperConfig | None:
    try:
        return None if content is None else unpack(content)
    except ConfigError:  # written by another version; the page omits what depends on it
        return None
