"""Checks that every row of a journal can be read, so that a damaged one is named before anything depends on it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

from sqlalchemy import Table, select, text

from finrl_pod.errors import JournalError
from finrl_pod.paper.domain.intents import IntentState
from finrl_pod.paper.domain.order_state import OrderState
from finrl_pod.paper.domain.records import OrderStatus, OrderType, Side, TimeInForce
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import CommandName, RiskState
from finrl_pod.paper.journal.decision_state import (
    DecisionState,
    TargetState,
    decode_positions,
    decode_weights,
    skip_reasons,
)
from finrl_pod.paper.journal.store import Store, moment

MAX_SHOWN = 80  # characters of a value in a message
_DAMAGE = (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError)
_MOMENTS = ("at", "opens", "deadline", "ends", "time")
_NUMBERS = (
    "quantity", "cumulative_quantity", "price", "reference_price", "limit_price", "fee", "filled", "value", "cash",
    "own_cash", "foreign_cash", "own_change", "foreign_change", "equity", "broker_equity", "distance",
    "unpaid",
)  # fmt: skip
_DATES = ("ex_date", "until")
_DOCUMENTS = ("arguments", "content")  # JSON objects
_READERS: Mapping[tuple[Table, str], Callable[[Any], object]] = {
    (schema.intents, "side"): Side,
    (schema.intents, "time_in_force"): TimeInForce,
    (schema.intents, "type"): OrderType,
    (schema.intent_events, "state"): IntentState,
    (schema.orders, "time_in_force"): TimeInForce,
    (schema.orders, "type"): OrderType,
    (schema.order_events, "state"): OrderState,
    (schema.order_events, "status"): OrderStatus,
    (schema.targets, "state"): TargetState,
    (schema.risk_states, "state"): RiskState,
    (schema.commands, "name"): CommandName,
    (schema.decisions, "bar"): lambda bar: date.fromisoformat(bar[:10]),
    (schema.decisions, "state"): DecisionState.decode,
    (schema.decisions, "weights"): decode_weights,
    (schema.targets, "positions"): decode_positions,
}
_TEXTS = ((schema.cursors, "value"), (schema.facts, "value"))
_ROW_READERS: Mapping[Table, Callable[[Any], object]] = {
    schema.decisions: lambda row: skip_reasons(row.outcome, row.detail),
}
_READ_LATER = ((schema.decisions, "inputs"),)  # long, and of no use for trading


def open_checked(path: Path) -> Store:
    """Open the journal at `path` and read every row. Raises JournalError as `Store.open` and `check_rows`."""
    store = Store.open(path)
    with contextlib.ExitStack() as on_error:
        on_error.callback(store.close)
        check_rows(store)
        on_error.pop_all()
    return store


def check_rows(store: Store) -> None:
    """Read every row once. Raises JournalError that names the table and the row of the first one that is damaged."""
    for table in schema.metadata.sorted_tables:
        columns = [column for column in table.columns if (table, column.name) not in _READ_LATER]
        readers = [(i, column.name, column.nullable, _reader(table, column.name)) for i, column in enumerate(columns)]
        read_row = _ROW_READERS.get(table)
        with store.read() as connection:
            for row in connection.execute(select(*columns)):
                for i, name, optional, read in readers:
                    value = row[i]
                    if value is None and optional:
                        continue
                    try:
                        read(value)
                    except _DAMAGE:
                        raise _unreadable(store, table.name, row[0], f"{name} is {str(value)[:MAX_SHOWN]!r}") from None
                if read_row is not None:
                    try:
                        read_row(row)
                    except _DAMAGE:
                        reason = f"detail is {row.detail[:MAX_SHOWN]!r}"
                        raise _unreadable(store, table.name, row[0], reason) from None
    with store.read() as connection:
        violation = connection.execute(text("PRAGMA foreign_key_check")).first()
    if violation is not None:
        raise _unreadable(store, violation[0], violation[1], f"its row of table {violation[2]} is missing")


def _unreadable(store: Store, table: str, row: object, reason: str) -> JournalError:
    return JournalError(
        f"row {row} of table {table} in journal {store.path} cannot be read: {reason}. Restore a backup, "
        "or rebuild the journal with: finrl-pod paper adopt CONFIG.toml"
    )


def _reader(table: Table, name: str) -> Callable[[Any], object]:
    """Return the function that reads a column's values, as the rest of the program does."""
    if (table, name) in _READERS:
        return _READERS[table, name]
    if (table, name) in _TEXTS:
        return _text
    for names, read in ((_MOMENTS, _moment), (_NUMBERS, _number), (_DATES, _date), (_DOCUMENTS, _document)):
        if name in names:
            return read
    return _whole_number if table.columns[name].type.python_type is int else _text


def _moment(value: str) -> None:
    if moment(value).tzinfo is None:
        raise ValueError("without a time zone")


def _number(value: str) -> None:
    if not Decimal(_text(value)).is_finite():
        raise ValueError("not finite")


def _date(value: str) -> None:
    date.fromisoformat(value[:10])


def _document(value: str) -> None:
    if not isinstance(json.loads(value), dict):
        raise TypeError("not an object")


def _whole_number(value: object) -> None:
    if not isinstance(value, int):
        raise TypeError("not a whole number")


def _text(value: str) -> str:
    if not isinstance(value, str):
        raise TypeError("not text")
    return value
