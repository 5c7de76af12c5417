"""The trading API's answers as plain values: what the exchange knows, in Alpaca's words."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from finrl_pod.paper.fake_alpaca import rules
from finrl_pod.paper.fake_alpaca.exchange import Exchange
from finrl_pod.paper.fake_alpaca.orders import NAMESPACE, Order, Refusal, amount, asset_id, shares, text
from finrl_pod.paper.fake_alpaca.sessions import Session, new_york, stamp

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


def asset(exchange: Exchange, name: str, moment: float) -> dict[str, Any]:
    """GET assets/{symbol or id}."""
    symbol = next((s for s in exchange.prices.symbols if name in (s, asset_id(s))), None)
    if symbol is None:
        raise Refusal(404, 40410000, f"asset not found for {name}")
    tradable = exchange.tradable(symbol, moment)
    return {
        "id": asset_id(symbol),
        "class": "us_equity",
        "exchange": "NASDAQ",
        "symbol": symbol,
        "name": f"{symbol} common stock",
        "status": "active" if tradable else "inactive",
        "tradable": tradable,
        "marginable": True,
        "shortable": exchange.settings.shorting,
        "easy_to_borrow": exchange.settings.shorting,
        "borrow_status": "easy_to_borrow",
        "fractionable": True,
        "margin_requirement_long": "50",
        "margin_requirement_short": "50",
        "attributes": [],
    }


def assets(exchange: Exchange, query: Mapping[str, str], moment: float) -> list[dict[str, Any]]:
    """GET assets, by status, class and exchange."""
    every = [asset(exchange, s, moment) for s in exchange.prices.symbols]
    filters = {"status": query.get("status"), "class": query.get("asset_class"), "exchange": query.get("exchange")}
    return [a for a in every if all(v in (None, "", a[k]) for k, v in filters.items())]


def clock(exchange: Exchange, moment: float) -> dict[str, Any]:
    """GET clock."""
    sessions = exchange.prices.sessions
    return {
        "timestamp": stamp(moment),
        "is_open": sessions.current(moment) is not None,
        "next_open": stamp(sessions.next_open(moment).open),
        "next_close": stamp(sessions.next_close(moment).close),
    }


def calendar(exchange: Exchange, query: Mapping[str, str]) -> list[dict[str, Any]]:
    """GET calendar; without dates, everything there is."""
    sessions = exchange.prices.sessions
    start = _day(query, "start") or sessions.all[0].date
    end = _day(query, "end") or sessions.all[-1].date
    following = {a.date: b for a, b in zip(sessions.all, sessions.all[1:], strict=False)}
    return [_calendar_day(s, following.get(s.date, s)) for s in sessions.between(start, end)]


def order_list(exchange: Exchange, query: Mapping[str, str]) -> list[dict[str, Any]]:
    """GET orders. `after` and `until` are exclusive, by the moment of submission."""
    status = query.get("status") or "open"
    if status not in ("open", "closed", "all"):
        raise Refusal(422, rules.PARAMETER, f"invalid status: {status}")
    direction = query.get("direction") or "desc"
    if direction not in ("asc", "desc"):
        raise Refusal(422, rules.PARAMETER, f"invalid direction: {direction}")
    limit = _count(query, "limit", _LIST_LIMIT, _LIST_MOST)
    # The stamps in the answers have microseconds: at a finer resolution `after` would find its own order again.
    after, until = (_moment(query, name) for name in ("after", "until"))
    symbols = {s for s in (query.get("symbols") or "").split(",") if s}
    side = query.get("side")
    first, last = (
        exchange.find(query[n]).number if query.get(n) else None for n in ("after_order_id", "before_order_id")
    )

    def wanted(order: Order) -> bool:
        micros = _micros(order.submitted)
        return (
            (status == "all" or order.open == (status == "open"))
            and (after is None or micros > after)
            and (until is None or micros < until)
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
    size = _count(query, "page_size", _PAGE_MOST, _PAGE_MOST)
    after, until = (_moment(query, name) for name in ("after", "until"))
    day = query.get("date")
    order_id = query.get("order_id")

    def wanted(entry: Mapping[str, Any]) -> bool:
        micros = _micros(datetime.fromisoformat(entry["created_at"]).timestamp())
        trade = entry["activity_type"] == "FILL"
        return (
            (not kinds or entry["activity_type"] in kinds)
            and (not category or (category == "trade_activity") == trade)
            and (after is None or micros > after)
            and (until is None or micros < until)
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
    qty, percentage = _amount(query, "qty"), _amount(query, "percentage")
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


def announcements(exchange: Exchange, query: Mapping[str, str]) -> list[dict[str, Any]]:
    """GET corporate_actions/announcements by ca_types, since, until and symbol."""
    since, until = _day(query, "since"), _day(query, "until")
    kinds = {k.lower() for k in (query.get("ca_types") or "").split(",") if k}
    found = []
    for action in exchange.prices.actions:
        day = date.fromisoformat(action.ex_date)
        if (since and day < since) or (until and day > until) or query.get("symbol") not in (None, "", action.symbol):
            continue
        if kinds and action.kind not in kinds:
            continue
        name = str(uuid.uuid5(NAMESPACE, f"action/{action}"))
        sub = "cash" if action.kind == "dividend" else "stock_split" if action.new > action.old else "reverse_split"
        dates = dict.fromkeys(("ex_date", "record_date", "payable_date", "effective_date"), action.ex_date)
        found.append(
            {
                "id": name,
                "corporate_action_id": name,
                "ca_type": action.kind.title() if exchange.settings.title_words else action.kind,
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


def _calendar_day(session: Session, settlement: Session) -> dict[str, Any]:
    opened, closed = new_york(session.open), new_york(session.close)
    return {
        "date": session.date.isoformat(),
        "open": f"{opened:%H:%M}",
        "close": f"{closed:%H:%M}",
        "session_open": "0400",
        "session_close": "2000",
        "settlement_date": settlement.date.isoformat(),
    }


def _count(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    value = query.get(name) or str(default)
    if not value.isdecimal() or not 1 <= int(value) <= most:
        raise Refusal(422, rules.PARAMETER, f"invalid {name}: must be 1 to {most}")
    return int(value)


def _day(query: Mapping[str, str], name: str) -> date | None:
    value = query.get(name)
    if not value:
        return None
    try:
        return datetime.fromisoformat(value).date()
    except ValueError:
        raise Refusal(422, rules.PARAMETER, f"invalid {name}: {value}") from None


def _moment(query: Mapping[str, str], name: str) -> int | None:
    """Microseconds since the epoch; a bare date is its midnight in UTC, as is a time without a zone."""
    value = query.get(name)
    if not value:
        return None
    try:
        moment = datetime.fromisoformat(value.replace(" ", "+"))
    except ValueError:
        raise Refusal(422, rules.PARAMETER, f"invalid {name}: {value}") from None
    if moment.tzinfo is None:
        from datetime import UTC

        moment = moment.replace(tzinfo=UTC)
    return _micros(moment.timestamp())


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)


def _amount(query: Mapping[str, str], name: str) -> Decimal | None:
    try:
        return Decimal(query[name]) if query.get(name) else None
    except InvalidOperation:
        raise Refusal(422, rules.PARAMETER, f"invalid {name}: {query[name]}") from None
