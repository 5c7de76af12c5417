"""Figures of each symbol in an account: what is held, gained, paid and traded."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal

from finrl_pod.paper.domain.records import ActionKind
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.closes import Closes
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.journal.tax_lots import tax_lots

ZERO = Decimal(0)


@dataclass(frozen=True)
class SymbolFigures:
    """Figures of one symbol, in currency except for `shares`. Gains are first in, first out, with fees.

    value: value at the last known close. sold_value: proceeds of all sales.
    """

    shares: float = 0.0
    value: float = 0.0
    unrealised_gain: float = 0.0
    realised_gain: float = 0.0
    dividends: float = 0.0
    sold_value: float = 0.0


def symbol_figures(store: Store) -> dict[str, SymbolFigures]:
    """Return the figures of each symbol that the account holds or held."""
    lots = tax_lots(store)
    prices = Closes(store).prices
    sums: dict[str, dict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for lot in lots.open:
        value = lot.shares * prices.get(lot.symbol, ZERO)
        sums[lot.symbol]["shares"] += lot.shares
        sums[lot.symbol]["value"] += value
        sums[lot.symbol]["unrealised_gain"] += value - lot.cost
    for gain in lots.realised:
        sums[gain.symbol]["realised_gain"] += gain.gain
        sums[gain.symbol]["sold_value"] += gain.proceeds
    for action in store.rows(schema.corporate_actions, schema.corporate_actions.c.kind == ActionKind.CASH_DIVIDEND):
        sums[action.symbol]["dividends"] += Decimal(action.cash)
    return {
        symbol: SymbolFigures(**{name: float(value) for name, value in row.items()})
        for symbol, row in sorted(sums.items())
    }
