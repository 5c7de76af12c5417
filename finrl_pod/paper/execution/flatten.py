"""Intents that sell own shares at the market, of a flatten command or after a loss of the day."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal

from finrl_pod.paper.domain.intents import FLATTEN, Intent
from finrl_pod.paper.domain.records import OrderType, Side, TimeInForce
from finrl_pod.paper.domain.schedule import DAY_ORDER_CUTOFF, SEND_MARGIN, calendar_of
from finrl_pod.paper.journal.ledger import Ledger
from finrl_pod.paper.settings import PaperConfig


def flatten_intents(
    ledger: Ledger, shares: Mapping[str, Decimal], config: PaperConfig, name: str, now: datetime
) -> list[Intent]:
    """Return DAY orders (GTC where there are none) that sell `shares` by symbol in the current or next session.

    config: config of the account; shares of no strategy get its name. name: name of the flatten, unique in the journal.
    """
    days = calendar_of(config).sessions(now.date() - timedelta(days=1), now.date() + timedelta(days=14))
    session = next(s for s in days if s.close - DAY_ORDER_CUTOFF - SEND_MARGIN > now)
    deadline = session.close - DAY_ORDER_CUTOFF
    time_in_force = TimeInForce.GTC if config.broker.continuous else TimeInForce.DAY
    terms = (time_in_force, OrderType.MARKET, None, Decimal(1), now, deadline, session.close)
    return [
        Intent(run, f"{FLATTEN}-{name}", symbol, Side.SELL if quantity > 0 else Side.BUY, abs(quantity), *terms)
        for symbol, total in sorted(shares.items())
        for run, quantity in _shares_by_run(ledger, config.name, symbol, total)
    ]


def _shares_by_run(ledger: Ledger, account_run: str, symbol: str, total: Decimal) -> list[tuple[str, Decimal]]:
    """Split own shares over the runs that hold them, at most what each holds; the rest is the account's."""
    shares_by_run = []
    remaining = total
    for run, book in sorted(ledger.books.items()):
        shares = max(min(book.positions.get(symbol, Decimal(0)), remaining), Decimal(0))
        if shares and run != account_run:
            shares_by_run.append((run, shares))
            remaining -= shares
    return [*shares_by_run, (account_run, remaining)] if remaining else shares_by_run
