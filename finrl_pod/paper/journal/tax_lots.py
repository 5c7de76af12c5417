"""Tax lots and realised gains from the fills of a journal: first in, first out, or the lots that a file names.

A purchase opens a lot, a sale closes lots of the same strategy and symbol. Fees belong to cost and proceeds. A split
changes the shares of a lot and not its cost. Dividends are no part of a gain.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Literal

from sqlalchemy import select

from finrl_pod.errors import InputError
from finrl_pod.paper.domain.records import SOLD_BY_OTHERS, Side
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store

ZERO = Decimal(0)
SELECTION_COLUMNS = ("sale", "lot", "shares")


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


@dataclass(frozen=True)
class TaxLots:
    """Open lots, oldest first, and realised gains in the order of the sales."""

    open: tuple[Lot, ...]
    realised: tuple[RealisedGain, ...]


Selection = Mapping[int, Sequence[tuple[int, Decimal]]]


def read_selection(path: Path) -> Selection:
    """Read the lots that sales close from a CSV file with the columns sale, lot and shares. Raises InputError."""
    selection: dict[int, list[tuple[int, Decimal]]] = defaultdict(list)
    try:
        with path.open(newline="") as file:
            rows = csv.DictReader(file)
            if tuple(rows.fieldnames or ()) != SELECTION_COLUMNS:
                raise InputError(f"{path} must have the columns {', '.join(SELECTION_COLUMNS)}, got {rows.fieldnames}")
            for row in rows:
                shares = Decimal(row["shares"])
                if not shares.is_finite() or shares <= 0:
                    raise InputError(f"{path}: shares must be above 0, got {row['shares']!r}")
                selection[int(row["sale"])].append((int(row["lot"]), shares))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    except (ValueError, TypeError, InvalidOperation):
        raise InputError(f"{path} must have whole numbers as sale and lot, and decimal shares") from None
    return selection


@dataclass(frozen=True)
class _Event:
    """A purchase, a sale or a split. number: number of the fill, 0 for sales of other clients. shares: quantity, or
    the change by a split.

    value: shares times price.
    """

    at: str
    kind: Literal["buy", "sell", "split"]
    number: int
    strategy: str
    symbol: str
    time: str
    shares: Decimal
    value: Decimal = ZERO
    fee: Decimal = ZERO


def tax_lots(store: Store, selection: Selection | None = None) -> TaxLots:
    """Return the lots of a journal.

    selection: lots and shares that a sale closes, by its number; the rest is first in, first out. Raises InputError if
    it names a lot that the strategy of the sale does not hold then, or more shares than the sale or the lot has.
    """
    remaining_selection = dict(selection or {})
    lots: dict[tuple[str, str], list[Lot]] = defaultdict(list)
    realised: list[RealisedGain] = []
    for event in sorted([*_fills(store), *_changes(store)], key=lambda event: event.at):
        open_lots = lots[event.strategy, event.symbol]
        if event.kind == "buy":
            cost = event.value + event.fee
            open_lots.append(Lot(event.strategy, event.symbol, event.number, event.time, event.shares, cost))
        elif event.kind == "sell":
            realised += _sell(open_lots, event, remaining_selection.pop(event.number, ()))
        else:
            _split(open_lots, event.shares)
    if remaining_selection:
        raise InputError(f"there is no sale {min(remaining_selection)}; the sales are numbered in the column `sale`")
    remaining_lots = (lot for open_lots in lots.values() for lot in open_lots if lot.shares)
    return TaxLots(tuple(sorted(remaining_lots, key=lambda lot: lot.lot)), tuple(realised))


def _sell(open_lots: list[Lot], sale: _Event, selection: Sequence[tuple[int, Decimal]]) -> list[RealisedGain]:
    """Close lots with a sale, the selected ones first. Removes empty lots from `open_lots`."""
    by_number = {lot.lot: lot for lot in open_lots if lot.shares}
    selected_lots = []
    for number, shares in selection:
        lot = by_number.get(number)
        if lot is None or shares > lot.shares:
            has = "no shares" if lot is None else f"{lot.shares} shares"
            raise InputError(f"sale {sale.number} cannot close {shares} shares of lot {number}: it has {has} then")
        selected_lots.append((lot, shares))
    if sum((shares for _, shares in selected_lots), ZERO) > sale.shares:
        raise InputError(f"sale {sale.number} has {sale.shares} shares, fewer than its selection")
    remaining = sale.shares
    gains = []
    for lot, limit in [*selected_lots, *((lot, None) for lot in open_lots)]:
        shares = min(remaining, lot.shares if limit is None else limit)
        if shares <= 0:
            continue
        cost = lot.cost * shares / lot.shares
        proceeds = (sale.value - sale.fee) * shares / sale.shares
        gains.append(
            RealisedGain(
                strategy=sale.strategy,
                symbol=sale.symbol,
                lot=lot.lot,
                sale=sale.number,
                opened=lot.opened,
                closed=sale.time,
                shares=shares,
                cost=cost,
                proceeds=proceeds,
                gain=proceeds - cost,
            )
        )
        lot.shares -= shares
        lot.cost -= cost
        remaining -= shares
    open_lots[:] = [lot for lot in open_lots if lot.shares]
    return gains


def _split(open_lots: list[Lot], change: Decimal) -> None:
    """Spread the change of shares over the lots in proportion; the last one takes the rounding."""
    total = sum((lot.shares for lot in open_lots), ZERO)
    remaining = change
    for lot in open_lots[:-1] if total else ():
        lot_change = (change * lot.shares / total).quantize(Decimal("1e-9"))
        lot.shares = lot.shares + lot_change
        remaining = remaining - lot_change
    if open_lots and total:
        open_lots[-1].shares += remaining


def _fills(store: Store) -> list[_Event]:
    return [
        _Event(
            at=row.at,
            kind="buy" if row.side == Side.BUY else "sell",
            number=row.id,
            strategy=row.run,
            symbol=row.symbol,
            time=row.time,
            shares=Decimal(row.quantity),
            value=Decimal(row.quantity) * Decimal(row.price),
            fee=Decimal(row.fee),
        )
        for row in store.query(schema.fills_with_intents)
    ]


def _changes(store: Store) -> list[_Event]:
    """Splits and sales by other clients, by strategy."""
    actions = schema.corporate_actions.c
    parts = schema.action_parts.c
    query = (
        select(actions.at, actions.kind, actions.symbol, parts.run, parts.own_change, parts.cash)
        .join(schema.corporate_actions, parts.action_id == actions.id)
        .order_by(parts.id)
    )
    events = []
    for row in store.query(query):
        change = Decimal(row.own_change)
        if row.kind == SOLD_BY_OTHERS and change:
            events.append(_Event(row.at, "sell", 0, row.run, row.symbol, row.at, -change, Decimal(row.cash)))
        elif change:
            events.append(_Event(row.at, "split", 0, row.run, row.symbol, row.at, change))
    return events
