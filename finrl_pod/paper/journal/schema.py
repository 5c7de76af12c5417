"""Tables of the journal and its schema migrations.

The journal is append-only: triggers refuse UPDATE and DELETE, so a current state is the newest row about it. Decimals
are stored as text, times as ISO 8601 in UTC. "foreign" tables hold external positions and fills of the same account.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from sqlalchemy import Column, Connection, ForeignKey, Integer, MetaData, Table, Text, UniqueConstraint, text

metadata = MetaData()


def _table(name: str, *columns: Column[str] | Column[int] | UniqueConstraint) -> Table:
    """Declare a table with an autoincrement id, which is also the order in which its rows were written."""
    return Table(name, metadata, Column("id", Integer, primary_key=True, autoincrement=True), *columns)


def _text(name: str, *, optional: bool = False, unique: bool = False) -> Column[str]:
    return Column(name, Text, nullable=optional, unique=unique)


def _foreign_key(name: str, target: str) -> Column[int]:
    return Column(name, Integer, ForeignKey(f"{target}.id"), nullable=False)


facts = _table("facts", _text("name", unique=True), _text("value"))
leases = _table("leases", _text("at"), _text("owner"), _text("host"), Column("pid", Integer, nullable=False))
decisions = _table(
    "decisions",
    _text("at"),
    _text("run"),
    _text("bar"),
    _text("strategy"),
    _text("feed"),
    _text("inputs"),
    _text("weights", optional=True),
    _text("outcome"),
    _text("detail"),
    _text("state", optional=True),
    UniqueConstraint("run", "bar"),
)  # fmt: skip; state: JSON of virtual holdings, NULL without any and before version 6
intents = _table(
    "intents",
    _text("at"),
    _text("run"),
    _text("bar"),
    _text("symbol"),
    _text("side"),
    _text("quantity"),
    _text("time_in_force"),
    _text("type"),
    _text("limit_price", optional=True),
    _text("reference_price"),
    _text("opens"),
    _text("deadline"),
    _text("ends"),
    _text("slicing", optional=True),
    Column("extended_hours", Integer),
    UniqueConstraint("run", "bar", "symbol", "side"),
)  # fmt: skip; slicing: JSON, NULL for whole orders. Both columns are NULL before version 8
intent_events = _table(
    "intent_events", _text("at"), _foreign_key("intent_id", "intents"), _text("state"), _text("detail")
)
orders = _table(
    "orders", _text("at"), _text("client_order_id", unique=True), _foreign_key("intent_id", "intents"),
    Column("attempt", Integer, nullable=False), _text("quantity"), _text("time_in_force"), _text("type"),
    _text("limit_price", optional=True), _text("replaces", optional=True),
)  # fmt: skip
order_events = _table(
    "order_events", _text("at"), Column("order_id", Integer, ForeignKey("orders.id"), nullable=False, index=True),
    _text("state"), _text("broker_id"), _text("status"), _text("filled"), _text("value"),
    Column("cancel_requested", Integer, nullable=False), _text("source"), _text("detail"),
)  # fmt: skip
fills = _table(
    "fills", _text("at"), _foreign_key("order_id", "orders"), _text("execution_id"), _text("quantity"),
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
action_parts = _table(
    "action_parts",
    _text("at"),
    _foreign_key("action_id", "corporate_actions"),
    _text("run"),
    _text("own_change"),
    _text("cash"),
)  # fmt: skip; the part of each strategy in a corporate action, since version 7
targets = _table(
    "targets",
    _text("at"),
    _text("run"),
    _text("bar"),
    _text("session"),
    _text("until"),
    _text("state"),
    _text("positions"),
    _text("distance"),
)  # fmt: skip; positions: JSON {symbol: [shares, weight]}; the newest row of a run is its current target
cash_marks = _table("cash_marks", _text("at"), _text("cash"), _text("own_cash"), _text("foreign_cash"), _text("reason"))
cursors = _table("cursors", _text("at"), _text("name"), _text("value"))
equity = _table("equity", _text("at"), _text("session"), _text("equity"), _text("cash"), _text("broker_equity"))
strategy_equity = _table(
    "strategy_equity", _text("at"), _text("run"), _text("session"), _text("equity"), _text("cash")
)  # of each of several strategies; `equity` is that of all
trading_days = _table(
    "trading_days", _text("at"), _text("session"), _text("state"), _text("equity"), _text("detail")
)  # of intraday decisions: equity at the open, and a stop after a loss
closes = _table(
    "closes", _text("at"), Column("symbol", Text, nullable=False, index=True), _text("session"), _text("price")
)
price_fetches = _table(
    "price_fetches", _text("at"), _text("feed"), _text("adjustment"), _text("start"), _text("end"),
    Column("symbols", Integer, nullable=False), _text("sha256"),
)  # fmt: skip
risk_states = _table("risk_states", _text("at"), _text("state"), _text("reason"))
symbol_halts = _table("symbol_halts", _text("at"), _text("symbol"), Column("halted", Integer), _text("reason"))
commands = _table(
    "commands", _text("at"), _text("name"), _text("arguments"), _text("user", optional=True),
    _text("address", optional=True),
)  # fmt: skip
command_results = _table(
    "command_results", _text("at"), _foreign_key("command_id", "commands"), _text("outcome"), Column("refused", Integer)
)  # refused: 1 if the command was refused, NULL in rows written before version 4
alerts = _table("alerts", _text("at"), _text("level"), _text("kind"), _text("message"))
strategies = _table(
    "strategies", _text("at"), _text("name"), _text("sha256"), _text("detail"), _text("run", optional=True)
)  # run: NULL before version 7
settings = _table("settings", _text("at"), _text("content"))  # JSON of the daemon's settings


def _create_tables(connection: Connection) -> None:
    """Version 1. A new file gets all current tables and columns here; later steps add what an older file lacks."""
    metadata.create_all(connection)
    for table in metadata.tables:
        _make_append_only(connection, table)


def _add_command_source(connection: Connection) -> None:
    """Version 2: who submitted a command and from where; the daemon's settings."""
    _add_missing_columns(connection, "commands", ("user", "address"), "TEXT")
    settings.create(connection, checkfirst=True)
    _make_append_only(connection, settings.name)


def _add_closes(connection: Connection) -> None:
    """Version 3: the last known close of each symbol, taken from the decisions so far."""
    closes.create(connection, checkfirst=True)
    connection.execute(
        text(
            "INSERT INTO closes (at, symbol, session, price) "
            "SELECT d.at, j.key, d.bar, j.value FROM decisions d, json_each(d.inputs, '$.closes') j ORDER BY d.id"
        )
    )
    _make_append_only(connection, closes.name)


def _add_refused(connection: Connection) -> None:
    """Version 4: whether a command was refused."""
    _add_missing_columns(connection, "command_results", ("refused",), "INTEGER")


def _rename_dialect(connection: Connection) -> None:
    """Version 5: table `looks` becomes `price_fetches`; the settings' section `outside` becomes `monitoring`.

    Rows are never changed: renamed settings are appended as the newest row.
    """
    tables = {name for (name,) in connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'table'"))}
    if "looks" in tables:
        for verb in ("update", "delete"):
            connection.execute(text(f"DROP TRIGGER IF EXISTS looks_no_{verb}"))
        connection.execute(text("ALTER TABLE looks RENAME TO price_fetches"))
    price_fetches.create(connection, checkfirst=True)
    _make_append_only(connection, price_fetches.name)
    last = connection.execute(text("SELECT at, content FROM settings ORDER BY id DESC LIMIT 1")).first()
    content = {} if last is None else json.loads(last.content)
    if last is not None and isinstance(content, dict) and "outside" in content:
        renamed = {("monitoring" if key == "outside" else key): value for key, value in content.items()}
        values = {"at": last.at, "content": json.dumps(renamed, sort_keys=True)}
        connection.execute(text("INSERT INTO settings (at, content) VALUES (:at, :content)"), values)


def _add_state(connection: Connection) -> None:
    """Version 6: the virtual holdings of strategy and base after each decision."""
    _add_missing_columns(connection, "decisions", ("state",), "TEXT")


def _add_targets(connection: Connection) -> None:
    """Version 7: kept targets, and the books of several strategies in one account."""
    for table in (strategies, action_parts, targets, strategy_equity):
        table.create(connection, checkfirst=True)
        _make_append_only(connection, table.name)
    _add_missing_columns(connection, "strategies", ("run",), "TEXT")


def _add_slicing(connection: Connection) -> None:
    """Version 8: orders in slices and in extended hours."""
    intents.create(connection, checkfirst=True)
    _make_append_only(connection, intents.name)
    _add_missing_columns(connection, "intents", ("slicing",), "TEXT")
    _add_missing_columns(connection, "intents", ("extended_hours",), "INTEGER")


def _add_trading_days(connection: Connection) -> None:
    """Version 9: the open of each day of intraday decisions, and whether it was stopped."""
    trading_days.create(connection, checkfirst=True)
    _make_append_only(connection, trading_days.name)


def _add_missing_columns(connection: Connection, table: str, columns: Sequence[str], kind: str) -> None:
    known = {row.name for row in connection.execute(text(f"PRAGMA table_info({table})"))}
    for column in columns:
        if column not in known:
            connection.execute(text(f"ALTER TABLE {table} ADD COLUMN {column} {kind}"))


def _make_append_only(connection: Connection, table: str) -> None:
    for verb in ("UPDATE", "DELETE"):
        connection.execute(
            text(
                f"CREATE TRIGGER IF NOT EXISTS {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, 'the journal is only added to'); END"
            )
        )


Migration = Callable[[Connection], None]

# Step n turns version n - 1 into version n. A released step never changes; reader.VERSION is the number of steps.
MIGRATIONS: Sequence[Migration] = (
    _create_tables,
    _add_command_source,
    _add_closes,
    _add_refused,
    _rename_dialect,
    _add_state,
    _add_targets,
    _add_slicing,
    _add_trading_days,
)
