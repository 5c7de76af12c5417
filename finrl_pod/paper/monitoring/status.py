"""What `paper status` shows, read from the journal alone: it works while the daemon runs and while it is down."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from sqlalchemy import select

from finrl_pod.errors import RunError
from finrl_pod.files import read_json
from finrl_pod.paper.execution.risk import RiskState
from finrl_pod.paper.journal import commands, schema
from finrl_pod.paper.journal.book import Book
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.records import Side
from finrl_pod.paper.settings import PaperConfig

LATEST_ALERTS = 5


def status(store: Store, config: PaperConfig) -> dict[str, Any]:
    """Plain values; amounts as text with all their decimals."""
    book = Book(store)
    risk, mark = store.last(schema.risk_states), store.last(schema.equity)
    decision = store.last(schema.decisions)
    return {
        "name": config.name,
        "journal": str(store.path),
        "account": store.fact("account"),
        "state": RiskState.ACTIVE.value if risk is None else risk.state,
        "reason": "" if risk is None else risk.reason,
        "daemon": heartbeat(config.outside.heartbeat),
        "capital": str(Decimal(str(config.capital))),
        "cash": str(Decimal(str(config.capital)) + book.cash),
        "equity": None if mark is None else {"session": mark.session, "value": mark.equity, "at": mark.at},
        "positions": {s: str(q) for s, q in sorted(book.positions.items()) if q},
        "foreign_positions": {s: str(q) for s, q in sorted(book.foreign().items())},
        "open_intents": [open_intent(t.intent.symbol, t) for t in book.open.values()],
        "last_decision": None
        if decision is None
        else {"bar": decision.bar, "outcome": decision.outcome, "strategy": decision.strategy, "feed": decision.feed},
        "counts": {t.name: store.count(t) for t in (schema.decisions, schema.intents, schema.orders, schema.fills)},
        "slippage": slippage(store, config.broker.cost_bps),
        "waiting_commands": [command.name.value for command in commands.pending(store)],
        "alerts": [
            {"at": row.at, "level": row.level, "kind": row.kind, "message": row.message}
            for row in store.rows(schema.alerts)[-LATEST_ALERTS:]
        ],
    }


def open_intent(symbol: str, tracked: Any) -> dict[str, str]:
    """One line of what is under way."""
    return {
        "symbol": symbol,
        "side": tracked.intent.side.value,
        "quantity": str(tracked.intent.quantity),
        "filled": str(tracked.filled),
        "order": tracked.live.view.state.value if tracked.live else "none",
    }


def orders(store: Store) -> list[dict[str, Any]]:
    """Every order with what is known of it, oldest first."""
    events, made, intents = schema.order_events, schema.orders.c, schema.intents.c
    with store.read() as connection:
        last = {row.order_id: row for row in connection.execute(select(events).order_by(events.c.id))}
        rows = connection.execute(
            select(schema.orders, intents.symbol, intents.side, intents.bar)
            .join(schema.intents, made.intent_id == intents.id)
            .order_by(made.id)
        ).all()
    return [
        {
            "at": row.at, "bar": row.bar, "client_order_id": row.client_order_id, "symbol": row.symbol,
            "side": row.side, "quantity": row.quantity, "time_in_force": row.time_in_force,
            "limit_price": row.limit_price, "state": last[row.id].state, "status": last[row.id].status,
            "filled": last[row.id].filled, "value": last[row.id].value,
        }
        for row in rows
    ]  # fmt: skip


def slippage(store: Store, modelled_bps: float) -> dict[str, float | None]:
    """What fills cost beyond the decision's prices, in basis points of value, beside what was modelled.

    Positive is against us. It holds the market's move from the decision to the fill, which averages out over time.
    """
    fills, made, intents = schema.fills.c, schema.orders.c, schema.intents.c
    with store.read() as connection:
        rows = connection.execute(
            select(fills.quantity, fills.price, intents.reference_price, intents.side)
            .join(schema.orders, fills.order_id == made.id)
            .join(schema.intents, made.intent_id == intents.id)
            .where(intents.bar.not_like("flatten%"))
        ).all()
    value = sum((Decimal(r.quantity) * Decimal(r.reference_price) for r in rows), Decimal(0))
    moved = sum(
        (Side(r.side).sign * Decimal(r.quantity) * (Decimal(r.price) - Decimal(r.reference_price)) for r in rows),
        Decimal(0),
    )
    realised = float(moved / value * 10_000) if value else None
    return {"realised_bps": realised, "modelled_bps": modelled_bps, "fills": float(len(rows))}


def facts(store: Store, config: PaperConfig) -> dict[str, float]:
    """Numbers for Prometheus."""
    mark, risk = store.last(schema.equity), store.last(schema.risk_states)
    state = RiskState.ACTIVE if risk is None else RiskState(risk.state)
    return {
        "equity": float(mark.equity) if mark is not None else config.capital,
        "state": float(list(RiskState).index(state)),
        "decisions": float(store.count(schema.decisions)),
        "orders": float(store.count(schema.orders)),
        "fills": float(store.count(schema.fills)),
        "alerts": float(store.count(schema.alerts)),
        "critical_alerts": float(store.count(schema.alerts, schema.alerts.c.level == "critical")),
    }


def heartbeat(path: str) -> dict[str, Any]:
    """The daemon's last sign of life, as far as a heartbeat file is configured."""
    if not path:
        return {"known": False}
    try:
        beat = read_json(Path(path))
    except RunError:
        return {"known": False}
    age = (datetime.now(UTC) - datetime.fromisoformat(beat["at"])).total_seconds()
    return {"known": True, "age_seconds": round(age, 1), **beat}
