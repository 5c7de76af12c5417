"""The last known close of each symbol, as the journal has it: what holdings are worth on a day without a bar too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlalchemy import Connection, func, select

from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store, add
from finrl_pod.paper.records import CorporateAction


@dataclass(frozen=True)
class Close:
    """session: ISO date of its bar. price: of a share as it is now, in currency."""

    session: str
    price: Decimal


class Closes:
    """Reads and writes of last closes. What is written in a caller's transaction is adopted once that is through."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known = _last(store)

    @property
    def prices(self) -> dict[str, Decimal]:
        """By symbol; one that never had a close is missing."""
        return {symbol: close.price for symbol, close in self._known.items()}

    def note(self, session: str, prices: Mapping[str, Decimal], at: datetime) -> None:
        """Write the closes of a session. Those that are known already are not written again."""
        closes = {symbol: Close(session, price) for symbol, price in prices.items()}
        new = {symbol: close for symbol, close in closes.items() if self._known.get(symbol) != close}
        if new:
            with self._store.write() as connection:
                self.write(connection, new, at)
            self.adopt(new)

    def after(self, action: CorporateAction) -> dict[str, Close]:
        """What a split or stock dividend makes of the close of its symbol; empty where it changes none."""
        known = self._known.get(action.symbol)
        if known is None or not action.changes_shares or known.session >= action.ex_date.isoformat():
            return {}
        return {action.symbol: Close(known.session, known.price / action.ratio)}

    def write(self, connection: Connection, closes: Mapping[str, Close], at: datetime) -> None:
        """Rows inside a transaction of the caller, who passes them to `adopt` once it is through."""
        for symbol, close in closes.items():
            add(connection, schema.closes, at, symbol=symbol, session=close.session, price=str(close.price))

    def adopt(self, closes: Mapping[str, Close]) -> None:
        """Keep written closes in memory, after their transaction."""
        self._known |= closes


def _last(store: Store) -> dict[str, Close]:
    newest = select(func.max(schema.closes.c.id)).group_by(schema.closes.c.symbol)
    rows = store.rows(schema.closes, schema.closes.c.id.in_(newest))
    return {row.symbol: Close(row.session, Decimal(row.price)) for row in rows}
