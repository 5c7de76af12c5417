"""Tax lots, realised gains and figures by symbol, first in, first out, from the fills of a journal.

A purchase opens a lot, a sale closes lots of the same strategy and symbol. Fees belong to cost and proceeds. A split
changes the shares of a lot and not its cost. Dividends are no part of a gain. A merger sells the former shares for the
cash that is paid for them; new shares from a merger or spin-off cost nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path

from sqlalchemy import select

from finrl_pod.errors import InputError
from finrl_pod.market.tax_lots import Lot, RealisedGain, close_lots
from finrl_pod.paper.domain.records import SOLD_BY_OTHERS, ActionKind, Side
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.closes import Closes
from finrl_pod.paper.journal.store import Store

ZERO = Decimal(0)
SHARE_STEP = Decimal("1e-9")


@dataclass(frozen=True)
class SymbolFigures:
    """Figures of one symbol in currency, except for `shares`. value: value at the last known close."""

    shares: float = 0.0
    value: float = 0.0
    unrealised_gain: float = 0.0
    realised_gain: float = 0.0
    dividends: float = 0.0


@dataclass(frozen=True)
class GainsReport:
    """Realised gains in the order of the sales, open lots with the oldest first, and figures by symbol."""

    realised: tuple[RealisedGain, ...]
    open_lots: tuple[Lot, ...]
    symbols: Mapping[str, SymbolFigures]


@dataclass(frozen=True)
class _Event:
    """A trade or a split. number: number of the fill, 0 for sales of other clients. shares: signed change.

    cash: paid for a purchase or received for a sale, fees included; None for a split.
    """

    at: str
    number: int
    strategy: str
    symbol: str
    time: str
    shares: Decimal
    cash: Decimal | None


def gains_report(store: Store) -> GainsReport:
    """Return lots, gains and figures by symbol of a journal."""
    lots: dict[tuple[str, str], list[Lot]] = defaultdict(list)
    realised: list[RealisedGain] = []
    for event in sorted(_events(store), key=lambda event: event.at):
        open_lots = lots[event.strategy, event.symbol]
        if event.cash is None:
            _split(open_lots, event.shares)
        elif event.shares > 0:
            open_lots.append(
                Lot(event.strategy, event.symbol, event.number, event.time, event.shares, event.cash)
            )  # fmt: skip
        else:
            realised += close_lots(open_lots, -event.shares, event.cash, event.time, event.number)
    remaining_lots = sorted((lot for open_lots in lots.values() for lot in open_lots), key=lambda lot: lot.lot)
    return GainsReport(tuple(realised), tuple(remaining_lots), _figures(store, realised, remaining_lots))


def write_gains(report: GainsReport, folder: Path) -> None:
    """Write realised.csv, open_lots.csv and symbols.csv. Raises InputError if the folder cannot be written."""
    import pandas as pd

    tables = {
        "realised": pd.DataFrame(map(asdict, report.realised), columns=list(RealisedGain.__annotations__)),
        "open_lots": pd.DataFrame(map(asdict, report.open_lots), columns=list(Lot.__annotations__)),
        "symbols": pd.DataFrame([{"symbol": symbol, **asdict(row)} for symbol, row in report.symbols.items()]),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            table.to_csv(folder / f"{name}.csv", index=False)
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from None


def _split(open_lots: list[Lot], change: Decimal) -> None:
    """Spread the change of shares over the lots in proportion; the last one takes the rounding."""
    total = sum((lot.shares for lot in open_lots), ZERO)
    remaining = change
    for lot in open_lots[:-1]:
        lot_change = (change * lot.shares / total).quantize(SHARE_STEP)
        lot.shares += lot_change
        remaining -= lot_change
    if open_lots:
        open_lots[-1].shares += remaining


def _events(store: Store) -> list[_Event]:
    """Fills, and by strategy the splits and sales by other clients."""
    events = []
    for row in store.query(schema.fills_with_intents):
        quantity = Decimal(row.quantity)
        sign = Side(row.side).sign
        cash = quantity * Decimal(row.price) + sign * Decimal(row.fee)
        events.append(_Event(row.at, row.id, row.run, row.symbol, row.time, sign * quantity, cash))
    actions = schema.corporate_actions.c
    parts = schema.action_parts.c
    query = (
        select(actions.at, actions.kind, actions.symbol, parts.run, parts.own_change, parts.cash)
        .join(schema.corporate_actions, parts.action_id == actions.id)
        .order_by(parts.id)
    )
    for row in store.query(query):
        change = Decimal(row.own_change)
        if change != 0:
            is_trade = row.kind in (SOLD_BY_OTHERS, ActionKind.MERGER, ActionKind.SPIN_OFF)
            cash_received = max(Decimal(row.cash), ZERO) if is_trade else None
            events.append(_Event(row.at, 0, row.run, row.symbol, row.at, change, cash_received))
    return events


def _figures(store: Store, realised: list[RealisedGain], open_lots: list[Lot]) -> dict[str, SymbolFigures]:
    prices = Closes(store).prices
    sums: dict[str, dict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for lot in open_lots:
        value = lot.shares * prices.get(lot.symbol, ZERO)
        sums[lot.symbol]["shares"] += lot.shares
        sums[lot.symbol]["value"] += value
        sums[lot.symbol]["unrealised_gain"] += value - lot.cost
    for gain in realised:
        sums[gain.symbol]["realised_gain"] += gain.gain
    for action in store.rows(schema.corporate_actions, schema.corporate_actions.c.kind == ActionKind.CASH_DIVIDEND):
        sums[action.symbol]["dividends"] += Decimal(action.cash)
    return {s: SymbolFigures(**{name: float(x) for name, x in row.items()}) for s, row in sorted(sums.items())}
