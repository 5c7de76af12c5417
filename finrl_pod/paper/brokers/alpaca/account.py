"""A paper account at Alpaca behind the `Broker` port, whichever client library carries the requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import quote

from finrl_pod.errors import AuthenticationError, BrokerRejected, BrokerUnavailable
from finrl_pod.paper.brokers.alpaca import reading
from finrl_pod.paper.brokers.alpaca.keys import Keys
from finrl_pod.paper.brokers.alpaca.limiter import LimitSpent
from finrl_pod.paper.brokers.alpaca.reading import Unreadable
from finrl_pod.paper.brokers.alpaca.refusals import keys_refused, outcome
from finrl_pod.paper.brokers.alpaca.stream import NoStream, UpdateStream
from finrl_pod.paper.brokers.alpaca.transport import Answered, Line
from finrl_pod.paper.records import (
    AccountState,
    Ambiguous,
    Asset,
    BrokerClock,
    Confirmed,
    CorporateAction,
    FillPage,
    Order,
    OrderRequest,
    OrderType,
    OrderUpdate,
    Outcome,
    Position,
    RateLimit,
    Reason,
    Rejected,
    Session,
    StreamState,
)

_ORDERS_A_PAGE, _FILLS_A_PAGE = 500, 100
_SINGLY = 10  # symbols up to which each asset is asked for by itself
_MICROSECOND = timedelta(microseconds=1)
_AROUND = timedelta(days=10)  # the data API dates some actions by their processing

Result = TypeVar("Result")


class Wire(Protocol):
    """A client library, reduced to what is the same in all: it signs, sends and reads JSON.

    Raises Answered for 400 and more; requests' exceptions and ValueError where there is no answer to read.
    """

    name: str

    def trading(self, method: str, path: str, data: Mapping[str, Any] | None = None) -> Any:
        """The trading API; data: query of a GET or DELETE, else body."""
        ...

    def corporate_actions(self, symbols: Sequence[str], start: date, end: date) -> Mapping[str, Sequence[Any]]:
        """The data API's corporate actions by group, every page."""
        ...


class AlpacaAccount:
    """Satisfies `Broker`. Writes are made once; what nobody can say is Ambiguous."""

    def __init__(self, wire: Wire, line: Line, keys: Keys, stream: UpdateStream | NoStream) -> None:
        self.name = wire.name
        self._wire = wire
        self._line = line
        self._keys = keys
        self._stream = stream

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    # ---- the account ----------------------------------------------------------------------------------------------

    def account(self) -> AccountState:
        return self._read(reading.account, "GET", "/account")

    def positions(self) -> tuple[Position, ...]:
        return tuple(self._read(_each(reading.position), "GET", "/positions"))

    # ---- orders ---------------------------------------------------------------------------------------------------

    def submit(self, request: OrderRequest) -> Outcome:
        return self._write(_body(request), "POST", "/orders", check=_same(request))

    def replace(self, order_id: str, request: OrderRequest) -> Outcome:
        body: dict[str, Any] = {"qty": _plain(request.quantity), "client_order_id": request.client_order_id}
        if request.limit_price is not None:
            body["limit_price"] = _plain(request.limit_price)
        return self._write(body, "PATCH", f"/orders/{_part(order_id)}", check=_same(request), of_order=True)

    def cancel(self, order_id: str) -> Outcome:
        return self._write(None, "DELETE", f"/orders/{_part(order_id)}", of_order=True)

    def order(self, order_id: str) -> Order | None:
        return self._found(f"/orders/{_part(order_id)}", None)

    def order_by_client_id(self, client_order_id: str) -> Order | None:
        return self._found("/orders:by_client_order_id", {"client_order_id": client_order_id})

    def orders(self, status: Literal["open", "all"], after: datetime | None = None) -> tuple[Order, ...]:
        """Paged by the moment of submission, one microsecond back: orders of one moment may lie on both sides."""
        found: dict[str, Order] = {}
        query: dict[str, Any] = {"status": status, "limit": _ORDERS_A_PAGE, "direction": "asc", "nested": "false"}
        if after is not None:
            query["after"] = _stamp(after)
        while True:
            page = self._read(_each(reading.order), "GET", "/orders", query)
            known = len(found)
            found |= {order.id: order for order in page}
            if len(page) < _ORDERS_A_PAGE:
                break
            if len(found) == known:
                raise BrokerUnavailable(f"{self.name}: {_ORDERS_A_PAGE} orders of one moment cannot be paged through")
            query["after"] = _stamp(page[-1].submitted_at - _MICROSECOND)
        every = sorted(found.values(), key=lambda order: order.submitted_at)
        return tuple(order for order in every if after is None or order.submitted_at > after)

    def fills_since(self, cursor: str | None) -> FillPage:
        fills = []
        query: dict[str, Any] = {"direction": "asc", "page_size": _FILLS_A_PAGE}
        while True:
            if cursor is not None:
                query["page_token"] = cursor
            page = self._read(_each(reading.fill), "GET", "/account/activities/FILL", query)
            fills += page
            cursor = page[-1].id if page else cursor
            if len(page) < _FILLS_A_PAGE:
                return FillPage(tuple(fills), cursor)

    def updates(self) -> tuple[OrderUpdate, ...]:
        return self._stream.updates()

    def stream(self) -> StreamState:
        return self._stream.state()

    def renew_stream(self) -> None:
        self._stream.renew()

    # ---- facts ----------------------------------------------------------------------------------------------------

    def assets(self, symbols: Sequence[str]) -> Mapping[str, Asset]:
        if len(symbols) > _SINGLY:
            every = self._read(_each(reading.asset), "GET", "/assets", {"asset_class": "us_equity"})
            wanted = set(symbols)
            return {asset.symbol: asset for asset in every if asset.symbol in wanted}
        found = {}
        for symbol in symbols:
            try:
                found[symbol] = self._read(reading.asset, "GET", f"/assets/{_part(symbol)}")
            except _NotThere:
                continue
        return found

    def corporate_actions(self, symbols: Sequence[str], start: date, end: date) -> tuple[CorporateAction, ...]:
        groups = self.asked(lambda: self._wire.corporate_actions(symbols, start - _AROUND, end + _AROUND))
        asked = set(symbols)
        actions = self._understood(
            lambda: [reading.corporate_action(group, one, asked) for group, every in groups.items() for one in every]
        )
        inside = (a for a in actions if start <= a.ex_date <= end and a.symbol)
        return tuple(sorted(inside, key=lambda a: (a.ex_date, a.symbol, a.id)))

    def clock(self) -> BrokerClock:
        return self._read(reading.clock, "GET", "/clock")

    def calendar(self, start: date, end: date) -> tuple[Session, ...]:
        query = {"start": start.isoformat(), "end": end.isoformat()}
        days = self._read(_each(reading.session), "GET", "/calendar", query)
        return tuple(day for day in days if start <= day.date <= end)

    def rate_limit(self) -> RateLimit | None:
        return self._line.rate

    def close(self) -> None:
        self._stream.close()

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _found(self, path: str, query: Mapping[str, Any] | None) -> Order | None:
        try:
            return self._read(reading.order, "GET", path, query)
        except _NotThere:
            return None

    def _read(
        self, read: Callable[[Any], Result], method: str, path: str, query: Mapping[str, Any] | None = None
    ) -> Result:
        values = self.asked(lambda: self._wire.trading(method, path, query))
        return self._understood(lambda: read(values))

    def asked(self, call: Callable[[], Result]) -> Result:
        """A read. Raises BrokerError for every answer but the one that was asked for."""
        from requests import RequestException

        try:
            return call()
        except Answered as answer:
            self._check_keys(answer)
            text = self._keys.strike(f"{self.name} answered {answer.status}: {answer.message}")
            if answer.status == 404:
                raise _NotThere(text) from None
            if answer.status >= 500 or answer.status in (408, 425, 429):
                raise BrokerUnavailable(text) from None
            raise BrokerRejected(text) from None
        except (RequestException, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise BrokerUnavailable(self._no_answer(error)) from None

    def _understood(self, read: Callable[[], Result]) -> Result:
        try:
            return read()
        except (Unreadable, AttributeError, TypeError) as error:
            raise BrokerUnavailable(f"{self.name}'s answer cannot be read ({error}): nothing is known") from None

    def _write(
        self,
        body: Mapping[str, Any] | None,
        method: str,
        path: str,
        check: Callable[[Order], str] = lambda _: "",
        *,
        of_order: bool = False,
    ) -> Outcome:
        from requests import RequestException

        try:
            values = self._wire.trading(method, path, body)
            order = None if method == "DELETE" else reading.order(values)
        except LimitSpent as spent:
            wait = timedelta(seconds=spent.seconds)
            return Rejected(Reason.RATE_LIMITED, f"not sent: {spent}", retry_at=self._line.clock.now() + wait)
        except Answered as answer:
            self._check_keys(answer)
            return outcome(answer, self._line.clock.now(), of_order=of_order)
        except Unreadable as error:
            return Ambiguous(f"the answer cannot be read: {error}")
        except (RequestException, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            return Ambiguous(self._no_answer(error))
        fault = "" if order is None else check(order)
        return Ambiguous(f"the answer is about another order: {fault}") if fault else Confirmed(order)

    def _check_keys(self, answer: Answered) -> None:
        if keys_refused(answer):
            raise AuthenticationError(
                f"{self.name} does not take the keys ({answer.status}: {self._keys.strike(answer.message)}): check "
                "APCA_API_KEY_ID and APCA_API_SECRET_KEY, and that they are a paper account's"
            ) from None

    def _no_answer(self, error: Exception) -> str:
        return self._keys.strike(f"{self.name} gave no answer that can be read ({type(error).__name__}: {error})")


class _NotThere(BrokerRejected):
    """404."""


def _each(read: Callable[[Any], Result]) -> Callable[[Any], list[Result]]:
    def every(values: Any) -> list[Result]:
        if not isinstance(values, list):
            raise Unreadable(f"a list was expected, got {type(values).__name__}")
        return [read(entry) for entry in values]

    return every


def _body(request: OrderRequest) -> dict[str, Any]:
    body = {
        "symbol": request.symbol,
        "qty": _plain(request.quantity),
        "side": request.side.value,
        "type": request.type.value,
        "time_in_force": request.time_in_force.value,
        "client_order_id": request.client_order_id,
    }
    if request.type is OrderType.LIMIT and request.limit_price is not None:
        body["limit_price"] = _plain(request.limit_price)
    return body


def _same(request: OrderRequest) -> Callable[[Order], str]:
    """Says in which field an answer is not the order that was sent; "" for none."""

    def check(order: Order) -> str:
        pairs = {
            "client_order_id": (order.client_order_id, request.client_order_id),
            "symbol": (order.symbol, request.symbol),
            "side": (order.side, request.side),
        }
        return next((f"{name} {a!r} instead of {b!r}" for name, (a, b) in pairs.items() if a != b), "")

    return check


def _plain(value: Any) -> str:
    """A Decimal in plain digits."""
    return format(value, "f")


def _stamp(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _part(text: str) -> str:
    """One part of a path: a symbol or id can hold nothing that changes the address."""
    return quote(text, safe="")
