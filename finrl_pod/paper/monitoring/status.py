"""Status report of a run, read from the journal only, so that it works with and without a running daemon."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from sqlalchemy import select

from finrl_pod.errors import RunError
from finrl_pod.files import read_json
from finrl_pod.paper.domain.records import Side
from finrl_pod.paper.execution.target_distance import account_distance, current_targets
from finrl_pod.paper.journal import commands, schema
from finrl_pod.paper.journal.ledger import Ledger
from finrl_pod.paper.journal.risk_state import RiskState
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.settings import PaperConfig, allocations

LATEST_ALERTS = 5


def status(store: Store, config: PaperConfig) -> dict[str, Any]:
    """Return the status of a run as JSON values; amounts as text with all decimals."""
    ledger = Ledger(store)
    risk, mark = store.last(schema.risk_states), store.last(schema.equity)
    decision = store.last(schema.decisions)
    return {
        "name": config.name,
        "journal": str(store.path),
        "account": store.fact("account"),
        "state": RiskState.ACTIVE.value if risk is None else risk.state,
        "reason": "" if risk is None else risk.reason,
        "daemon": read_heartbeat(config.monitoring.heartbeat),
        "capital": str(Decimal(str(config.capital))),
        "cash": str(Decimal(str(config.capital)) + ledger.cash),
        "equity": None if mark is None else {"session": mark.session, "value": mark.equity, "at": mark.at},
        "positions": {s: str(q) for s, q in sorted(ledger.positions.items()) if q},
        "foreign_positions": {s: str(q) for s, q in sorted(ledger.external_positions().items())},
        "open_intents": [open_intent(t.intent.symbol, t) for t in ledger.open.values()],
        "last_decision": None
        if decision is None
        else {"bar": decision.bar, "outcome": decision.outcome, "strategy": decision.strategy, "feed": decision.feed},
        "active_return": _active_return(store),
        "targets": current_targets(ledger, config),
        "strategies": _strategies(ledger, config),
        "counts": {t.name: store.count(t) for t in (schema.decisions, schema.intents, schema.orders, schema.fills)},
        "slippage": slippage(store, config.broker.cost_bps),
        "waiting_commands": [command.name.value for command in commands.pending_commands(store)],
        "alerts": [
            {"at": row.at, "level": row.level, "kind": row.kind, "message": row.message}
            for row in store.rows(schema.alerts)[-LATEST_ALERTS:]
        ],
    }


def status_text(store: Store, config: PaperConfig) -> str:
    """Return the status in a few lines, for messages."""
    found = status(store, config)
    mark = found["equity"]
    lines = [
        f"{found['name']}: {found['state']}" + (f" ({found['reason']})" if found["reason"] else ""),
        "equity: none yet"
        if mark is None
        else f"equity: {float(mark['value']):,.2f} at the close of {mark['session']}",
        f"positions: {', '.join(f'{s} {q}' for s, q in found['positions'].items()) or 'none'}",
        f"open intents: {len(found['open_intents'])}",
        f"distance to target: {account_distance(Ledger(store), config):.2%} of equity",
    ]
    return "\n".join(lines)


def _strategies(ledger: Ledger, config: PaperConfig) -> dict[str, dict[str, Any]]:
    """Return equity at the last known closes, cash and shares of each of several strategies, by name."""
    found = {}
    for part, allocation in zip(config.strategies, allocations(config), strict=False):
        book, prices = ledger.books[allocation.name], ledger.closes.prices
        cash = Decimal(str(allocation.capital)) + book.cash
        held = {symbol: shares for symbol, shares in sorted(book.positions.items()) if shares}
        equity = cash + sum((shares * prices.get(symbol, Decimal(0)) for symbol, shares in held.items()), Decimal(0))
        positions = {symbol: str(shares) for symbol, shares in held.items()}
        found[part.name] = {
            "share": part.share, "capital": str(Decimal(str(allocation.capital))), "equity": str(equity),
            "cash": str(cash), "positions": positions,
        }  # fmt: skip
    return found


def _active_return(store: Store) -> dict[str, Any] | None:
    """Return the active return over the mandate's base at the last decision that measured it, with the band's edge."""
    row = store.last(schema.decisions, schema.decisions.c.state.is_not(None))
    base = None if row is None else json.loads(row.state)["base"]
    measured: dict[str, Any] | None = None if base is None else base["active_return"]
    return None if row is None or measured is None else {"bar": row.bar, **measured}


def open_intent(symbol: str, tracked: Any) -> dict[str, str]:
    """Return an open intent as JSON values."""
    return {
        "symbol": symbol,
        "side": tracked.intent.side.value,
        "quantity": str(tracked.intent.quantity),
        "filled": str(tracked.filled),
        "order": tracked.live.state.value if tracked.live else "none",
    }


def orders(store: Store) -> list[dict[str, Any]]:
    """Return every order with its last known state, oldest first."""
    events, order, intents = schema.order_events, schema.orders.c, schema.intents.c
    with store.read() as connection:
        last = {row.order_id: row for row in connection.execute(select(events).order_by(events.c.id))}
        rows = connection.execute(
            select(schema.orders, intents.symbol, intents.side, intents.bar, intents.run)
            .join(schema.intents, order.intent_id == intents.id)
            .order_by(order.id)
        ).all()
    return [
        {
            "at": row.at, "run": row.run, "bar": row.bar, "client_order_id": row.client_order_id, "symbol": row.symbol,
            "side": row.side, "quantity": row.quantity, "time_in_force": row.time_in_force,
            "limit_price": row.limit_price, "state": last[row.id].state, "status": last[row.id].status,
            "filled": last[row.id].filled, "value": last[row.id].value,
        }
        for row in rows
    ]  # fmt: skip


def slippage(store: Store, modelled_bps: float) -> dict[str, float | None]:
    """Return realised and modelled slippage of fills against the decision's prices, in basis points of value.

    Positive is a cost. It includes the market's move between decision and fill, which averages out over time.
    """
    fills, order, intents = schema.fills.c, schema.orders.c, schema.intents.c
    with store.read() as connection:
        rows = connection.execute(
            select(fills.quantity, fills.price, intents.reference_price, intents.side)
            .join(schema.orders, fills.order_id == order.id)
            .join(schema.intents, order.intent_id == intents.id)
            .where(intents.bar.not_like("flatten%"))
        ).all()
    value = sum((Decimal(r.quantity) * Decimal(r.reference_price) for r in rows), Decimal(0))
    moved = sum(
        (Side(r.side).sign * Decimal(r.quantity) * (Decimal(r.price) - Decimal(r.reference_price)) for r in rows),
        Decimal(0),
    )
    realised = float(moved / value * 10_000) if value else None
    return {"realised_bps": realised, "modelled_bps": modelled_bps, "fills": float(len(rows))}


def metrics(store: Store, config: PaperConfig) -> dict[str, float]:
    """Return the gauges of /metrics by name."""
    mark, risk = store.last(schema.equity), store.last(schema.risk_states)
    state = RiskState.ACTIVE if risk is None else RiskState(risk.state)
    return {
        "equity": float(mark.equity) if mark is not None else config.capital,
        "state": float(list(RiskState).index(state)),
        "decisions": float(store.count(schema.decisions)),
        "orders": float(store.count(schema.orders)),
        "fills": float(store.count(schema.fills)),
        "distance_to_target": account_distance(Ledger(store), config),
        "alerts": float(store.count(schema.alerts)),
        "critical_alerts": float(store.count(schema.alerts, schema.alerts.c.level == "critical")),
    }


def read_heartbeat(path: str) -> dict[str, Any]:
    """Return the content and age of the heartbeat file; {"known": False} if there is none."""
    if not path:
        return {"known": False}
    try:
        beat = read_json(Path(path))
    except RunError:
        return {"known": False}
    age = (datetime.now(UTC) - datetime.fromisoformat(beat["at"])).total_seconds()
    return {"known": True, "age_seconds": round(age, 1), **beat}
