"""Tables of the journal.

The journal is append-only: triggers refuse UPDATE and DELETE, so a current state is the newest row about it. Decimals
are stored as text, times as ISO 8601 in UTC. "foreign" tables hold external positions and fills of the same account.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Connection, ForeignKey, Integer, MetaData, Table, Text, UniqueConstraint, select, text
from sqlalchemy.schema import SchemaItem

from finrl_pod.paper.journal.reader import VERSION

metadata = MetaData()


def _table(name: str, *columns: str | Column[Any] | UniqueConstraint) -> Table:
    """Declare a table with an autoincrement id. Words name text columns; with a question mark, they may be NULL."""
    items: list[SchemaItem] = [Column("id", Integer, primary_key=True, autoincrement=True)]
    for column in columns:
        if isinstance(column, str):
            items += [Column(word.rstrip("?"), Text, nullable=word.endswith("?")) for word in column.split()]
        else:
            items.append(column)
    return Table(name, metadata, *items)


def _foreign_key(name: str, target: str) -> Column[int]:
    return Column(name, Integer, ForeignKey(f"{target}.id"), nullable=False)


def _integer(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False)


def _unique(name: str) -> Column[str]:
    return Column(name, Text, nullable=False, unique=True)


facts = _table("facts", _unique("name"), "value")
# state: JSON of virtual holdings, NULL without any
decisions = _table(
    "decisions", "at run bar strategy feed inputs weights? outcome detail state?", UniqueConstraint("run", "bar")
)
intents = _table(
    "intents",
    "at run bar symbol side quantity time_in_force type limit_price? reference_price opens deadline ends",
    UniqueConstraint("run", "bar", "symbol", "side"),
)
intent_events = _table("intent_events", "at", _foreign_key("intent_id", "intents"), "state detail")
orders = _table(
    "orders",
    "at",
    _unique("client_order_id"),
    _foreign_key("intent_id", "intents"),
    _integer("attempt"),
    "quantity time_in_force type limit_price? replaces?",
)
order_events = _table(
    "order_events",
    "at",
    Column("order_id", Integer, ForeignKey("orders.id"), nullable=False, index=True),
    "state broker_id status filled value",
    _integer("cancel_requested"),
    "source detail",
)
fills = _table(
    "fills",
    "at",
    _foreign_key("order_id", "orders"),
    "execution_id quantity cumulative_quantity price fee time source",
    UniqueConstraint("order_id", "cumulative_quantity"),
)
foreign_fills = _table("foreign_fills", "at", _unique("execution_id"), "broker_order_id symbol quantity price time")
# signed shares added to what was recorded before
foreign_positions = _table("foreign_positions", "at symbol quantity reason")
# also transfers of cash and write-offs: every change of shares and cash that is no fill
corporate_actions = _table(
    "corporate_actions",
    "at",
    _unique("action_id"),
    "kind symbol ex_date own_change foreign_change cash foreign_cash detail",
)
# share of each strategy; unpaid: dividends that the account was not credited with, negative once it is
action_parts = _table(
    "action_parts", "at", _foreign_key("action_id", "corporate_actions"), "run own_change cash unpaid"
)
# positions: JSON {symbol: [shares, weight]}; the newest row of a run is its current target
targets = _table("targets", "at run bar session until state positions distance")
cash_marks = _table("cash_marks", "at cash own_cash foreign_cash reason")
cursors = _table("cursors", "at name value")
equity = _table("equity", "at session equity cash broker_equity")
# of each of several strategies; `equity` has the sum
strategy_equity = _table("strategy_equity", "at run session equity cash")
closes = _table("closes", "at", Column("symbol", Text, nullable=False, index=True), "session price")
price_fetches = _table("price_fetches", "at feed adjustment start end", _integer("symbols"), "sha256")
risk_states = _table("risk_states", "at state reason")
symbol_halts = _table("symbol_halts", "at symbol", Column("halted", Integer), "reason")
commands = _table("commands", "at name arguments user? address?")  # arguments: a JSON object, empty for all so far
command_results = _table(
    "command_results", "at", _foreign_key("command_id", "commands"), "outcome", _integer("refused")
)
alerts = _table("alerts", "at level kind message")
strategies = _table("strategies", "at name sha256 detail run")
settings = _table("settings", "at content")  # JSON of the daemon settings

# Fills with the intent that each belongs to, oldest first.
_INTENT_COLUMNS = [intents.c[name] for name in ("run", "bar", "symbol", "side", "reference_price")]
fills_with_intents = (
    select(fills, *_INTENT_COLUMNS, intents.c.id.label("intent_id"))
    .select_from(fills.join(orders).join(intents))
    .order_by(fills.c.id)
)


def create_tables(connection: Connection) -> None:
    """Create all tables, the triggers that refuse changes, and the version number."""
    metadata.create_all(connection)
    for table in metadata.tables:
        for verb in ("UPDATE", "DELETE"):
            connection.execute(
                text(
                    f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END"
                )
            )
    connection.execute(text(f"PRAGMA user_version = {VERSION}"))
