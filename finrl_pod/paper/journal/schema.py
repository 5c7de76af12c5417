"""Tables of the journal, and how an older file becomes a current one.

Rows are never changed nor removed: triggers refuse it, so a state is the last row that speaks of it. Decimals are kept
as text, times as ISO 8601 in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Column, Connection, ForeignKey, Integer, MetaData, Table, Text, UniqueConstraint, text

metadata = MetaData()


def _table(name: str, *columns: Column[str] | Column[int] | UniqueConstraint) -> Table:
    """A table with a running number, which is also the order in which its rows were written."""
    return Table(name, metadata, Column("id", Integer, primary_key=True, autoincrement=True), *columns)


def _text(name: str, *, optional: bool = False, unique: bool = False) -> Column[str]:
    return Column(name, Text, nullable=optional, unique=unique)


def _of(name: str, target: str) -> Column[int]:
    return Column(name, Integer, ForeignKey(f"{target}.id"), nullable=False)


facts = _table("facts", _text("name", unique=True), _text("value"))
leases = _table("leases", _text("at"), _text("owner"), _text("host"), Column("pid", Integer, nullable=False))
decisions = _table(
    "decisions", _text("at"), _text("run"), _text("bar"), _text("strategy"), _text("feed"), _text("inputs"),
    _text("weights", optional=True), _text("outcome"), _text("detail"), UniqueConstraint("run", "bar"),
)  # fmt: skip
intents = _table(
    "intents", _text("at"), _text("run"), _text("bar"), _text("symbol"), _text("side"), _text("quantity"),
    _text("time_in_force"), _text("type"), _text("limit_price", optional=True), _text("reference_price"),
    _text("opens"), _text("deadline"), _text("ends"), UniqueConstraint("run", "bar", "symbol", "side"),
)  # fmt: skip
intent_events = _table("intent_events", _text("at"), _of("intent_id", "intents"), _text("state"), _text("detail"))
orders = _table(
    "orders", _text("at"), _text("client_order_id", unique=True), _of("intent_id", "intents"),
    Column("attempt", Integer, nullable=False), _text("quantity"), _text("time_in_force"), _text("type"),
    _text("limit_price", optional=True), _text("replaces", optional=True),
)  # fmt: skip
order_events = _table(
    "order_events", _text("at"), Column("order_id", Integer, ForeignKey("orders.id"), nullable=False, index=True),
    _text("state"), _text("broker_id"), _text("status"), _text("filled"), _text("value"),
    Column("cancel_requested", Integer, nullable=False), _text("source"), _text("detail"),
)  # fmt: skip
fills = _table(
    "fills", _text("at"), _of("order_id", "orders"), _text("execution_id"), _text("quantity"),
    _text("cumulative_quantity"), _text("price"), _text("fee"), _text("time"), _text("source"),
    UniqueConstraint("order_id", "cumulative_quantity"),
)  # fmt: skip
foreign_fills = _table(
    "foreign_fills", _text("at"), _text("execution_id", unique=True), _text("broker_order_id"), _text("symbol"),
    _text("quantity"), _text("price"), _text("time"),
)  # fmt: skip
foreign_positions = _table(
    "foreign_positions", _text("at"), _text("symbol"), _text("quantity"), _text("reason")
)  # signed shares added to what was recorded before
corporate_actions = _table(
    "corporate_actions", _text("at"), _text("action_id", unique=True), _text("kind"), _text("symbol"),
    _text("ex_date"), _text("own_change"), _text("foreign_change"), _text("cash"), _text("detail"),
)  # fmt: skip
cash_marks = _table("cash_marks", _text("at"), _text("cash"), _text("own_cash"), _text("foreign_cash"), _text("reason"))
cursors = _table("cursors", _text("at"), _text("name"), _text("value"))
equity = _table("equity", _text("at"), _text("session"), _text("equity"), _text("cash"), _text("broker_equity"))
closes = _table(
    "closes", _text("at"), Column("symbol", Text, nullable=False, index=True), _text("session"), _text("price")
)
looks = _table(
    "looks", _text("at"), _text("feed"), _text("adjustment"), _text("start"), _text("end"),
    Column("symbols", Integer, nullable=False), _text("sha256"),
)  # fmt: skip
risk_states = _table("risk_states", _text("at"), _text("state"), _text("reason"))
symbol_halts = _table("symbol_halts", _text("at"), _text("symbol"), Column("halted", Integer), _text("reason"))
commands = _table(
    "commands", _text("at"), _text("name"), _text("arguments"), _text("user", optional=True),
    _text("address", optional=True),
)  # fmt: skip
command_results = _table(
    "command_results", _text("at"), _of("command_id", "commands"), _text("outcome"), Column("refused", Integer)
)  # refused: 1 where the answer is no, NULL in rows of before version 4
alerts = _table("alerts", _text("at"), _text("level"), _text("kind"), _text("message"))
strategies = _table("strategies", _text("at"), _text("name"), _text("sha256"), _text("detail"))
settings = _table("settings", _text("at"), _text("content"))  # JSON of what the daemon runs with


def _first(connection: Connection) -> None:
    """Version 1. A new file gets all of today's tables and columns here: later steps add what an older one lacks."""
    metadata.create_all(connection)
    for table in metadata.tables:
        _guard(connection, table)


def _second(connection: Connection) -> None:
    """Version 2: who gave a command, and from where; the daemon's settings."""
    _add_missing(connection, "commands", ("user", "address"), "TEXT")
    settings.create(connection, checkfirst=True)
    _guard(connection, settings.name)


def _third(connection: Connection) -> None:
    """Version 3: the closes that were known last, so far those of the decisions."""
    closes.create(connection, checkfirst=True)
    connection.execute(
        text(
            "INSERT INTO closes (at, symbol, session, price) "
            "SELECT d.at, j.key, d.bar, j.value FROM decisions d, json_each(d.inputs, '$.closes') j ORDER BY d.id"
        )
    )
    _guard(connection, closes.name)


def _fourth(connection: Connection) -> None:
    """Version 4: whether the answer to a command is no."""
    _add_missing(connection, "command_results", ("refused",), "INTEGER")


def _add_missing(connection: Connection, table: str, columns: Sequence[str], kind: str) -> None:
    known = {row.name for row in connection.execute(text(f"PRAGMA table_info({table})"))}
    for column in columns:
        if column not in known:
            connection.execute(text(f"ALTER TABLE {table} ADD COLUMN {column} {kind}"))


def _guard(connection: Connection, table: str) -> None:
    for verb in ("UPDATE", "DELETE"):
        connection.execute(
            text(
                f"CREATE TRIGGER IF NOT EXISTS {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END"
            )
        )


Migration = Callable[[Connection], None]

# Step n makes version n out of version n - 1; a step that was released is never changed. See version.py.
MIGRATIONS: Sequence[Migration] = (_first, _second, _third, _fourth)
