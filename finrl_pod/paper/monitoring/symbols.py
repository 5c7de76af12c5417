"""Figures of each symbol in an account: what is held, gained, paid and traded."""

from __future__ import annotations

from decimal import Decimal

from finrl_pod.paper.domain.records import ActionKind
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.closes import Closes
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.journal.tax_lots import tax_lots

ZERO = Decimal(0)


def symbol_figures(store: Store) -> dict[str, dict[str, float]]:
    """Return shares, value, unrealised and realised gain, dividends and sold value by symbol, in currency.

    Gains are first in, first out, with fees; values are at the last known closes.
    """
    lots, prices = tax_lots(store), Closes(store).prices
    found: dict[str, dict[str, Decimal]] = {}

    def row(symbol: str) -> dict[str, Decimal]:
        names = ("shares", "value", "unrealised_gain", "realised_gain", "dividends", "sold_value")
        return found.setdefault(symbol, dict.fromkeys(names, ZERO))

    for lot in lots.open:
        value = lot.shares * prices.get(lot.symbol, ZERO)
        figures = row(lot.symbol)
        figures["shares"] += lot.shares
        figures["value"] += value
        figures["unrealised_gain"] += value - lot.cost
    for gain in lots.realised:
        figures = row(gain.symbol)
        figures["realised_gain"] += gain.gain
        figures["sold_value"] += gain.proceeds
    for action in store.rows(schema.corporate_actions, schema.corporate_actions.c.kind == ActionKind.CASH_DIVIDEND):
        row(action.symbol)["dividends"] += Decimal(action.cash)
    return {symbol: {name: float(v) for name, v in figures.items()} for symbol, figures in sorted(found.items())}
