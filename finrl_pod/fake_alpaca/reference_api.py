"""Trading API about the market: assets, clock, calendar, corporate announcements. Functions return JSON values."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import date
from typing import Any

from finrl_pod.fake_alpaca.exchange import Exchange
from finrl_pod.fake_alpaca.sessions import Session, new_york
from finrl_pod.fake_alpaca.wire_format import ID_NAMESPACE, NOT_FOUND, ApiError, QueryParameters, asset_id, timestamp


def asset(exchange: Exchange, name: str, moment: float) -> dict[str, Any]:
    """GET assets/{symbol or id}. Raises ApiError (404) for an unknown one."""
    symbol = next((s for s in exchange.prices.symbols if name in (s, asset_id(s))), None)
    if symbol is None:
        raise ApiError(404, NOT_FOUND, f"asset not found for {name}")
    return _asset(exchange, symbol, moment)


def assets(exchange: Exchange, query: Mapping[str, str], moment: float) -> list[dict[str, Any]]:
    """GET assets, filtered by status, class and exchange."""
    found = [_asset(exchange, s, moment) for s in exchange.prices.symbols]
    filters = {"status": query.get("status"), "class": query.get("asset_class"), "exchange": query.get("exchange")}
    return [a for a in found if all(v in (None, "", a[k]) for k, v in filters.items())]


def clock(exchange: Exchange, moment: float) -> dict[str, Any]:
    """GET clock."""
    sessions = exchange.prices.sessions
    return {
        "timestamp": timestamp(moment),
        "is_open": sessions.current(moment) is not None,
        "next_open": timestamp(sessions.next_open(moment).open),
        "next_close": timestamp(sessions.next_close(moment).close),
    }


def calendar(exchange: Exchange, query: Mapping[str, str]) -> list[dict[str, Any]]:
    """GET calendar; start and end default to the whole calendar of the panel."""
    sessions = exchange.prices.sessions
    parameters = QueryParameters(query)
    start = parameters.day("start") or sessions.all[0].date
    end = parameters.day("end") or sessions.all[-1].date
    next_session = {a.date: b for a, b in zip(sessions.all, sessions.all[1:], strict=False)}
    return [_calendar_day(s, next_session.get(s.date, s)) for s in sessions.between(start, end)]


def announcements(exchange: Exchange, query: Mapping[str, str]) -> list[dict[str, Any]]:
    """GET corporate_actions/announcements, filtered by ca_types, since, until and symbol."""
    parameters = QueryParameters(query)
    since = parameters.day("since")
    until = parameters.day("until")
    kinds = {k.lower() for k in (query.get("ca_types") or "").split(",") if k}
    found = []
    for action in exchange.prices.actions:
        day = date.fromisoformat(action.ex_date)
        if (since and day < since) or (until and day > until) or query.get("symbol") not in (None, "", action.symbol):
            continue
        if kinds and action.kind not in kinds:
            continue
        name = str(uuid.uuid5(ID_NAMESPACE, f"action/{action}"))
        sub = "cash" if action.kind == "dividend" else "stock_split" if action.new > action.old else "reverse_split"
        dates = dict.fromkeys(("ex_date", "record_date", "payable_date", "effective_date"), action.ex_date)
        found.append(
            {
                "id": name,
                "corporate_action_id": name,
                "ca_type": action.kind.title() if exchange.settings.capitalised_action_types else action.kind,
                "ca_sub_type": sub,
                "initiating_symbol": action.symbol,
                "initiating_original_cusip": "",
                "target_symbol": action.symbol,
                "target_original_cusip": "",
                "declaration_date": action.ex_date,
                **dates,
                "cash": str(action.cash),
                "old_rate": str(action.old),
                "new_rate": str(action.new),
            }
        )
    return found


def _asset(exchange: Exchange, symbol: str, moment: float) -> dict[str, Any]:
    tradable = exchange.tradable(symbol, moment)
    return {
        "id": asset_id(symbol),
        "class": "crypto" if exchange.settings.crypto else "us_equity",
        "exchange": "CRYPTO" if exchange.settings.crypto else "NASDAQ",
        "symbol": symbol,
        "name": f"{symbol} common stock",
        "status": "active" if tradable else "inactive",
        "tradable": tradable,
        "marginable": True,
        "shortable": exchange.shorting,
        "easy_to_borrow": exchange.shorting,
        "borrow_status": "easy_to_borrow",
        "fractionable": True,
        "margin_requirement_long": "50",
        "margin_requirement_short": "50",
        "attributes": [],
    }


def _calendar_day(session: Session, settlement: Session) -> dict[str, Any]:
    opened = new_york(session.open)
    closed = new_york(session.close)
    return {
        "date": session.date.isoformat(),
        "open": f"{opened:%H:%M}",
        "close": f"{closed:%H:%M}",
        "session_open": "0400",
        "session_close": "2000",
        "settlement_date": settlement.date.isoformat(),
    }
