"""Routes of the trading and market data APIs: the handler of each method and path.

Handlers are plain functions of a request; `request_pipeline` adds authentication, limits, faults and the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from finrl_pod.fake_alpaca import trading_api as trading
from finrl_pod.fake_alpaca.data_api import MarketData
from finrl_pod.fake_alpaca.exchange import Exchange
from finrl_pod.fake_alpaca.orders import Order
from finrl_pod.fake_alpaca.wire_format import ApiError

OK = 200
NO_CONTENT = 204
MULTI_STATUS = 207


@dataclass(frozen=True)
class ApiRequest:
    """A request without its transport. names: the variable parts of the path. moment: UTC epoch seconds."""

    names: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    moment: float


ApiResponse = tuple[int, Any]  # (HTTP status, content)
Handler = Callable[[ApiRequest], ApiResponse]


def trading_routes(exchange: Exchange) -> list[tuple[str, str, Handler]]:
    """(method, path, handler) of the trading API."""

    def cancel(request: ApiRequest) -> ApiResponse:
        exchange.cancel(request.names["order_id"], request.moment)
        return NO_CONTENT, None

    def find_by_client_id(request: ApiRequest) -> ApiResponse:
        return OK, exchange.order_json(exchange.find_by_client_id(request.query.get("client_order_id", "")))

    def close_all(request: ApiRequest) -> ApiResponse:
        if request.query.get("cancel_orders") in ("true", "True"):
            _cancel_orders(exchange, request.moment)
        return MULTI_STATUS, [
            {"symbol": s, **_status_and_body(partial(trading.close_position, exchange, s, {}, request.moment))}
            for s in sorted(exchange.ledger.holdings)
        ]

    def replace(request: ApiRequest) -> ApiResponse:
        return OK, exchange.replace(request.names["order_id"], request.body, request.moment).to_json()

    def activities_of_kind(request: ApiRequest) -> ApiResponse:
        return OK, trading.activities(exchange, request.query, request.names["kind"])

    def close_position(request: ApiRequest) -> ApiResponse:
        order = trading.close_position(exchange, request.names["symbol"], request.query, request.moment)
        return OK, order.to_json()

    return [
        ("GET", "/v2/account", lambda r: (OK, trading.account(exchange, r.moment))),
        ("GET", "/v2/account/activities", lambda r: (OK, trading.activities(exchange, r.query))),
        ("GET", "/v2/account/activities/{kind}", activities_of_kind),
        ("GET", "/v2/account/portfolio/history", lambda r: (OK, trading.portfolio_history(exchange, r.query))),
        ("GET", "/v2/account/configurations", lambda _: (OK, trading.configurations(exchange))),
        ("PATCH", "/v2/account/configurations", lambda r: (OK, trading.configure(exchange, r.body))),
        ("GET", "/v2/clock", lambda r: (OK, trading.clock(exchange, r.moment + exchange.conditions.clock_skew))),
        ("GET", "/v2/calendar", lambda r: (OK, trading.calendar(exchange, r.query))),
        ("GET", "/v2/assets", lambda r: (OK, trading.assets(exchange, r.query, r.moment))),
        ("GET", "/v2/assets/{symbol}", lambda r: (OK, trading.asset(exchange, r.names["symbol"], r.moment))),
        ("GET", "/v2/orders", lambda r: (OK, trading.order_list(exchange, r.query))),
        ("POST", "/v2/orders", lambda r: (OK, exchange.order_json(exchange.submit(r.body, r.moment)))),
        ("DELETE", "/v2/orders", lambda r: (MULTI_STATUS, _cancel_orders(exchange, r.moment))),
        ("GET", "/v2/orders:by_client_order_id", find_by_client_id),
        ("GET", "/v2/orders/{order_id}", lambda r: (OK, exchange.order_json(exchange.find(r.names["order_id"])))),
        ("PATCH", "/v2/orders/{order_id}", replace),
        ("DELETE", "/v2/orders/{order_id}", cancel),
        ("GET", "/v2/positions", lambda r: (OK, trading.positions(exchange, r.moment))),
        ("DELETE", "/v2/positions", close_all),
        ("GET", "/v2/positions/{symbol}", lambda r: (OK, trading.position(exchange, r.names["symbol"], r.moment))),
        ("DELETE", "/v2/positions/{symbol}", close_position),
    ]


def data_routes(data: MarketData) -> list[tuple[str, str, Handler]]:
    """(method, path, handler) of the market data API."""
    return [
        ("GET", "/v2/stocks/bars", lambda r: (OK, data.bars(r.query, r.moment))),
        ("GET", "/v2/stocks/trades/latest", lambda r: (OK, {"trades": data.latest_trades(r.query, r.moment)})),
        ("GET", "/v2/stocks/quotes/latest", lambda r: (OK, {"quotes": data.latest_quotes(r.query, r.moment)})),
        ("GET", "/v1beta3/crypto/us/bars", lambda r: (OK, data.bars(r.query, r.moment))),
        ("GET", "/v1beta3/crypto/us/latest/trades", lambda r: (OK, {"trades": data.latest_trades(r.query, r.moment)})),
        ("GET", "/v1/corporate-actions", lambda r: (OK, data.corporate_actions(r.query, r.moment))),
    ]


def _cancel_orders(exchange: Exchange, moment: float) -> list[dict[str, Any]]:
    """Entries of a multi-status response for all open orders, except orders that the cancel of another one ends."""
    return [
        {"id": order.id, **_status_and_body(partial(exchange.cancel, order.id, moment), failure=500)}
        for order in exchange.open_orders()
        if order.open
    ]


def _status_and_body(send: Callable[[], Order], failure: int = 0) -> dict[str, Any]:
    """Part of an entry of a multi-status response. failure: status of an error; 0 for its own."""
    try:
        return {"status": OK, "body": send().to_json()}
    except ApiError as error:
        return {"status": failure or error.status, "body": error.body}
