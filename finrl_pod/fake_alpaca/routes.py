"""Which address asks for what. Handlers are plain functions of (request's parts, moment); the server does the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from finrl_pod.fake_alpaca import reference_api as reference
from finrl_pod.fake_alpaca import trading_api as trading
from finrl_pod.fake_alpaca.data_api import MarketData
from finrl_pod.fake_alpaca.exchange import Exchange
from finrl_pod.fake_alpaca.orders import Order, Refusal

OK, NO_CONTENT, MANY = 200, 204, 207


@dataclass(frozen=True)
class Asked:
    """A request without its transport. names: the parts of the path that vary."""

    names: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    moment: float


Answer = tuple[int, Any]
Handler = Callable[[Asked], Answer]


def trading_routes(exchange: Exchange) -> list[tuple[str, str, Handler]]:
    """(method, path, handler) of the trading API."""

    def submit(asked: Asked) -> Answer:
        return OK, exchange.submit(asked.body, asked.moment).plain()

    def cancel(asked: Asked) -> Answer:
        exchange.cancel(asked.names["order_id"], asked.moment)
        return NO_CONTENT, None

    def cancel_all(asked: Asked) -> Answer:
        return MANY, [_cancelled(exchange, order, asked.moment) for order in exchange.open_orders()]

    def by_client_id(asked: Asked) -> Answer:
        return OK, exchange.find_client(asked.query.get("client_order_id", "")).plain()

    def close_all(asked: Asked) -> Answer:
        if asked.query.get("cancel_orders") in ("true", "True"):
            for order in exchange.open_orders():
                _cancelled(exchange, order, asked.moment)
        return MANY, [_closed(exchange, symbol, asked.moment) for symbol in sorted(exchange.ledger.holdings)]

    def configure(asked: Asked) -> Answer:
        wish = asked.body if isinstance(asked.body, Mapping) else {}
        if "suspend_trade" in wish:
            exchange.conditions.suspended = wish["suspend_trade"] is True
        return OK, trading.configurations(exchange)

    def find(asked: Asked) -> Answer:
        return OK, exchange.find(asked.names["order_id"]).plain()

    def replace(asked: Asked) -> Answer:
        return OK, exchange.replace(asked.names["order_id"], asked.body, asked.moment).plain()

    def activities_of_kind(asked: Asked) -> Answer:
        return OK, trading.activities(exchange, asked.query, asked.names["kind"])

    def close_one(asked: Asked) -> Answer:
        return OK, trading.close_position(exchange, asked.names["symbol"], asked.query, asked.moment).plain()

    return [
        ("GET", "/v2/account", lambda a: (OK, trading.account(exchange, a.moment))),
        ("GET", "/v2/account/activities", lambda a: (OK, trading.activities(exchange, a.query))),
        (
            "GET",
            "/v2/account/activities/{kind}",
            lambda a: (OK, trading.activities(exchange, a.query, a.names["kind"])),
        ),
        ("GET", "/v2/account/portfolio/history", lambda a: (OK, trading.portfolio_history(exchange, a.moment))),
        ("GET", "/v2/account/configurations", lambda _: (OK, trading.configurations(exchange))),
        ("PATCH", "/v2/account/configurations", configure),
        ("GET", "/v2/clock", lambda a: (OK, reference.clock(exchange, a.moment + exchange.conditions.clock_skew))),
        ("GET", "/v2/calendar", lambda a: (OK, reference.calendar(exchange, a.query))),
        ("GET", "/v2/assets", lambda a: (OK, reference.assets(exchange, a.query, a.moment))),
        ("GET", "/v2/assets/{symbol}", lambda a: (OK, reference.asset(exchange, a.names["symbol"], a.moment))),
        ("GET", "/v2/orders", lambda a: (OK, trading.order_list(exchange, a.query))),
        ("POST", "/v2/orders", submit),
        ("DELETE", "/v2/orders", cancel_all),
        ("GET", "/v2/orders:by_client_order_id", by_client_id),
        ("GET", "/v2/orders/{order_id}", find),
        ("PATCH", "/v2/orders/{order_id}", replace),
        ("DELETE", "/v2/orders/{order_id}", cancel),
        ("GET", "/v2/positions", lambda a: (OK, trading.positions(exchange, a.moment))),
        ("DELETE", "/v2/positions", close_all),
        ("GET", "/v2/positions/{symbol}", lambda a: (OK, trading.position(exchange, a.names["symbol"], a.moment))),
        ("DELETE", "/v2/positions/{symbol}", close_one),
        ("GET", "/v2/corporate_actions/announcements", lambda a: (OK, reference.announcements(exchange, a.query))),
    ]


def data_routes(data: MarketData) -> list[tuple[str, str, Handler]]:
    """(method, path, handler) of the market data API."""

    def bars_of_one(asked: Asked) -> Answer:
        symbol = asked.names["symbol"]
        answer = data.bars(asked.query, asked.moment, data.check_symbol(symbol))
        return OK, {"symbol": symbol, **answer, "bars": answer["bars"].get(symbol, [])}

    def latest(what: str) -> Handler:
        return lambda a: (OK, {what: data.latest(what, a.query, a.moment)})

    def latest_of_one(what: str) -> Handler:
        def handler(asked: Asked) -> Answer:
            symbol = asked.names["symbol"]
            found = data.latest(what, asked.query, asked.moment, data.check_symbol(symbol))
            if symbol not in found:
                raise Refusal(404, None, f"no {what} found for {symbol}")
            return OK, {"symbol": symbol, **(found[symbol] if what == "snapshots" else {what[:-1]: found[symbol]})}

        return handler

    routes: list[tuple[str, str, Handler]] = [
        ("GET", "/v2/stocks/bars", lambda a: (OK, data.bars(a.query, a.moment))),
        ("GET", "/v2/stocks/snapshots", lambda a: (OK, data.latest("snapshots", a.query, a.moment))),
        ("GET", "/v2/stocks/{symbol}/bars", bars_of_one),
        ("GET", "/v2/stocks/{symbol}/snapshot", latest_of_one("snapshots")),
        ("GET", "/v1/corporate-actions", lambda a: (OK, data.corporate_actions(a.query, a.moment))),
    ]
    for what in ("bars", "trades", "quotes"):
        routes.append(("GET", f"/v2/stocks/{what}/latest", latest(what)))
        routes.append(("GET", f"/v2/stocks/{{symbol}}/{what}/latest", latest_of_one(what)))
    return routes


def _cancelled(exchange: Exchange, order: Order, moment: float) -> dict[str, Any]:
    try:
        return {"id": order.id, "status": OK, "body": exchange.cancel(order.id, moment).plain()}
    except Refusal as refusal:
        return {"id": order.id, "status": 500, "body": refusal.body}


def _closed(exchange: Exchange, symbol: str, moment: float) -> dict[str, Any]:
    try:
        order = trading.close_position(exchange, symbol, {}, moment)
        return {"symbol": symbol, "status": OK, "body": order.plain()}
    except Refusal as refusal:
        return {"symbol": symbol, "status": refusal.status, "body": refusal.body}
