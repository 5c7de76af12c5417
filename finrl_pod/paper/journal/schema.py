"""Tables of the journal.

The journal is append-only: triggers refuse UPDATE and DELETE, so a current state is the newest row about it. Decimals
are stored as text, times as ISO 8601 in UTC. "foreign" tables hold external positions and fills of the same account.
"""

from __future__ import annotations

from sqlalchemy import Column, Connection, ForeignKey, Integer, MetaData, Table, Text, UniqueConstraint, text

from finrl_pod.paper.journal.reader import VERSION

metadata = MetaData()


def _table(name: str, *columns: Column[str] | Column[int] | UniqueConstraint) -> Table:
    """Declare a table with an autoincrement id, in the order of the writes."""
    return Table(name, metadata, Column("id", Integer, primary_key=True, autoincrement=True), *columns)


def _text(name: str, *, optional: bool = False, unique: bool = False) -> Column[str]:
    return Column(name, Text, nullable=optional, unique=unique)


def _foreign_key(name: str, target: str) -> Column[int]:
    return Column(name, Integer, ForeignKey(f"{target}.id"), nullable=False)


facts = _table("facts", _text("name", unique=True), _text("value"))
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
)  # state: JSON of virtual holdings, NULL without any
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
    Column("extended_hours", Integer, nullable=False),
    UniqueConstraint("run", "bar", "symbol", "side"),
)  # slicing: JSON, NULL for whole orders
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
)  # share of each strategy in a corporate action
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
)  # positions: JSON {symbol: [shares, weight]}; the newest row of a run is its current target
cash_marks = _table("cash_marks", _text("at"), _text("cash"), _text("own_cash"), _text("foreign_cash"), _text("reason"))
cursors = _table("cursors", _text("at"), _text("name"), _text("value"))
equity = _table("equity", _text("at"), _text("session"), _text("equity"), _text("cash"), _text("broker_equity"))
strategy_equity = _table(
    "strategy_equity", _text("at"), _text("run"), _text("session"), _text("equity"), _text("cash")
)  # of each of several strategies; `equity` has the sum
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
    "commands",
    _text("at"),
    _text("name"),
    _text("arguments"),
    _text("user", optional=True),
    _text("address", optional=True),
)  # fmt: skip; arguments: a JSON object, empty for all commands so far
command_results = _table(
    "command_results", _text("at"), _foreign_key("command_id", "commands"), _text("outcome"),
    Column("refused", Integer, nullable=False),
)  # fmt: skip
alerts = _table("alerts", _text("at"), _text("level"), _text("kind"), _text("message"))
strategies = _table("strategies", _text("at"), _text("name"), _text("sha256"), _text("detail"), _text("run"))
settings = _table("settings", _text("at"), _text("content"))  # JSON of the daemon settings


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
