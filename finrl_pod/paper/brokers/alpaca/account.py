"""A paper account at Alpaca as a `Broker`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from finrl_pod.errors import AuthenticationError, BrokerRejected, BrokerUnavailable, FinrlPodError
from finrl_pod.paper.brokers.alpaca import responses
from finrl_pod.paper.brokers.alpaca.client import AlpacaPyLibrary
from finrl_pod.paper.brokers.alpaca.credentials import KEY_VARIABLE, SECRET_VARIABLE, Keys
from finrl_pod.paper.brokers.alpaca.responses import UnreadableResponse
from finrl_pod.paper.brokers.alpaca.stream import NoStream, UpdateStream
from finrl_pod.paper.brokers.alpaca.transport import ErrorResponse, RateLimitReached, RequestContext
from finrl_pod.paper.domain import records

_ORDERS_PER_PAGE = 500
_ACTIVITIES_PER_PAGE = 100
_MAX_SINGLE_ASSET_REQUESTS = 10  # for more symbols, all assets are read in one request
_MICROSECOND = timedelta(microseconds=1)
_ACTION_DATE_MARGIN = timedelta(days=10)  # the data API filters some actions by processing date, not ex-date
MAX_REASON = 300  # characters of an error in a message

Result = TypeVar("Result")
Activity = TypeVar("Activity", records.Fill, records.AccountActivity)


class AlpacaAccount:
    """Satisfies the `Broker` protocol. Writes are sent once; without a clear response the outcome is Ambiguous."""

    def __init__(
        self, library: AlpacaPyLibrary, context: RequestContext, keys: Keys, stream: UpdateStream | NoStream
    ) -> None:
        self.name = library.name
        self._library = library
        self._context = context
        self._keys = keys
        self._stream = stream

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    # ---- the account ------------------------------------------------------------------------------------------------

    def account(self) -> records.AccountState:
        return self._read(responses.account, "/account")

    def positions(self) -> tuple[records.Position, ...]:
        return tuple(self._read(_list_of(responses.position), "/positions"))

    # ---- orders -----------------------------------------------------------------------------------------------------

    def submit(self, request: records.OrderRequest) -> records.Outcome:
        outcome = self._write("POST", "/orders", _order_body(request))
        order = outcome.order if isinstance(outcome, records.Confirmed) else None
        if order is not None and (mismatch := _mismatch(order, request)):
            return records.Ambiguous(self._keys.mask(f"the response is about another order: {mismatch}"))
        return outcome

    def cancel(self, order_id: str) -> records.Outcome:
        return self._write("DELETE", f"/orders/{quote(order_id, safe='')}")

    def order(self, order_id: str) -> records.Order | None:
        return self._read_order(f"/orders/{quote(order_id, safe='')}", None)

    def order_by_client_id(self, client_order_id: str) -> records.Order | None:
        return self._read_order("/orders:by_client_order_id", {"client_order_id": client_order_id})

    def orders(self, status: Literal["open", "all"], after: datetime | None = None) -> tuple[records.Order, ...]:
        """Pages are requested by submission time, one microsecond back: a page may end between orders of one time."""
        orders_by_id: dict[str, records.Order] = {}
        query: dict[str, Any] = {"status": status, "limit": _ORDERS_PER_PAGE, "direction": "asc", "nested": "false"}
        if after is not None:
            query["after"] = _timestamp(after)
        while True:
            page = self._read(_list_of(responses.order), "/orders", query)
            count_before = len(orders_by_id)
            orders_by_id |= {order.id: order for order in page}
            if len(page) < _ORDERS_PER_PAGE:
                break
            if len(orders_by_id) == count_before:
                raise BrokerUnavailable(f"{self.name}: cannot page through {_ORDERS_PER_PAGE} orders of the same time")
            query["after"] = _timestamp(page[-1].submitted_at - _MICROSECOND)
        sorted_orders = sorted(orders_by_id.values(), key=lambda order: order.submitted_at)
        return tuple(order for order in sorted_orders if after is None or order.submitted_at > after)

    def fills_since(self, cursor: str | None) -> records.FillPage:
        query = {} if cursor is None else {"page_token": cursor}
        fills = self._read_activities(responses.fill, "/account/activities/FILL", query)
        return records.FillPage(tuple(fills), fills[-1].id if fills else cursor)

    def activities(self, after: datetime) -> tuple[records.AccountActivity, ...]:
        query = {"category": "non_trade_activity", "after": _timestamp(after)}
        activities = self._read_activities(responses.activity, "/account/activities", query)
        return tuple(activity for activity in activities if activity.kind is not records.ActionKind.OTHER)

    def updates(self) -> tuple[records.OrderUpdate, ...]:
        return self._stream.updates()

    def stream(self) -> records.StreamState:
        return self._stream.state()

    def reconnect_stream(self) -> None:
        self._stream.reconnect()

    # ---- reference data ---------------------------------------------------------------------------------------------

    def assets(self, symbols: Sequence[str]) -> Mapping[str, records.Asset]:
        if len(symbols) > _MAX_SINGLE_ASSET_REQUESTS:
            found_assets = self._read(_list_of(responses.asset), "/assets", {"asset_class": "us_equity"})
            requested_symbols = set(symbols)
            return {asset.symbol: asset for asset in found_assets if asset.symbol in requested_symbols}
        assets = {}
        for symbol in symbols:
            try:
                assets[symbol] = self._read(responses.asset, f"/assets/{quote(symbol, safe='')}")
            except _NotFound:
                continue
        return assets

    def corporate_actions(self, symbols: Sequence[str], start: date, end: date) -> tuple[records.CorporateAction, ...]:
        first, last = start - _ACTION_DATE_MARGIN, end + _ACTION_DATE_MARGIN
        groups = self.read(lambda: self._library.corporate_actions(symbols, first, last), "corporate actions")
        requested_symbols = set(symbols)
        with self.boundary("corporate actions"):
            actions = [
                responses.corporate_action(group, entry, requested_symbols)
                for group, entries in groups.items()
                for entry in entries
            ]
        in_range = (a for a in actions if start <= a.ex_date <= end and a.symbol)
        return tuple(sorted(in_range, key=lambda a: (a.ex_date, a.symbol, a.id)))

    def clock(self) -> datetime:
        return self._read(responses.clock, "/clock")

    def calendar(self, start: date, end: date) -> tuple[records.Session, ...]:
        query = {"start": start.isoformat(), "end": end.isoformat()}
        days = self._read(_list_of(responses.session), "/calendar", query)
        return tuple(day for day in days if start <= day.date <= end)

    def close(self) -> None:
        self._stream.close()

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _read_order(self, path: str, query: dict[str, Any] | None) -> records.Order | None:
        try:
            return self._read(responses.order, path, query)
        except _NotFound:
            return None

    def _read_activities(self, parse: Callable[[Any], Activity], path: str, query: dict[str, str]) -> list[Activity]:
        """Activities of all pages, oldest first."""
        activities: list[Activity] = []
        while True:
            parameters = {"direction": "asc", "page_size": _ACTIVITIES_PER_PAGE, **query}
            page = self._read(_list_of(parse), path, parameters)
            activities += page
            if len(page) < _ACTIVITIES_PER_PAGE:
                return activities
            if page[-1].id == query.get("page_token"):
                raise BrokerUnavailable(f"{self.name}: the pages of {path} have no end")
            query = {**query, "page_token": page[-1].id}

    def _read(self, parse: Callable[[Any], Result], path: str, query: dict[str, Any] | None = None) -> Result:
        route = f"GET {path}"
        values = self.read(lambda: self._library.trading.get(path, query), route)
        with self.boundary(route):
            return parse(values)

    @contextlib.contextmanager
    def boundary(self, route: str) -> Iterator[None]:
        """Raise BrokerUnavailable if an answer that is read inside is faulty. route: request line for the message."""
        try:
            yield
        except FinrlPodError:
            raise
        except Exception as error:  # noqa: BLE001  an answer may have any form
            reason = str(error) if isinstance(error, UnreadableResponse) else f"{type(error).__name__}: {error}"
            text = self._keys.mask(f"{self.name} sent an unreadable response to {route} ({reason[:MAX_REASON]})")
            raise BrokerUnavailable(text) from None

    def read(self, call: Callable[[], Result], route: str) -> Result:
        """Result of a read through the client library. Raises BrokerError for every failure."""
        self._context.pages.count = 0
        try:
            return call()
        except ErrorResponse as response:
            self._check_keys(response)
            text = f"{self.name} responded {response.status} to {route}: {self._keys.mask(response.message)}"
            if responses.is_outage(response) or response.status == 429:
                raise BrokerUnavailable(text) from None
            if response.status == 404:
                raise _NotFound(text) from None
            raise BrokerRejected(text) from None
        except FinrlPodError:
            raise
        except Exception as error:  # noqa: BLE001  an answer may have any form
            raise BrokerUnavailable(self._no_response(error, route)) from None

    def _write(self, method: str, path: str, body: dict[str, Any] | None = None) -> records.Outcome:
        try:
            values = getattr(self._library.trading, method.lower())(path, body)
            order = None if method == "DELETE" else responses.order(values)
        except RateLimitReached as error:
            wait = timedelta(seconds=error.seconds)
            return records.Rejected(
                records.Reason.RATE_LIMITED, f"not sent: {error}", retry_at=self._context.clock.now() + wait
            )
        except ErrorResponse as response:
            self._check_keys(response)
            outcome = responses.write_outcome(response, self._context.clock.now(), cancels=method == "DELETE")
            return dataclasses.replace(outcome, message=self._keys.mask(outcome.message))
        except UnreadableResponse as error:
            return records.Ambiguous(self._keys.mask(f"unreadable response: {error}"))
        except FinrlPodError:
            raise
        except Exception as error:  # noqa: BLE001  an answer may have any form
            return records.Ambiguous(self._no_response(error, f"{method} {path}"))
        return records.Confirmed(order)

    def _check_keys(self, response: ErrorResponse) -> None:
        if responses.refuses_keys(response):
            raise AuthenticationError(
                f"{self.name} refused the API keys ({response.status}: {self._keys.mask(response.message)}); check "
                f"that {KEY_VARIABLE} and {SECRET_VARIABLE} are the keys of a paper account"
            ) from None

    def _no_response(self, error: Exception, route: str) -> str:
        reason = f"{type(error).__name__}: {error}"[:MAX_REASON]
        return self._keys.mask(f"{self.name} sent no readable response to {route} ({reason})")


class _NotFound(BrokerRejected):
    """Status 404."""


def _list_of(parse: Callable[[Any], Result]) -> Callable[[Any], list[Result]]:
    """Parser of a JSON list whose entries `parse` reads."""

    def parse_list(values: Any) -> list[Result]:
        if not isinstance(values, list):
            raise UnreadableResponse(f"expected a list, got {type(values).__name__}")
        return [parse(entry) for entry in values]

    return parse_list


def _order_body(request: records.OrderRequest) -> dict[str, Any]:
    body: dict[str, Any] = {
        "symbol": request.symbol,
        "qty": f"{request.quantity:f}",
        "side": request.side.value,
        "type": request.type.value,
        "time_in_force": request.time_in_force.value,
        "client_order_id": request.client_order_id,
    }
    if request.type is records.OrderType.LIMIT and request.limit_price is not None:
        body["limit_price"] = f"{request.limit_price:f}"
    return body


def _mismatch(order: records.Order, request: records.OrderRequest) -> str:
    """The first field in which an order differs from the request, "" for none."""
    for name in ("client_order_id", "symbol", "side"):
        value = getattr(order, name)
        request_value = getattr(request, name)
        if value != request_value:
            return f"{name} {value!r} instead of {request_value!r}"
    return ""


def _timestamp(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
