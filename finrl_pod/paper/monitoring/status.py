"""Status report of a run, read from the journal only, so that it works with and without a running daemon."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from sqlalchemy import select

from finrl_pod.errors import RunError
from finrl_pod.files import read_json
from finrl_pod.paper.domain.intents import FLATTEN
from finrl_pod.paper.domain.records import ActionKind, Side
from finrl_pod.paper.execution.sizing import TargetStatus, account_distance, current_targets
from finrl_pod.paper.journal import commands, schema
from finrl_pod.paper.journal.commands import RiskState
from finrl_pod.paper.journal.decision_state import ActiveReturn, DecisionState
from finrl_pod.paper.journal.ledger import Ledger, LedgerEntry, market_value
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.monitoring.health import PROCESS_CHECK_AFTER, STALE_AFTER, has_ended
from finrl_pod.paper.settings import PaperConfig, allocations

LATEST_ALERTS = 5


@dataclass(frozen=True)
class HeartbeatStatus:
    """Content and age of the heartbeat file. known: False if there is none, and the other fields are None.

    trading: orders may be sent. running: False for a process that has ended or has not been heard of for a minute.
    """

    known: bool
    age_seconds: float | None = None
    at: str | None = None
    pid: int | None = None
    trading: bool | None = None
    running: bool | None = None


@dataclass(frozen=True)
class EquityMark:
    """Own equity at the close of a session, recorded at the time `at`."""

    session: str
    value: Decimal
    at: str


@dataclass(frozen=True)
class OpenIntent:
    """An intent without a final state. order: state of its live order, "none" without one."""

    symbol: str
    side: str
    quantity: Decimal
    filled: Decimal
    order: str


@dataclass(frozen=True)
class LastDecision:
    """The newest decision of any strategy."""

    bar: str
    outcome: str
    strategy: str
    feed: str


@dataclass(frozen=True)
class ActiveReturnStatus(ActiveReturn):
    """The active return over the base of the mandate at the decision on `bar`."""

    bar: str


@dataclass(frozen=True)
class StrategyStatus:
    """One of several strategies. share: share of the capital. equity: equity at the last known closes."""

    share: float
    capital: Decimal
    equity: Decimal
    cash: Decimal
    positions: Mapping[str, Decimal]


@dataclass(frozen=True)
class Slippage:
    """Slippage of fills against the prices of the decision, in basis points of value; positive is a cost.

    The realised one includes the market move between decision and fill; it averages out. None without fills.
    """

    realised_bps: float | None
    modelled_bps: float
    fills: int


@dataclass(frozen=True)
class AlertStatus:
    """An alert of the journal."""

    at: str
    level: str
    kind: str
    message: str


@dataclass(frozen=True)
class PaperStatus:
    """Status of an account, as the journal knows it. Amounts in currency; targets by run, strategies by name.

    unpaid_dividends: dividends by symbol, no part of cash and equity. transfers: deposits less withdrawals.
    """

    name: str
    journal: str
    account: str | None
    state: str
    reason: str
    daemon: HeartbeatStatus
    capital: Decimal
    cash: Decimal
    equity: EquityMark | None
    positions: Mapping[str, Decimal]
    foreign_positions: Mapping[str, Decimal]
    open_intents: tuple[OpenIntent, ...]
    last_decision: LastDecision | None
    active_return: ActiveReturnStatus | None
    targets: Mapping[str, TargetStatus]
    strategies: Mapping[str, StrategyStatus]
    counts: Mapping[str, int]
    unpaid_dividends: Mapping[str, Decimal]
    transfers: Decimal
    slippage: Slippage
    waiting_commands: tuple[str, ...]
    alerts: tuple[AlertStatus, ...]


@dataclass(frozen=True)
class OrderStatusRow:
    """An order of the journal with its last known state. filled: shares. value: sum of price times quantity."""

    at: str
    run: str
    bar: str
    client_order_id: str
    symbol: str
    side: str
    quantity: Decimal
    time_in_force: str
    limit_price: Decimal | None
    state: str
    status: str
    filled: Decimal
    value: Decimal


def status(store: Store, config: PaperConfig) -> PaperStatus:
    """Return the status of a run."""
    ledger = Ledger(store)
    risk = store.last(schema.risk_states)
    mark = store.last(schema.equity)
    decision = store.last(schema.decisions)
    capital = Decimal(str(config.capital))
    transfers = store.rows(schema.corporate_actions, schema.corporate_actions.c.kind == ActionKind.TRANSFER)
    return PaperStatus(
        name=config.name,
        journal=str(store.path),
        account=store.fact("account"),
        state=RiskState.ACTIVE.value if risk is None else risk.state,
        reason="" if risk is None else risk.reason,
        daemon=read_heartbeat(config.monitoring.heartbeat),
        capital=capital,
        cash=capital + ledger.cash,
        equity=None if mark is None else EquityMark(mark.session, Decimal(mark.equity), mark.at),
        positions={symbol: shares for symbol, shares in sorted(ledger.positions.items()) if shares},
        foreign_positions=dict(sorted(ledger.external_positions().items())),
        open_intents=tuple(_open_intent(entry) for entry in ledger.open.values()),
        last_decision=None
        if decision is None
        else LastDecision(decision.bar, decision.outcome, decision.strategy, decision.feed),
        active_return=_active_return(store),
        targets=current_targets(ledger, config),
        strategies=_strategies(ledger, config),
        counts={t.name: store.count(t) for t in (schema.decisions, schema.intents, schema.orders, schema.fills)},
        unpaid_dividends={s: sum(parts.values(), Decimal(0)) for s, parts in ledger.unpaid_dividends().items()},
        transfers=sum((Decimal(row.cash) + Decimal(row.foreign_cash) for row in transfers), Decimal(0)),
        slippage=slippage(store, config.broker.cost_bps),
        waiting_commands=tuple(command.name.value for command in commands.pending_commands(store)),
        alerts=tuple(
            AlertStatus(row.at, row.level, row.kind, row.message) for row in store.rows(schema.alerts)[-LATEST_ALERTS:]
        ),
    )


def status_text(store: Store, config: PaperConfig) -> str:
    """Return the status in a few lines, for messages."""
    account = status(store, config)
    mark = account.equity
    lines = [
        f"{account.name}: {account.state}" + (f" ({account.reason})" if account.reason else ""),
        "equity: none yet" if mark is None else f"equity: {mark.value:,.2f} at the close of {mark.session}",
        f"positions: {', '.join(f'{s} {q}' for s, q in account.positions.items()) or 'none'}",
        f"open intents: {len(account.open_intents)}",
        f"distance to target: {account_distance(Ledger(store), config):.2%} of equity",
    ]
    return "\n".join(lines)


def _strategies(ledger: Ledger, config: PaperConfig) -> dict[str, StrategyStatus]:
    """Return the status of each of several strategies, by name."""
    prices = ledger.closes.prices
    strategies = {}
    for strategy, allocation in zip(config.strategies, allocations(config), strict=False):
        book = ledger.books[allocation.name]
        capital = Decimal(str(allocation.capital))
        positions = {symbol: shares for symbol, shares in sorted(book.positions.items()) if shares}
        cash = capital + book.cash
        equity = cash + market_value(positions, prices)
        strategies[strategy.name] = StrategyStatus(strategy.share, capital, equity, cash, positions)
    return strategies


def _active_return(store: Store) -> ActiveReturnStatus | None:
    """Return the active return of the newest decision that has a base."""
    row = store.last(schema.decisions, schema.decisions.c.state.is_not(None))
    base = None if row is None else DecisionState.decode(row.state).base
    if row is None or base is None or base.active_return is None:
        return None
    return ActiveReturnStatus(**asdict(base.active_return), bar=row.bar)


def _open_intent(entry: LedgerEntry) -> OpenIntent:
    intent = entry.intent
    order = "none" if entry.live is None else entry.live.state.value
    return OpenIntent(intent.symbol, intent.side.value, intent.quantity, entry.filled, order)


def orders(store: Store) -> list[OrderStatusRow]:
    """Return every order with its last known state, oldest first."""
    events = schema.order_events
    order = schema.orders.c
    intents = schema.intents.c
    with store.read() as connection:
        last = {row.order_id: row for row in connection.execute(select(events).order_by(events.c.id))}
        rows = connection.execute(
            select(schema.orders, intents.symbol, intents.side, intents.bar, intents.run)
            .join(schema.intents, order.intent_id == intents.id)
            .order_by(order.id)
        ).all()
    return [
        OrderStatusRow(
            at=row.at,
            run=row.run,
            bar=row.bar,
            client_order_id=row.client_order_id,
            symbol=row.symbol,
            side=row.side,
            quantity=Decimal(row.quantity),
            time_in_force=row.time_in_force,
            limit_price=None if row.limit_price is None else Decimal(row.limit_price),
            state=last[row.id].state,
            status=last[row.id].status,
            filled=Decimal(last[row.id].filled),
            value=Decimal(last[row.id].value),
        )
        for row in rows
    ]


def slippage(store: Store, modelled_bps: float) -> Slippage:
    """Return realised and modelled slippage of the fills, without flatten commands."""
    rows = store.query(schema.fills_with_intents.where(schema.intents.c.bar.not_like(f"{FLATTEN}%")))
    value = sum((Decimal(r.quantity) * Decimal(r.reference_price) for r in rows), Decimal(0))
    price_change = sum(
        (Side(r.side).sign * Decimal(r.quantity) * (Decimal(r.price) - Decimal(r.reference_price)) for r in rows),
        Decimal(0),
    )
    realised = float(price_change / value * 10_000) if value else None
    return Slippage(realised, modelled_bps, len(rows))


class Metrics:
    """The gauges of /metrics by name. A call reads only the rows written since the one before. Thread-safe."""

    def __init__(self, store: Store, config: PaperConfig) -> None:
        self._store = store
        self._config = config
        self._ledger = Ledger(store)
        self._lock = threading.Lock()
        self._rows: dict[str, int] = defaultdict(int)  # last row by table: rows are never deleted, so also their number
        self._critical_alerts = 0

    def __call__(self) -> dict[str, float]:
        store = self._store
        mark = store.last(schema.equity)
        with self._lock:
            self._ledger.read_new_rows()
            for row in store.rows(schema.alerts, schema.alerts.c.id > self._rows["alerts"]):
                self._rows["alerts"] = row.id
                self._critical_alerts += row.level == "critical"
            for table in (schema.decisions, schema.orders, schema.fills):
                newest = store.last(table)
                self._rows[table.name] = 0 if newest is None else newest.id
            return {
                "equity": float(mark.equity) if mark is not None else self._config.capital,
                "state": float(list(RiskState).index(commands.read_risk_state(store))),
                "distance_to_target": account_distance(self._ledger, self._config),
                "critical_alerts": float(self._critical_alerts),
                **{name: float(count) for name, count in self._rows.items()},
            }


def read_heartbeat(path: str) -> HeartbeatStatus:
    """Return content and age of the heartbeat file."""
    try:
        beat = read_json(Path(path)) if path else {}
    except RunError:
        beat = {}
    if not beat:
        return HeartbeatStatus(known=False)
    age = (datetime.now(UTC) - datetime.fromisoformat(beat["at"])).total_seconds()
    is_running = age <= PROCESS_CHECK_AFTER or (age <= STALE_AFTER and not has_ended(beat["pid"]))
    return HeartbeatStatus(True, round(age, 1), beat["at"], beat["pid"], beat["trading"] and is_running, is_running)
