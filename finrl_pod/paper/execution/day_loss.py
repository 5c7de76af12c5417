"""Loss limit of a day of intraday decisions: equity at the open, and the stop for the rest of the session.

The stop is in the journal before anything else follows from it, so that a restart continues it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum

from finrl_pod.paper.domain.intents import FLATTEN
from finrl_pod.paper.execution.flatten import flatten_intents
from finrl_pod.paper.execution.order_manager import Alert, OrderManager
from finrl_pod.paper.execution.reconcile import Reconciler
from finrl_pod.paper.journal import schema
from finrl_pod.paper.settings import PaperConfig

ZERO = Decimal(0)


class DayState(StrEnum):
    """OPENED with equity at the open; STOPPED after a loss."""

    OPENED = "opened"
    STOPPED = "stopped"


class DayLossLimit:
    """Keeps `intraday.max_loss` of one account."""

    def __init__(self, config: PaperConfig, orders: OrderManager, reconciler: Reconciler, alert: Alert) -> None:
        self._config = config
        self._orders = orders
        self._reconciler = reconciler
        self._alert = alert
        self._store = orders.ledger.store
        self._days: dict[str, str] = {row.session: row.state for row in self._store.rows(schema.trading_days)}

    def is_open(self, session: date) -> bool:
        """Whether equity at the session open is known."""
        return session.isoformat() in self._days

    def is_stopped(self, session: date) -> bool:
        """Whether trading ended for the session."""
        return self._days.get(session.isoformat()) == DayState.STOPPED

    def open(self, session: date, equity: Decimal) -> None:
        """Record equity at the open of a session."""
        self._record(session, DayState.OPENED, equity, "")

    def check(self, session: date, prices: Mapping[str, Decimal], equity: Decimal) -> None:
        """Stop the session if its loss exceeds the limit. prices: prices of own shares that equity was valued at."""
        limit = Decimal(str(self._config.intraday.max_loss))
        days = schema.trading_days.c
        row = self._store.last(schema.trading_days, days.session == session.isoformat(), days.state == DayState.OPENED)
        if not limit or row is None or self.is_stopped(session) or not prices:
            return
        start = Decimal(row.equity)
        if start <= 0 or 1 - equity / start <= limit:
            return
        flattens = self._config.intraday.on_loss == "flatten"
        detail = f"the loss of {1 - equity / start:.2%} since the open is above the limit of {limit:.2%}"
        self._record(session, DayState.STOPPED, equity, detail)
        consequence = "own shares are sold, and nothing is traded" if flattens else "nothing is traded"
        self._alert("critical", "day_loss", f"{detail}: {consequence} until the next session")

    def enforce(self, session: date, now: datetime, seconds: float) -> None:
        """Cancel own orders of a stopped session for up to `seconds`, then sell own shares if so configured."""
        ledger = self._orders.ledger
        bar = f"{FLATTEN}-{session.isoformat()}"
        if not self.is_stopped(session):
            return
        live = any(not entry.intent.flattens for entry, _ in ledger.live_orders())
        if live and not self._orders.cancel_all(seconds):
            return
        if self._config.intraday.on_loss != "flatten":
            return
        if self._store.last(schema.intents, schema.intents.c.bar == bar) is not None:
            return
        shares = self._reconciler.certain_shares().shares
        intents = flatten_intents(ledger, shares, self._config, session.isoformat(), now)
        if intents:
            with self._store.write() as connection:
                entries = ledger.add_intents(connection, now, intents)
            ledger.track(entries)

    def _record(self, session: date, state: DayState, equity: Decimal, detail: str) -> None:
        day = session.isoformat()
        at = self._orders.clock.now()
        values = {"session": day, "state": state.value, "equity": str(equity), "detail": detail}
        self._store.add(schema.trading_days, at, **values)
        self._days[day] = state.value
