"""Tax lots, first in, first out: a purchase opens a lot, a sale closes the oldest ones; costs and proceeds have fees.

The daemon keeps lots of its fills, the return after tax lots of the trades of a backtest.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal


@dataclass
class Lot:
    """Remaining shares of one purchase. lot: number of the purchase fill. cost: their cost with fees."""

    strategy: str
    symbol: str
    lot: int
    opened: str
    shares: Decimal
    cost: Decimal


@dataclass(frozen=True)
class RealisedGain:
    """Shares of a lot that were sold. sale: number of the sale fill, 0 for other clients. gain: proceeds less cost."""

    strategy: str
    symbol: str
    lot: int
    sale: int
    opened: str
    closed: str
    shares: Decimal
    cost: Decimal
    proceeds: Decimal
    gain: Decimal

    @property
    def is_long_term(self) -> bool:
        """Whether the shares were held for more than a year; `opened` and `closed` are ISO 8601."""
        return self.closed[:10] > f"{int(self.opened[:4]) + 1}{self.opened[4:10]}"


def close_lots(
    open_lots: list[Lot], shares: Decimal, proceeds: Decimal, closed: str, sale: int = 0
) -> list[RealisedGain]:
    """Close the oldest lots with a sale of shares. Removes empty lots from `open_lots`."""
    remaining = shares
    gains = []
    while open_lots and remaining > 0:
        lot = open_lots[0]
        part = min(remaining, lot.shares)
        cost = lot.cost * part / lot.shares
        value = proceeds * part / shares
        gains.append(
            RealisedGain(lot.strategy, lot.symbol, lot.lot, sale, lot.opened, closed, part, cost, value, value - cost)
        )
        lot.shares -= part
        lot.cost -= cost
        remaining -= part
        if not lot.shares:
            open_lots.pop(0)
    return gains
