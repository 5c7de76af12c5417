"""Trading API: the JSON of account, positions, orders, activities, assets, clock and calendar."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from finrl_pod.fake_alpaca import wire_format as wire
from finrl_pod.fake_alpaca.account import Order
from finrl_pod.fake_alpaca.exchange import Exchange
from finrl_pod.fake_alpaca.order_validation import count_day_trades
from finrl_pod.fake_alpaca.prices import new_york

_DEFAULT_ORDERS = 50
_MAX_ORDERS = 500
_MAX_ACTIVITIES_PER_PAGE = 100
_DIRECTIONS = ("desc", "asc")
_INITIAL_MARGIN = Decimal("0.5")
_MAINTENANCE_MARGIN = Decimal("0.25")
_WHOLE_POSITION = 100  # percent
_EIGHT_DECIMALS = Decimal("1e-8")


def account(exchange: Exchange, moment: float) -> dict[str, Any]:
    """GET account."""
    settings = exchange.settings
    ledger = exchange.ledger
    balances = exchange.balances(moment)
    gross = balances.long - balances.short
    regt = balances.buying_power
    if settings.multiplier > 1:
        regt = max(2 * balances.equity - gross - balances.reserved_cash, Decimal(0))
    number = f"PA3FAKE{exchange.account_number:05d}"
    fields: dict[str, Any] = {
        "id": str(uuid.uuid5(wire.ID_NAMESPACE, f"{settings.seed}/account/{exchange.account_number}")),
        "account_number": number,
        "status": "ACTIVE",
        "crypto_status": "ACTIVE",
        "currency": "USD",
        "buying_power": wire.decimal_text(balances.buying_power),
        "regt_buying_power": wire.decimal_text(regt),
        "non_marginable_buying_power": wire.decimal_text(balances.cash_buying_power),
        "cash": wire.decimal_text(ledger.cash),
        "accrued_fees": "0",
        "portfolio_value": wire.decimal_text(balances.equity),
        "trading_blocked": False,
        "transfers_blocked": False,
        "account_blocked": False,
        "created_at": wire.timestamp(exchange.prices.sessions.all[0].open),
        "trade_suspended_by_user": exchange.conditions.is_suspended,
        "multiplier": str(settings.multiplier),
        "shorting_enabled": exchange.settings.shorting,
        "equity": wire.decimal_text(balances.equity),
        "last_equity": wire.decimal_text(ledger.last_equity),
        "long_market_value": wire.decimal_text(balances.long),
        "short_market_value": wire.decimal_text(balances.short),
        "position_market_value": wire.decimal_text(gross),
        "initial_margin": wire.decimal_text(gross * _INITIAL_MARGIN),
        "maintenance_margin": wire.decimal_text(gross * _MAINTENANCE_MARGIN),
        "last_maintenance_margin": "0",
        "sma": "0",
        "balance_asof": f"{new_york(moment).date()}",
    }
    if settings.day_trading_rule:
        day_trades = count_day_trades(ledger.activities, exchange.prices.sessions, moment)
        fields |= {"pattern_day_trader": False, "daytrade_count": day_trades}
        fields["daytrading_buying_power"] = wire.decimal_text(balances.buying_power * 2)
    return fields


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
        "suspend_trade": exchange.conditions.is_suspended,
        "trade_confirm_email": "all",
    }


def positions(exchange: Exchange, moment: float) -> list[dict[str, Any]]:
    """GET positions."""
    return [position(exchange, symbol, moment) for symbol in sorted(exchange.ledger.holdings)]


def position(exchange: Exchange, symbol: str, moment: float) -> dict[str, Any]:
    """GET positions/{symbol or asset id}. Raises ApiError (404) if none is held."""
    symbol = _held_symbol(exchange, symbol)
    holding = exchange.ledger.holdings.get(symbol)
    if holding is None:
        raise wire.ApiError(404, wire.NOT_FOUND, "position does not exist")
    price = exchange.price(symbol, moment)
    current = exchange.prices.sessions.last_opened(moment)
    yesterday = exchange.prices.last_close(symbol, (current.open if current else moment))
    last = price if yesterday is None else wire.price_decimal(yesterday)
    cost = holding.qty * holding.entry
    value = holding.qty * price
    gain = value - cost
    today = holding.qty * (price - last)
    return {
        "asset_id": wire.asset_id(symbol),
        "symbol": symbol.replace("/", "") if exchange.settings.crypto else symbol,
        "exchange": "CRYPTO" if exchange.settings.crypto else "NASDAQ",
        "asset_class": "crypto" if exchange.settings.crypto else "us_equity",
        "asset_marginable": True,
        "qty": wire.decimal_text(holding.qty),
        "qty_available": wire.decimal_text(exchange.available(symbol)),
        "avg_entry_price": wire.decimal_text(holding.entry.quantize(_EIGHT_DECIMALS)),
        "side": "long" if holding.qty > 0 else "short",
        "market_value": wire.decimal_text(value),
        "cost_basis": wire.decimal_text(cost),
        "unrealized_pl": wire.decimal_text(gain),
        "unrealized_plpc": wire.decimal_text((gain / abs(cost)).quantize(_EIGHT_DECIMALS)),
        "unrealized_intraday_pl": wire.decimal_text(today),
        "unrealized_intraday_plpc": wire.decimal_text((today / abs(holding.qty * last)).quantize(_EIGHT_DECIMALS)),
        "current_price": wire.decimal_text(price),
        "lastday_price": wire.decimal_text(last),
        "change_today": wire.decimal_text((price / last - 1).quantize(_EIGHT_DECIMALS)),
    }


def _held_symbol(exchange: Exchange, name: str) -> str:
    """The symbol of a position that is named by its symbol or its asset id."""
    return next((s for s in exchange.ledger.holdings if name in (wire.asset_id(s), s.replace("/", ""))), name)


def order_list(exchange: Exchange, query: Mapping[str, str]) -> list[dict[str, Any]]:
    """GET orders. `after` and `until` are exclusive. `nested` lists exits within their order instead of beside it."""
    parameters = wire.QueryParameters(query)
    status = parameters.choice("status", ("open", "closed", "all"))
    direction = parameters.choice("direction", _DIRECTIONS)
    limit = parameters.integer("limit", _DEFAULT_ORDERS, _MAX_ORDERS)
    after, until = (parameters.epoch_microseconds(name) for name in ("after", "until"))
    symbols = {s for s in (query.get("symbols") or "").split(",") if s}
    side = query.get("side")
    is_nested = query.get("nested") in ("true", "True")

    def matches(order: Order) -> bool:
        return (
            (status == "all" or order.open == (status == "open"))
            and (after is None or wire.microseconds(order.submitted_at) > after)
            and (until is None or wire.microseconds(order.submitted_at) < until)
            and (not symbols or order.symbol in symbols)
            and side in (None, "", order.side)
            and not (is_nested and order.parent)
        )

    selected_orders = sorted(
        filter(matches, exchange.orders.values()), key=lambda o: o.number, reverse=direction == "desc"
    )
    return [exchange.order_json(order) if is_nested else order.to_json() for order in selected_orders[:limit]]


def activities(exchange: Exchange, query: Mapping[str, str], kind: str | None = None) -> list[dict[str, Any]]:
    """GET account/activities[/{type}]. The page token of the next page is the id of the last entry of this one."""
    kinds = {k for k in (kind or query.get("activity_types") or "").split(",") if k}
    category = query.get("category")
    if kinds and category:
        raise wire.invalid_parameter("category cannot be used with activity_types")
    parameters = wire.QueryParameters(query)
    direction = parameters.choice("direction", _DIRECTIONS)
    size = parameters.integer("page_size", _MAX_ACTIVITIES_PER_PAGE, _MAX_ACTIVITIES_PER_PAGE)
    after, until = (parameters.epoch_microseconds(name) for name in ("after", "until"))
    day = query.get("date")
    order_id = query.get("order_id")

    def creation_time(entry: Mapping[str, Any]) -> int:
        return wire.microseconds(datetime.fromisoformat(entry["created_at"]).timestamp())

    def matches(entry: Mapping[str, Any]) -> bool:
        is_trade = entry["activity_type"] == "FILL"
        return (
            (not kinds or entry["activity_type"] in kinds)
            and (not category or (category == "trade_activity") == is_trade)
            and (after is None or creation_time(entry) > after)
            and (until is None or creation_time(entry) < until)
            and (not day or entry["created_at"][:10] == day[:10])
            and (not order_id or entry.get("order_id") == order_id)
        )

    entries = [e for e in exchange.ledger.activities if matches(e)]
    if direction == "desc":
        entries.reverse()
    token = query.get("page_token")
    if token:
        ids = [e["id"] for e in entries]
        if token not in ids:
            raise wire.invalid_parameter(f"invalid page_token: {token}")
        entries = entries[ids.index(token) + 1 :]
    return entries[:size]


def portfolio_history(exchange: Exchange, query: Mapping[str, str]) -> dict[str, Any]:
    """GET account/portfolio/history: equity at the close of each session from `start` to `end`."""
    parameters = wire.QueryParameters(query)
    timeframe = parameters.choice("timeframe", ("1D",))
    start, end = (parameters.epoch_seconds(name) for name in ("start", "end"))
    start_cash = float(exchange.ledger.start_cash)
    closes = [
        (moment, float(equity))
        for moment, equity in exchange.ledger.closes
        if (start is None or moment >= start) and (end is None or moment <= end)
    ]
    return {
        "timestamp": [int(moment) for moment, _ in closes],
        "equity": [equity for _, equity in closes],
        "profit_loss": [equity - start_cash for _, equity in closes],
        "profit_loss_pct": [equity / start_cash - 1 for _, equity in closes],
        "base_value": start_cash,
        "timeframe": timeframe,
    }


def close_position(exchange: Exchange, symbol: str, query: Mapping[str, str], moment: float) -> Order:
    """DELETE positions/{symbol}: submit a market order for the whole position, `qty` shares, or a `percentage`."""
    symbol = _held_symbol(exchange, symbol)
    shares_held = exchange.ledger.qty(symbol)
    if shares_held == 0:
        raise wire.ApiError(404, wire.NOT_FOUND, f"position not found: {symbol}")
    parameters = wire.QueryParameters(query)
    qty = parameters.decimal("qty")
    percentage = parameters.decimal("percentage")
    if percentage is not None:
        if not 0 < percentage <= _WHOLE_POSITION:
            raise wire.invalid_parameter("percentage must be > 0 and <= 100")
        qty = wire.floor_shares(abs(shares_held) * percentage / 100)
    body = {
        "symbol": symbol,
        "qty": wire.decimal_text(abs(shares_held) if qty is None else qty),
        "side": "sell" if shares_held > 0 else "buy",
        "type": "market",
        "time_in_force": "day",
    }
    return exchange.submit(body, moment)


# ---- the market ---------------------------------------------------------------------------------------------------


def asset(exchange: Exchange, name: str, moment: float) -> dict[str, Any]:
    """GET assets/{symbol or id}. Raises ApiError (404) for an unknown one."""
    for entry in assets(exchange, {}, moment):
        if name in (entry["symbol"], entry["id"]):
            return entry
    raise wire.ApiError(404, wire.NOT_FOUND, f"asset not found for {name}")


def assets(exchange: Exchange, query: Mapping[str, str], moment: float) -> list[dict[str, Any]]:
    """GET assets, filtered by status, class and exchange."""
    settings = exchange.settings
    entries: list[dict[str, Any]] = []
    for symbol in exchange.prices.symbols:
        tradable = exchange.tradable(symbol, moment)
        entries.append(
            {
                "id": wire.asset_id(symbol),
                "class": "crypto" if settings.crypto else "us_equity",
                "exchange": "CRYPTO" if settings.crypto else "NASDAQ",
                "symbol": symbol,
                "name": f"{symbol} common stock",
                "status": "active" if tradable else "inactive",
                "tradable": tradable,
                "marginable": True,
                "shortable": settings.shorting,
                "easy_to_borrow": settings.shorting,
                "borrow_status": "easy_to_borrow",
                "fractionable": symbol not in exchange.conditions.whole_shares,
                "margin_requirement_long": "50",
                "margin_requirement_short": "50",
                "attributes": [],
            }
        )
    filters = {"status": query.get("status"), "class": query.get("asset_class"), "exchange": query.get("exchange")}
    return [a for a in entries if all(v in (None, "", a[k]) for k, v in filters.items())]


def clock(exchange: Exchange, moment: float) -> dict[str, Any]:
    """GET clock."""
    sessions = exchange.prices.sessions
    return {
        "timestamp": wire.timestamp(moment),
        "is_open": sessions.current(moment) is not None,
        "next_open": wire.timestamp(sessions.next_open(moment).open),
        "next_close": wire.timestamp(sessions.next_close(moment).close),
    }


def calendar(exchange: Exchange, query: Mapping[str, str]) -> list[dict[str, Any]]:
    """GET calendar; start and end default to the whole calendar of the panel."""
    sessions = exchange.prices.sessions
    parameters = wire.QueryParameters(query)
    start = parameters.day("start") or sessions.all[0].date
    end = parameters.day("end") or sessions.all[-1].date
    next_session = {a.date: b for a, b in zip(sessions.all, sessions.all[1:], strict=False)}
    return [
        {
            "date": day.date.isoformat(),
            "open": f"{new_york(day.open):%H:%M}",
            "close": f"{new_york(day.close):%H:%M}",
            "session_open": "0400",
            "session_close": "2000",
            "settlement_date": next_session.get(day.date, day).date.isoformat(),
        }
        for day in sessions.between(start, end)
    ]
