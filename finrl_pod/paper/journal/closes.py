"""The last known close of each symbol, used to value holdings on days without a bar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlalchemy import ColumnElement, Connection, func, select

from finrl_pod.paper.domain.records import CorporateAction
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store, add


@dataclass(frozen=True)
class Close:
    """session: ISO date of the bar. price: currency per share, adjusted for splits since that bar."""

    session: str
    price: Decimal


class Closes:
    """Last closes of the journal, cached in memory. Rows added in a transaction of the caller are cached by `apply`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        newest = store.last(schema.closes)
        self._last_row = 0 if newest is None else int(newest.id)
        self._last_closes = _read_last_closes(store)

    def read_new_rows(self) -> None:
        """Add the closes written since the last call."""
        for row in self._store.rows(schema.closes, schema.closes.c.id > self._last_row):
            self._last_closes[row.symbol] = Close(row.session, Decimal(row.price))
            self._last_row = row.id

    @property
    def prices(self) -> dict[str, Decimal]:
        """Last close by symbol, in currency per share; symbols that never had one are missing."""
        return {symbol: close.price for symbol, close in self._last_closes.items()}

    def before(self, day: str) -> dict[str, Decimal]:
        """Last close by symbol of a bar before a date (ISO), in today's shares."""
        closes = _read_last_closes(self._store, schema.closes.c.session < day)
        return {symbol: close.price for symbol, close in closes.items()}

    def record(self, session: str, prices: Mapping[str, Decimal], now: datetime) -> None:
        """Write the closes of a session, except those that are stored already."""
        closes = {symbol: Close(session, price) for symbol, price in prices.items()}
        new_closes = {symbol: close for symbol, close in closes.items() if self._last_closes.get(symbol) != close}
        if new_closes:
            with self._store.write() as connection:
                self.write(connection, new_closes, now)
            self.apply(new_closes)

    def adjusted_for(self, action: CorporateAction) -> dict[str, Close]:
        """Return the close of the symbol after a split or stock dividend; empty if the action does not change it."""
        close = self._last_closes.get(action.symbol)
        if close is None or not action.changes_shares or close.session >= action.ex_date.isoformat():
            return {}
        return {action.symbol: Close(close.session, close.price / action.ratio)}

    def write(self, connection: Connection, closes: Mapping[str, Close], now: datetime) -> None:
        """Insert rows inside the transaction of the caller; the caller passes them to `apply` after the commit."""
        for symbol, close in closes.items():
            add(connection, schema.closes, now, symbol=symbol, session=close.session, price=str(close.price))

    def apply(self, closes: Mapping[str, Close]) -> None:
        """Cache written closes in memory, after their transaction committed."""
        self._last_closes |= closes


def _read_last_closes(store: Store, *conditions: ColumnElement[bool]) -> dict[str, Close]:
    newest = select(func.max(schema.closes.c.id)).where(*conditions).group_by(schema.closes.c.symbol)
    rows = store.rows(schema.closes, schema.closes.c.id.in_(newest))
    return {row.symbol: Close(row.session, Decimal(row.price)) for row in rows}
