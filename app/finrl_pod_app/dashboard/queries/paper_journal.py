"""The daemon's journal as frames, read in one view and kept until the file changes."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pandas as pd

from finrl_pod.errors import ConfigError
from finrl_pod.paper.journal.reading import changes, read
from finrl_pod.paper.settings import PaperConfig, unpack

KEPT = 2  # journals whose frames stay in memory
ALERTS = 200  # of the newest that are shown

_EQUITY = "SELECT session, at, equity, cash, broker_equity FROM equity ORDER BY id"
_DECISIONS = "SELECT at, bar, strategy, feed, outcome, detail FROM decisions ORDER BY id"
_FILLS = """
SELECT f.time, f.at, i.bar, i.symbol, i.side, f.quantity, f.price, i.reference_price, f.fee, o.client_order_id, f.source
FROM fills f JOIN orders o ON f.order_id = o.id JOIN intents i ON o.intent_id = i.id ORDER BY f.id
"""
_ORDERS = """
SELECT o.at, i.bar, i.symbol, i.side, o.quantity, o.type, o.limit_price, o.time_in_force, e.state, e.status, e.filled,
       e.value, e.detail, o.client_order_id, o.intent_id
FROM orders o JOIN intents i ON o.intent_id = i.id
JOIN order_events e ON e.id = (SELECT max(id) FROM order_events WHERE order_id = o.id) ORDER BY o.id
"""
_INTENTS = """
SELECT i.id, i.bar, i.symbol, i.side, i.quantity, i.reference_price, i.deadline FROM intents i
WHERE i.id NOT IN (SELECT intent_id FROM intent_events WHERE state != 'open') ORDER BY i.id
"""
_COMMANDS = """
SELECT c.id, c.at, c.name, c.user, c.address, r.at AS answered, r.outcome
FROM commands c LEFT JOIN command_results r ON r.command_id = c.id ORDER BY c.id
"""
_FOREIGN = """
SELECT symbol, quantity FROM foreign_positions UNION ALL SELECT symbol, quantity FROM foreign_fills
UNION ALL SELECT symbol, foreign_change FROM corporate_actions
"""
_TABLES = {
    "actions": "SELECT at, kind, symbol, ex_date, own_change, cash FROM corporate_actions ORDER BY id",
    "risk": "SELECT at, state, reason FROM risk_states ORDER BY id",
    "alerts": f"SELECT at, level, kind, message FROM alerts ORDER BY id DESC LIMIT {ALERTS}",
    "halts": "SELECT at, symbol, halted, reason FROM symbol_halts ORDER BY id",
    "looks": "SELECT at, feed, start, end, symbols FROM looks ORDER BY id DESC LIMIT 1",
    "strategies": "SELECT at, name, sha256, detail FROM strategies ORDER BY id",
    "foreign": _FOREIGN,
    "equity": _EQUITY,
    "decisions": _DECISIONS,
    "fills": _FILLS,
    "orders": _ORDERS,
    "intents": _INTENTS,
    "commands": _COMMANDS,
}
_NUMBERS = {
    "equity", "cash", "broker_equity", "quantity", "price", "reference_price", "fee", "limit_price", "filled", "value",
    "own_change",
}  # fmt: skip
_MOMENTS = {"at", "time", "answered", "deadline"}


@dataclass(frozen=True, eq=False)
class Journal:
    """What a journal says. Money in dollars and shares as float64, moments in UTC, sessions as ISO dates.

    config: what the daemon ran with last, None where it was not written down. closes: the last known ones by symbol,
    the newest those of `priced`. targets: weights that the last decision asked for. last: the newest moment of a
    decision, fill or alert.
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
    foreign: pd.DataFrame
    risk: pd.DataFrame
    alerts: pd.DataFrame
    halts: pd.DataFrame
    looks: pd.DataFrame
    strategies: pd.DataFrame
    closes: dict[str, float]
    priced: str
    targets: dict[str, float]

    @property
    def name(self) -> str:
        """The run's name, else the file's folder."""
        return self.config.name if self.config else self.path.parent.name

    @property
    def capital(self) -> float:
        """What was allocated; where it was not written down, the first mark of equity, taken before any trade."""
        if self.config:
            return self.config.capital
        return float(self.equity.equity.iloc[0]) if len(self.equity) else 0.0

    @property
    def cash(self) -> float:
        """Own cash: the capital and everything that was bought, sold and paid since."""
        signed = self.fills.quantity.where(self.fills.side == "buy", -self.fills.quantity)
        spent = float((signed * self.fills.price + self.fills.fee).sum())
        return self.capital - spent + float(self.actions.cash.sum())

    @property
    def state(self) -> tuple[str, str]:
        """Risk state and its reason."""
        return ("active", "") if self.risk.empty else (str(self.risk.state.iloc[-1]), str(self.risk.reason.iloc[-1]))

    @property
    def last(self) -> pd.Timestamp | None:
        """By the daemon's own clock, which a simulation sets."""
        moments = [frame["at"].iloc[-1] for frame in (self.equity, self.decisions, self.fills) if len(frame)]
        return max(moments, default=None)


def load(path: Path) -> Journal:
    """The journal at `path`; the same object until the file changes. Raises JournalError."""
    return _load(path, changes(path))


@lru_cache(maxsize=KEPT)
def _load(path: Path, _: object) -> Journal:
    return read(path, lambda connection: _take(path, connection))


def _take(path: Path, connection: sqlite3.Connection) -> Journal:
    try:
        frames = {name: _typed(pd.read_sql_query(query, connection)) for name, query in _TABLES.items()}
    except pd.errors.DatabaseError as error:  # pandas' own, whoever reads a journal knows SQLite's
        raise sqlite3.DatabaseError(str(error.__cause__ or error)) from error
    frames["alerts"] = frames["alerts"].iloc[::-1].reset_index(drop=True)
    closes = connection.execute(
        "SELECT symbol, price, session FROM closes WHERE id IN (SELECT max(id) FROM closes GROUP BY symbol)"
    ).fetchall()
    weights = _one(connection, "SELECT weights FROM decisions WHERE weights IS NOT NULL ORDER BY id DESC LIMIT 1")
    account = _one(connection, "SELECT value FROM facts WHERE name = 'account'")
    return Journal(
        path=path,
        account=account or "",
        config=_config(_one(connection, "SELECT content FROM settings ORDER BY id DESC LIMIT 1")),
        closes={symbol: float(price) for symbol, price, _ in closes},
        priced=max((session for *_, session in closes), default=""),
        targets=json.loads(weights) if weights else {},
        **frames,
    )


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Numbers and moments out of the journal's text."""
    for column in frame.columns:
        if column in _NUMBERS:
            frame[column] = pd.to_numeric(frame[column])
        elif column in _MOMENTS:
            frame[column] = pd.to_datetime(frame[column], utc=True, format="ISO8601")
    return frame


def _one(connection: sqlite3.Connection, query: str) -> str | None:
    row = connection.execute(query).fetchone()
    return None if row is None else row[0]


def _config(content: str | None) -> PaperConfig | None:
    try:
        return None if content is None else unpack(content)
    except ConfigError:  # written by another version: what hangs on it is left out of the page
        return None
