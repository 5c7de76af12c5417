"""How the columns of the paper page's tables are headed, written and explained."""

from __future__ import annotations

from typing import Any

import streamlit as st

from finrl_pod_app.dashboard.definitions import definition
from finrl_pod_app.dashboard.theme import EXCHANGE_ZONE

ZONE = EXCHANGE_ZONE.key
SHARES = "localized"


def _text(label: str, width: Any = None, **more: Any) -> Any:
    return st.column_config.TextColumn(label, width=width, **more)


def _number(label: str, form: str, **more: Any) -> Any:
    return st.column_config.NumberColumn(label, format=form, **more)


def _moment(label: str) -> Any:
    return st.column_config.DatetimeColumn(label, format="YYYY-MM-DD HH:mm:ss z", timezone=ZONE)


def positions() -> dict[str, Any]:
    """Of `paper_account.positions`, whose shares of equity are given in percent."""
    return {
        "symbol": _text("Symbol", "small", pinned=True),
        "shares": _number("Shares", SHARES),
        "value": _number("Value", "dollar"),
        "weight": _number("Weight", "percent", help="Value over own equity."),
        "target": _number("Target", "percent", help="Weight that the last decision asked for."),
        "price": _number("Price", "dollar", help="At the last decision."),
        "average": _number("Paid", "dollar", help="Average price paid for the shares that are held."),
        "gain": _number("Gain", "dollar", help="Value over what was paid."),
        "realised": _number(
            "Realised", "dollar", help="Gains of shares sold, at average cost, and dividends, less fees."
        ),
    }


def under_way() -> dict[str, Any]:
    """Of `paper_account.under_way`."""
    return {
        "symbol": _text("Symbol", "small", pinned=True),
        "side": _text("Side", "small"),
        "wanted": _number("Wanted", SHARES),
        "filled": _number("Filled", SHARES),
        "order": _text("Order"),
        "deadline": _moment("Sent until"),
    }


def orders() -> dict[str, Any]:
    """Of `paper_account.orders`."""
    return {
        "at": _moment("Written"),
        "symbol": _text("Symbol", "small"),
        "side": _text("Side", "small"),
        "quantity": _number("Shares", SHARES),
        "filled": _number("Filled", SHARES),
        "average": _number("Average", "dollar"),
        "limit_price": _number("Limit", "dollar"),
        "time_in_force": _text("In force", "small", help="opg, cls: opening or closing auction; day: that day."),
        "state": _text("State", "small"),
        "status": _text("Broker says", "small"),
        "detail": _text("Detail"),
        "client_order_id": _text("Name"),
    }  # fmt: skip


def fills() -> dict[str, Any]:
    """Of `paper_account.fills`."""
    return {
        "time": _moment("Time"),
        "symbol": _text("Symbol", "small"),
        "side": _text("Side", "small"),
        "quantity": _number("Shares", SHARES),
        "price": _number("Price", "dollar"),
        "value": _number("Value", "dollar"),
        "fee": _number("Fee", "dollar"),
        "slippage": _number("Slippage, bp", "%.1f", help=definition("slippage")),
        "source": _text("Heard by", "small", help="How the daemon learned of it: the broker's stream, or by asking."),
        "client_order_id": _text("Order"),
    }


def costs() -> dict[str, Any]:
    """Of `paper_costs.by_symbol`."""
    return {
        "symbol": _text("Symbol", "small", pinned=True),
        "fills": _number("Fills", SHARES),
        "value": _number("Traded", "dollar"),
        "moved": _number("Cost", "dollar", help="Against the decision's prices; negative is in our favour."),
        "bp": _number("bp", "%.1f", help=definition("slippage")),
    }


def limits() -> dict[str, Any]:
    """Of `paper_state.limits`."""
    return {
        "limit": _text("Limit", "medium", pinned=True),
        "used": _number("Now", "percent"),
        "allowed": _number("Allowed", "percent"),
        "share": st.column_config.ProgressColumn("Used", format="percent", min_value=0.0, max_value=1.0),
    }


def risk() -> dict[str, Any]:
    """Of the journal's risk states."""
    return {"at": _moment("Since"), "state": _text("State", "small"), "reason": _text("Reason", "large")}


def halts() -> dict[str, Any]:
    """Of `paper_state.halted_symbols`."""
    return {"symbol": _text("Symbol", "small"), "at": _moment("Since"), "reason": _text("Reason", "large")}


def commands() -> dict[str, Any]:
    """Of `paper_state.commands`."""
    return {
        "at": _moment("Given"),
        "name": _text("Command", "small"),
        "user": _text("By", "small"),
        "address": _text("From", "small"),
        "outcome": _text("Outcome", "large"),
        "answered": _moment("Answered"),
    }


def alerts() -> dict[str, Any]:
    """Of the journal's alerts."""
    return {
        "at": _moment("Time"),
        "level": _text("Level", "small"),
        "kind": _text("Kind", "small"),
        "message": _text("Message", "large"),
    }


def decisions() -> dict[str, Any]:
    """Of the journal's decisions."""
    return {
        "bar": _text("Closes of", "small"),
        "at": _moment("Taken"),
        "outcome": _text("Outcome", "small"),
        "strategy": _text("Strategy"),
        "feed": _text("Prices", "small"),
        "detail": _text("Left alone, or why not", "large"),
    }


def foreign() -> dict[str, Any]:
    """Of `paper_account.foreign`."""
    return {"symbol": _text("Symbol", "small"), "shares": _number("Shares", SHARES)}
