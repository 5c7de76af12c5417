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
from typing import Any

from sqlalchemy import select

from finrl_pod.errors import InputError
from finrl_pod.paper.domain.records import SOLD_BY_OTHERS, Side
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store

ZERO = Decimal(0)
SELECTION_COLUMNS = ("sale", "lot", "shares")


@dataclass
class Lot:
    """Shares of one purchase that are still held. number: of the purchase's fill. cost: of these shares, with fees."""

    number: int
    strategy: str
    symbol: str
    opened: str
    shares: Decimal
    cost: Decimal


@dataclass(frozen=True)
class RealisedGain:
    """Shares of a lot that were sold. sale: number of the sale's fill, 0 for shares that other clients sold."""

    strategy: str
    symbol: str
    lot: int
    sale: int
    opened: str
    closed: str
    shares: Decimal
    cost: Decimal
    proceeds: Decimal

    @property
    def gain(self) -> Decimal:
        """Proceeds less cost, in currency."""
        return self.proceeds - self.cost


@dataclass(frozen=True)
class TaxLots:
    """Open lots, oldest first, and realised gains in the order of the sales."""

    open: tuple[Lot, ...]
    realised: tuple[RealisedGain, ...]


Selection = Mapping[int, Sequence[tuple[int, Decimal]]]


def read_selection(path: Path) -> Selection:
    """Read the lots that sales close from a CSV file with the columns sale, lot and shares. Raises InputError."""
    found: dict[int, list[tuple[int, Decimal]]] = defaultdict(list)
    try:
        with path.open(newline="") as file:
            rows = csv.DictReader(file)
            if tuple(rows.fieldnames or ()) != SELECTION_COLUMNS:
                raise InputError(f"{path} must have the columns {', '.join(SELECTION_COLUMNS)}, got {rows.fieldnames}")
            for row in rows:
                shares = Decimal(row["shares"])
                if not shares.is_finite() or shares <= 0:
                    raise InputError(f"{path}: shares must be above 0, got {row['shares']!r}")
                found[int(row["sale"])].append((int(row["lot"]), shares))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    except (ValueError, TypeError, InvalidOperation):
        raise InputError(f"{path} must have whole numbers as sale and lot, and decimal shares") from None
    return found


def tax_lots(store: Store, selection: Selection | None = None) -> TaxLots:
    """Return the lots of a journal.

    selection: lots and shares that a sale closes, by its number; the rest is first in, first out. Raises InputError if
    it names a lot that the sale's strategy does not hold then, or more shares than the sale or the lot has.
    """
    chosen = dict(selection or {})
    lots: dict[tuple[str, str], list[Lot]] = defaultdict(list)
    realised: list[RealisedGain] = []
    for _, kind, row in sorted([*_fills(store), *_changes(store)], key=lambda item: item[0]):
        held = lots[row["strategy"], row["symbol"]]
        if kind == "buy":
            held.append(
                Lot(
                    row["number"], row["strategy"], row["symbol"], row["time"], row["shares"], row["value"] + row["fee"]
                )
            )
        elif kind == "sell":
            realised += _sell(held, row, chosen.pop(row["number"], ()))
        elif kind == "split":
            _split(held, row["shares"])
    if chosen:
        raise InputError(f"there is no sale {min(chosen)}; the sales are numbered in the column `sale`")
    return TaxLots(
        tuple(sorted((lot for held in lots.values() for lot in held if lot.shares), key=lambda lot: lot.number)),
        tuple(realised),
    )


def _sell(held: list[Lot], sale: Mapping[str, Any], named: Sequence[tuple[int, Decimal]]) -> list[RealisedGain]:
    left, found = sale["shares"], []
    by_number = {lot.number: lot for lot in held if lot.shares}
    order = []
    for number, shares in named:
        lot = by_number.get(number)
        if lot is None or shares > lot.shares:
            has = "no shares" if lot is None else f"{lot.shares} shares"
            raise InputError(
                f"sale {sale['number']} cannot close {shares} shares of lot {number}, which has {has} then"
            )
        order.append((lot, shares))
    if sum((shares for _, shares in order), ZERO) > left:
        raise InputError(f"sale {sale['number']} has {left} shares, fewer than its selection")
    for lot, limit in [*order, *((lot, None) for lot in held)]:
        shares = min(left, lot.shares if limit is None else limit)
        if shares <= 0:
            continue
        cost = lot.cost * shares / lot.shares
        proceeds = (sale["value"] - sale["fee"]) * shares / sale["shares"]
        found.append(
            RealisedGain(
                sale["strategy"], sale["symbol"], lot.number, sale["number"], lot.opened, sale["time"], shares, cost,
                proceeds,
            )
        )  # fmt: skip
        lot.shares, lot.cost, left = lot.shares - shares, lot.cost - cost, left - shares
    held[:] = [lot for lot in held if lot.shares]
    return found


def _split(held: list[Lot], change: Decimal) -> None:
    """Spread the change of shares over the lots in proportion; the last one takes the rounding."""
    total = sum((lot.shares for lot in held), ZERO)
    left = change
    for lot in held[:-1] if total else ():
        part = (change * lot.shares / total).quantize(Decimal("1e-9"))
        lot.shares, left = lot.shares + part, left - part
    if held and total:
        held[-1].shares += left


def _fills(store: Store) -> list[tuple[str, str, dict[str, Any]]]:
    fills, orders, intents = schema.fills.c, schema.orders.c, schema.intents.c
    query = (
        select(schema.fills, intents.run, intents.symbol, intents.side)
        .join(schema.orders, fills.order_id == orders.id)
        .join(schema.intents, orders.intent_id == intents.id)
        .order_by(fills.id)
    )
    with store.read() as connection:
        rows = connection.execute(query).all()
    return [
        (
            row.at,
            Side(row.side).value,
            {
                "number": row.id, "strategy": row.run, "symbol": row.symbol, "time": row.time,
                "shares": Decimal(row.quantity), "value": Decimal(row.quantity) * Decimal(row.price),
                "fee": Decimal(row.fee),
            },
        )
        for row in rows
    ]  # fmt: skip


def _changes(store: Store) -> list[tuple[str, str, dict[str, Any]]]:
    """Splits and sales by other clients, by strategy."""
    actions, parts = schema.corporate_actions.c, schema.action_parts.c
    query = (
        select(actions.at, actions.kind, actions.symbol, parts.run, parts.own_change, parts.cash)
        .join(schema.corporate_actions, parts.action_id == actions.id)
        .order_by(parts.id)
    )
    with store.read() as connection:
        rows = connection.execute(query).all()
    found = []
    for row in rows:
        change = Decimal(row.own_change)
        if not change:
            continue
        values = {
            "number": 0, "strategy": row.run, "symbol": row.symbol, "time": row.at, "shares": change, "value": ZERO,
            "fee": ZERO,
        }  # fmt: skip
        if row.kind == SOLD_BY_OTHERS:
            values |= {"shares": -change, "value": Decimal(row.cash)}
        found.append((row.at, "sell" if row.kind == SOLD_BY_OTHERS else "split", values))
    return found
