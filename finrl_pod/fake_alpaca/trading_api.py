"""The trading API's answers about the account as plain values: what the exchange knows, in Alpaca's words."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from finrl_pod.fake_alpaca import parameters, rules
from finrl_pod.fake_alpaca.exchange import Exchange
from finrl_pod.fake_alpaca.orders import NAMESPACE, Order, Refusal, amount, asset_id, shares, text
from finrl_pod.fake_alpaca.sessions import new_york, stamp

_LIST_LIMIT, _LIST_MOST, _PAGE_MOST = 50, 500, 100
_HALF = Decimal("0.5")
_MAINTENANCE = Decimal("0.25")
_EIGHT = Decimal("1e-8")


def account(exchange: Exchange, moment: float) -> dict[str, Any]:
    """GET account."""
    settings, ledger = exchange.settings, exchange.ledger
    means = exchange.means(moment)
    gross = means.long - means.short
    regt = max(2 * means.equity - gross - means.reserved, Decimal(0)) if settings.multiplier > 1 else means.buying_power
    number = f"PA3FAKE{exchange.account_number:05d}"
    answer: dict[str, Any] = {
        "id": str(uuid.uuid5(NAMESPACE, f"{settings.seed}/account/{exchange.account_number}")),
        "account_number": number,
        "status": "ACTIVE",
        "crypto_status": "ACTIVE",
        "currency": "USD",
        "buying_power": text(means.buying_power),
        "regt_buying_power": text(regt),
        "non_marginable_buying_power": text(means.cash_power),
        "cash": text(ledger.cash),
        "accrued_fees": "0",
        "portfolio_value": text(means.equity),
        "trading_blocked": False,
        "transfers_blocked": False,
        "account_blocked": False,
        "created_at": stamp(exchange.prices.sessions.all[0].open),
        "trade_suspended_by_user": exchange.conditions.suspended,
        "multiplier": str(settings.multiplier),
        "shorting_enabled": settings.shorting,
        "equity": text(means.equity),
        "last_equity": text(ledger.last_equity),
        "long_market_value": text(means.long),
        "short_market_value": text(means.short),
        "position_market_value": text(gross),
        "initial_margin": text(gross * _HALF),
        "maintenance_margin": text(gross * _MAINTENANCE),
        "last_maintenance_margin": "0",
        "sma": "0",
        "balance_asof": f"{new_york(moment).date()}",
    }
    if settings.removed_fields:
        answer |= {
            "pattern_day_trader": False,
            "daytrade_count": exchange.day_trades.count(moment),
            "daytrading_buying_power": text(means.buying_power * 2),
        }
    return answer


def positions(exchange: Exchange, moment: float) -> list[dict[str, Any]]:
    """GET positions."""
    return [position(exchange, symbol, moment) for symbol in sorted(exchange.ledger.holdings)]


def position(exchange: Exchange, symbol: str, moment: float) -> dict[str, Any]:
    """GET positions/{symbol}."""
    holding = exchange.ledger.holdings.get(symbol)
    if holding is None:
        raise Refusal(404, 40410000, "position does not exist")
    price = exchange.price(symbol, moment)
    current = exchange.prices.sessions.opened(moment)
    yesterday = exchange.prices.last_close(symbol, (current.open if current else moment))
    last = price if yesterday is None else amount(yesterday)
    cost = holding.qty * holding.entry
    value = holding.qty * price
    gain, today = value - cost, holding.qty * (price - last)
    return {
        "asset_id": asset_id(symbol),
        "symbol": symbol,
        "exchange": "NASDAQ",
        "asset_class": "us_equity",
        "asset_marginable": True,
        "qty": text(holding.qty),
        "qty_available": text(exchange.available(symbol)),
        "avg_entry_price": text(holding.entry.quantize(_EIGHT)),
        "side": "long" if holding.qty > 0 else "short",
        "market_value": text(value),
        "cost_basis": text(cost),
        "unrealized_pl": text(gain),
        "unrealized_plpc": text((gain / abs(cost)).quantize(_EIGHT)),
        "unrealized_intraday_pl": text(today),
        "unrealized_intraday_plpc": text((today / abs(holding.qty * last)).quantize(_EIGHT)),
        "current_price": text(price),
        "lastday_price": text(last),
        "change_today": text((price / last - 1).quantize(_EIGHT)),
    }


def order_list(exchange: Exchange, query: Mapping[str, str]) -> list[dict[str, Any]]:
    """GET orders. `after` and `until` are exclusive, by the moment of submission."""
    status = query.get("status") or "open"
    if status not in ("open", "closed", "all"):
        raise Refusal(422, rules.PARAMETER, f"invalid status: {status}")
    direction = query.get("direction") or "desc"
    if direction not in ("asc", "desc"):
        raise Refusal(422, rules.PARAMETER, f"invalid direction: {direction}")
    limit = parameters.count(query, "limit", _LIST_LIMIT, _LIST_MOST)
    after, until = (parameters.moment(query, name) for name in ("after", "until"))
    symbols = {s for s in (query.get("symbols") or "").split(",") if s}
    side = query.get("side")
    first, last = (
        exchange.find(query[n]).number if query.get(n) else None for n in ("after_order_id", "before_order_id")
    )

    def wanted(order: Order) -> bool:
        return (
            (status == "all" or order.open == (status == "open"))
            and (after is None or parameters.micros(order.submitted) > after)
            and (until is None or parameters.micros(order.submitted) < until)
            and (not symbols or order.symbol in symbols)
            and side in (None, "", order.side)
            and (first is None or order.number > first)
            and (last is None or order.number < last)
        )

    chosen = sorted(filter(wanted, exchange.orders.values()), key=lambda o: o.number, reverse=direction == "desc")
    return [o.plain() for o in chosen[:limit]]


def activities(exchange: Exchange, query: Mapping[str, str], kind: str | None = None) -> list[dict[str, Any]]:
    """GET account/activities[/{type}]; the token of the next page is the id of the last entry."""
    kinds = {k for k in (kind or query.get("activity_types") or "").split(",") if k}
    category = query.get("category")
    if kinds and category:
        raise Refusal(422, rules.PARAMETER, "category cannot be used with activity_types")
    direction = query.get("direction") or "desc"
    if direction not in ("asc", "desc"):
        raise Refusal(422, rules.PARAMETER, f"invalid direction: {direction}")
    size = parameters.count(query, "page_size", _PAGE_MOST, _PAGE_MOST)
    after, until = (parameters.moment(query, name) for name in ("after", "until"))
    day = query.get("date")
    order_id = query.get("order_id")

    def created(entry: Mapping[str, Any]) -> int:
        return parameters.micros(datetime.fromisoformat(entry["created_at"]).timestamp())

    def wanted(entry: Mapping[str, Any]) -> bool:
        trade = entry["activity_type"] == "FILL"
        return (
            (not kinds or entry["activity_type"] in kinds)
            and (not category or (category == "trade_activity") == trade)
            and (after is None or created(entry) > after)
            and (until is None or created(entry) < until)
            and (not day or entry["created_at"][:10] == day[:10])
            and (not order_id or entry.get("order_id") == order_id)
        )

    chosen = [e for e in exchange.ledger.activities if wanted(e)]
    if direction == "desc":
        chosen.reverse()
    token = query.get("page_token")
    if token:
        names = [e["id"] for e in chosen]
        if token not in names:
            raise Refusal(422, rules.PARAMETER, f"invalid page_token: {token}")
        chosen = chosen[names.index(token) + 1 :]
    return chosen[:size]


def portfolio_history(exchange: Exchange, moment: float) -> dict[str, Any]:
    """GET account/portfolio/history: the equity at each session's close, daily whatever was asked."""
    start = float(exchange.ledger.start)
    closes = [(t, float(e)) for t, e in exchange.ledger.closes if t <= moment]
    return {
        "timestamp": [int(t) for t, _ in closes],
        "equity": [e for _, e in closes],
        "profit_loss": [e - start for _, e in closes],
        "profit_loss_pct": [e / start - 1 for _, e in closes],
        "base_value": start,
        "timeframe": "1D",
    }


def close_position(exchange: Exchange, symbol: str, query: Mapping[str, str], moment: float) -> Order:
    """DELETE positions/{symbol}: a market order for all of it, a number of shares, or a percentage."""
    held = exchange.ledger.qty(symbol)
    if held == 0:
        raise Refusal(404, 40410000, f"position not found: {symbol}")
    qty, percentage = parameters.amount(query, "qty"), parameters.amount(query, "percentage")
    if percentage is not None:
        qty = shares(abs(held) * percentage / 100)
    body = {
        "symbol": symbol,
        "qty": text(abs(held) if qty is None else qty),
        "side": "sell" if held > 0 else "buy",
        "type": "market",
        "time_in_force": "day",
    }
    return exchange.submit(body, moment)


def configurations(exchange: Exchange) -> dict[str, Any]:
    """GET account/configurations."""
    return {
        "dtbp_check": "entry",
        "fractional_trading": True,
        "max_margin_multiplier": str(exchange.settings.multiplier),
        "max_options_trading_level": 0,
        "no_shorting": not exchange.settings.shorting,
        "pdt_check": "entry",
        "ptp_no_exception_entry": False,
        "suspend_trade": exchange.conditions.suspended,
        "trade_confirm_email": "all",
    }
