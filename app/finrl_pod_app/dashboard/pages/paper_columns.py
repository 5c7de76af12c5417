"""Column configuration of the tables on the paper trading page: headings, formats and tooltips."""

from __future__ import annotations

from typing import Any

import streamlit as st

from finrl_pod_app.dashboard.pages.columns import definition
from finrl_pod_app.dashboard.theme import EXCHANGE_ZONE

ZONE = EXCHANGE_ZONE.key
SHARES = "localized"


def _text(label: str, width: Any = None, **more: Any) -> Any:
    return st.column_config.TextColumn(label, width=width, **more)


def _number(label: str, form: str, **more: Any) -> Any:
    return st.column_config.NumberColumn(label, format=form, **more)


def _time(label: str) -> Any:
    return st.column_config.DatetimeColumn(label, format="YYYY-MM-DD HH:mm:ss z", timezone=ZONE)


def positions() -> dict[str, Any]:
    """Columns of `paper_account.positions`."""
    return {
        "symbol": _text("Symbol", "small", pinned=True),
        "shares": _number("Shares", SHARES),
        "value": _number("Value", "dollar"),
        "weight": _number("Weight", "percent", help="Value over equity."),
        "target": _number("Target", "percent", help="Target weight of the last decision, summed over the strategies."),
        "distance": _number("Distance", "percent", help="Weight less target."),
        "price": _number("Price", "dollar", help="At the last decision."),
        "average": _number("Average cost", "dollar", help="Average purchase price per share."),
        "gain": _number("Unrealised gain", "dollar", help="Value less cost."),
        "gain_share": _number("Unrealised, %", "percent", help="Unrealised gain over cost."),
        "realised": _number("Realised gain", "dollar", help="Sales at average cost, plus dividends, less fees."),
    }


def strategy_parts() -> dict[str, Any]:
    """Columns of the strategies of an account beside their backtests."""
    return {
        "name": _text("Part"),
        "strategy": _text("Strategy"),
        "equity": _number("Equity", "dollar"),
        "backtest": _number("Backtest", "dollar"),
        "difference": _number("Difference", "dollar", help="Equity of the account less that of the backtest."),
    }


def open_intents() -> dict[str, Any]:
    """Columns of `paper_account.open_intents`."""
    return {
        "symbol": _text("Symbol", "small", pinned=True),
        "side": _text("Side", "small"),
        "intended": _number("Quantity", SHARES),
        "filled": _number("Filled", SHARES),
        "order": _text("Order"),
        "deadline": _time("Deadline"),
    }


def orders() -> dict[str, Any]:
    """Columns of `paper_account.orders`."""
    return {
        "at": _time("Created"),
        "symbol": _text("Symbol", "small"),
        "side": _text("Side", "small"),
        "quantity": _number("Shares", SHARES),
        "filled": _number("Filled", SHARES),
        "average": _number("Average price", "dollar"),
        "limit_price": _number("Limit price", "dollar"),
        "time_in_force": _text("Time in force", "small", help="opg, cls: opening or closing auction; day: session."),
        "state": _text("State", "small"),
        "status": _text("Broker status", "small"),
        "detail": _text("Detail"),
        "client_order_id": _text("Client order ID"),
    }


def fills() -> dict[str, Any]:
    """Columns of `paper_account.fills`."""
    return {
        "time": _time("Time"),
        "symbol": _text("Symbol", "small"),
        "side": _text("Side", "small"),
        "quantity": _number("Shares", SHARES),
        "price": _number("Price", "dollar"),
        "value": _number("Value", "dollar"),
        "fee": _number("Fee", "dollar"),
        "slippage": _number("Shortfall, bp", "%.1f", help=definition("implementation_shortfall")),
        "source": _text("Source", "small", help="How the daemon received it: the broker's stream or a poll."),
        "client_order_id": _text("Client order ID"),
    }


def slippage() -> dict[str, Any]:
    """Columns of `paper_performance.slippage_by_symbol`."""
    return {
        "symbol": _text("Symbol", "small", pinned=True),
        "fills": _number("Fills", SHARES),
        "value": _number("Value traded", "dollar"),
        "cost": _number("Shortfall", "dollar", help="Against the prices at the decision; negative is a gain."),
        "bp": _number("Shortfall, bp", "%.1f", help=definition("implementation_shortfall")),
    }


def limits() -> dict[str, Any]:
    """Columns of `paper_state.risk_limits`."""
    return {
        "limit": _text("Limit", "medium", pinned=True),
        "used": _number("Current", "percent"),
        "allowed": _number("Allowed", "percent"),
        "share": st.column_config.ProgressColumn("Used", format="percent", min_value=0.0, max_value=1.0),
    }


def risk() -> dict[str, Any]:
    """Columns of the journal's risk states."""
    return {"at": _time("Since"), "state": _text("State", "small"), "reason": _text("Reason", "large")}


def halts() -> dict[str, Any]:
    """Columns of `paper_state.halted_symbols`."""
    return {"symbol": _text("Symbol", "small"), "at": _time("Since"), "reason": _text("Reason", "large")}


def commands() -> dict[str, Any]:
    """Columns of `paper_state.commands_table`."""
    return {
        "at": _time("Time"),
        "name": _text("Command", "small"),
        "user": _text("User", "small"),
        "address": _text("Address", "small"),
        "outcome": _text("Outcome", "large"),
        "answered": _time("Answered"),
    }


def alerts() -> dict[str, Any]:
    """Columns of the journal's alerts."""
    return {
        "at": _time("Time"),
        "level": _text("Level", "small"),
        "kind": _text("Kind", "small"),
        "message": _text("Message", "large"),
    }


def decisions() -> dict[str, Any]:
    """Columns of the journal's decisions."""
    return {
        "bar": _text("Session", "small"),
        "at": _time("Time"),
        "outcome": _text("Outcome", "small"),
        "strategy": _text("Strategy"),
        "feed": _text("Feed", "small"),
        "detail": _text("Skipped symbols and reasons", "large"),
    }


def external() -> dict[str, Any]:
    """Columns of `paper_account.external_holdings`."""
    return {"symbol": _text("Symbol", "small"), "shares": _number("Shares", SHARES)}
