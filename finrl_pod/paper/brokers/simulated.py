"""Broker without a network: fills orders in the opening and closing auctions of a panel of daily bars.

It behaves like a paper account: auction orders, DAY orders that wait for the open, limits and expiry. DAY orders that
are sent during a session fill on a straight line from its open to its close (from the close before, in a panel without
opens), as soon as their limits allow. On a calendar that never closes all orders are good till cancelled and fill so.
Fills use the same accounting (`market.execution`) as backtests. It is also its own data feed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import ROUND_DOWN, Decimal
from typing import Literal

import numpy as np
import torch

from finrl_pod.errors import InputError
from finrl_pod.market.execution import ExecutionRules, execute
from finrl_pod.market.orders import FRACTION, fill_on_path
from finrl_pod.paper.domain import records
from finrl_pod.paper.domain.port import COLUMNS, Adjustment, BarTable, Clock
from finrl_pod.paper.domain.schedule import CLOSE_CUTOFF, OPEN_CUTOFF, Calendar
from finrl_pod.types import Floats, Panel

ZERO = Decimal(0)
MARGIN = Decimal(2)  # multiplier of the account
_FILL_IN_AUCTION = {"open": (records.TimeInForce.OPG, records.TimeInForce.DAY), "close": (records.TimeInForce.CLS,)}
_FLOAT_TOLERANCE = Decimal("1e-6")  # shares


class SimulatedBroker:
    """One account on a panel of daily bars. Satisfies the `Broker` and `DataFeed` protocols.

    cash: dollars at the start. cost_rate: fraction of the traded value charged on each fill. calendar: None for New
    York's sessions.
    Raises InputError for a panel without daily bars.
    """

    name = "simulated"

    def __init__(
        self, panel: Panel, clock: Clock, cash: Decimal, cost_rate: Decimal = ZERO, calendar: Calendar | None = None
    ) -> None:
        self._calendar = calendar or Calendar()
        self._within_session = records.TimeInForce.GTC if self._calendar.continuous else records.TimeInForce.DAY
        self._prices = PanelPrices(panel, clock, self._calendar)
        self._clock = clock
        self._cash = cash
        self._cost_rate = cost_rate
        self._shares: dict[str, Decimal] = dict.fromkeys(panel.symbols, ZERO)
        self._orders: dict[str, records.Order] = {}
        self._by_client: dict[str, str] = {}
        self._fills: list[records.Fill] = []
        self._updates: list[records.OrderUpdate] = []
        self._processed_until = clock.now()  # auctions up to here have taken place
        self._sessions: tuple[records.Session, ...] = ()

    # ------------------------------------------------------------------ the account

    def account(self) -> records.AccountState:
        self._advance()
        equity = self._cash + sum((s * self._prices.last(symbol) for symbol, s in self._shares.items() if s), ZERO)
        # Like an account with margin: open orders reserve nothing that a limit price above the market would exceed.
        power = max(MARGIN * equity, ZERO)
        return records.AccountState(self.name, self._cash, equity, power)

    def positions(self) -> tuple[records.Position, ...]:
        self._advance()
        shares_held = ((symbol, shares) for symbol, shares in self._shares.items() if shares)
        return tuple(records.Position(symbol, shares, self._prices.last(symbol)) for symbol, shares in shares_held)

    # ------------------------------------------------------------------ orders

    def submit(self, request: records.OrderRequest) -> records.Outcome:
        self._advance()
        if request.client_order_id in self._by_client:
            return records.Rejected(records.Reason.DUPLICATE_ID, "client_order_id must be unique")
        rejection = self._check(request)
        if rejection is not None:
            return rejection
        order_id = f"sim-{len(self._orders) + 1}"
        now = self._clock.now()
        order = records.Order(
            order_id, request.client_order_id, request.symbol, request.side, request.quantity, ZERO,
            records.OrderStatus.NEW, request.time_in_force, request.type, now, now, limit_price=request.limit_price,
            raw_status="new",
        )  # fmt: skip
        self._orders[order_id] = order
        self._by_client[request.client_order_id] = order_id
        self._updates.append(records.OrderUpdate("new", order, now))
        return records.Confirmed(order)

    def cancel(self, order_id: str) -> records.Outcome:
        self._advance()
        order = self._orders.get(order_id)
        if order is None:
            return records.Rejected(records.Reason.NOT_FOUND, "order not found")
        if not order.live:
            return records.Rejected(records.Reason.NOT_CANCELABLE, f"order is {order.status.value}")
        self._close_order(order, records.OrderStatus.CANCELED, self._clock.now())
        return records.Confirmed()

    def order(self, order_id: str) -> records.Order | None:
        self._advance()
        return self._orders.get(order_id)

    def order_by_client_id(self, client_order_id: str) -> records.Order | None:
        self._advance()
        return self._orders.get(self._by_client.get(client_order_id, ""))

    def orders(self, status: Literal["open", "all"], after: datetime | None = None) -> tuple[records.Order, ...]:
        self._advance()
        return tuple(
            order
            for order in self._orders.values()
            if (status == "all" or order.live) and (after is None or order.submitted_at > after)
        )

    def fills_since(self, cursor: str | None) -> records.FillPage:
        self._advance()
        first = int(cursor or 0)
        return records.FillPage(tuple(self._fills[first:]), str(len(self._fills)))

    def updates(self) -> tuple[records.OrderUpdate, ...]:
        self._advance()
        updates = tuple(self._updates)
        self._updates = []
        return updates

    def stream(self) -> records.StreamState:
        return records.StreamState(connected=True, last_message=self._clock.now())

    def reconnect_stream(self) -> None:
        """Does nothing: there is no connection."""

    # ------------------------------------------------------------------ reference data

    def assets(self, symbols: Sequence[str]) -> Mapping[str, records.Asset]:
        return {s: records.Asset(s, tradable=True, fractionable=True) for s in symbols if s in self._shares}

    def activities(self, after: datetime) -> tuple[records.AccountActivity, ...]:  # noqa: ARG002
        return ()

    def corporate_actions(self, symbols: Sequence[str], start: date, end: date) -> tuple[records.CorporateAction, ...]:  # noqa: ARG002
        return ()  # prices of a panel are adjusted for splits

    def clock(self) -> datetime:
        return self._clock.now()

    def calendar(self, start: date, end: date) -> tuple[records.Session, ...]:
        return self._calendar.sessions(start, end)

    def close(self) -> None:
        pass

    # ------------------------------------------------------------------ prices

    def bars(self, symbols: Sequence[str], start: date, end: date, adjustment: Adjustment) -> BarTable:  # noqa: ARG002
        """Bars of sessions that have closed on the clock; the panel prices are always adjusted."""
        self._advance()
        return self._prices.bars(symbols, start, end)

    def minute_bars(self, symbols: Sequence[str], start: datetime, end: datetime, adjustment: Adjustment) -> BarTable:  # noqa: ARG002
        """An empty table: the panel has daily bars."""
        no_values = np.empty((0, len(symbols)))
        times = np.array([], "datetime64[ns]")
        return BarTable(times=times, symbols=tuple(symbols), feed="panel", **dict.fromkeys(COLUMNS, no_values))

    def latest(self, symbols: Sequence[str]) -> Mapping[str, tuple[Decimal, datetime]]:
        self._advance()
        return self._prices.latest(symbols)

    # ------------------------------------------------------------------ checks of orders

    def _check(self, request: records.OrderRequest) -> records.Rejected | None:
        """Rejection of a new order, or None if it is accepted."""
        if request.symbol not in self._shares:
            return records.Rejected(records.Reason.INVALID, f"asset {request.symbol} not found")
        if request.quantity <= 0:
            return records.Rejected(records.Reason.INVALID, "qty must be > 0")
        is_whole = request.quantity == request.quantity.to_integral_value()
        if self._calendar.continuous and request.time_in_force is not records.TimeInForce.GTC:
            return records.Rejected(records.Reason.INVALID, "orders of a market that never closes must be GTC orders")
        if not self._calendar.continuous and request.time_in_force is records.TimeInForce.GTC:
            return records.Rejected(records.Reason.INVALID, "GTC orders need a market that never closes")
        if not is_whole and request.time_in_force is not self._within_session:
            return records.Rejected(records.Reason.INVALID, "fractional orders must be DAY orders")
        if request.side is records.Side.SELL:
            held_for_orders = sum(
                (o.quantity - o.filled_quantity for o in self._live_orders(request.symbol, records.Side.SELL)), ZERO
            )
            if request.quantity > self._shares[request.symbol] - held_for_orders:
                reason = records.Reason.HELD_FOR_ORDERS if held_for_orders else records.Reason.INSUFFICIENT_QUANTITY
                return records.Rejected(reason, f"insufficient qty available, held_for_orders {held_for_orders}")
        if self._live_orders(request.symbol, request.side.opposite):
            return records.Rejected(records.Reason.WASH_TRADE, "potential wash trade detected")
        now = self._clock.now()
        session = next((s for s in self._sessions_from(now) if s.close > now), None)
        is_closing_order = request.time_in_force is records.TimeInForce.CLS
        if session is not None and request.time_in_force is records.TimeInForce.OPG:
            if session.open - OPEN_CUTOFF <= now < session.close:
                return records.Rejected(records.Reason.INVALID, "opg orders are not accepted from 9:28 to the close")
        elif session is not None and is_closing_order and now >= session.close - CLOSE_CUTOFF:
            return records.Rejected(records.Reason.INVALID, "cls orders are not accepted 10 minutes before the close")
        return None

    # ------------------------------------------------------------------ auctions

    def _advance(self) -> None:
        """Process the auctions up to the current time."""
        now = self._clock.now()
        start = self._processed_until
        self._processed_until = max(now, start)
        if not any(order.live for order in self._orders.values()):
            return
        for session in self._sessions_from(start):
            if session.open > now:
                break
            if start < session.open <= now:
                self._run_auction(session, "open")
            self._fill_within_session(session, now)
            if start < session.close <= now:
                self._run_auction(session, "close")
                for order in list(self._orders.values()):
                    if (
                        order.live
                        and order.time_in_force is records.TimeInForce.DAY
                        and order.submitted_at < session.close
                    ):
                        self._close_order(order, records.OrderStatus.EXPIRED, session.close)

    def _fill_within_session(self, session: records.Session, now: datetime) -> None:
        """Fill the DAY orders that were sent during a session, each at the first time that its limit allows.

        GTC orders exist only in a market that never closes; they fill in later sessions too.
        """
        filling: list[tuple[datetime, records.Order, float]] = []
        for order in self._orders.values():
            start = max(order.submitted_at, session.open) if self._calendar.continuous else order.submitted_at
            if order.live and order.time_in_force is self._within_session and session.open <= start <= now:
                path = self._prices.session_path(order.symbol, session)
                first_fill = None if path is None else _first_fill(order, start, path, session)
                if first_fill is not None and first_fill[0] <= min(now, session.close):
                    filling.append((first_fill[0], order, first_fill[1]))
        for time, order, price in sorted(filling, key=lambda fill: fill[0]):
            self._fill_orders([(order, price)], time)

    def _sessions_from(self, start: datetime) -> tuple[records.Session, ...]:
        """Sessions from the day before a time on, for at least two weeks."""
        day = start.date() - timedelta(days=1)
        if not self._sessions or self._sessions[0].date > day or self._sessions[-1].close < self._clock.now():
            last_day = max(start.date(), self._clock.now().date()) + timedelta(days=40)
            self._sessions = self._calendar.sessions(day, last_day)
        return tuple(s for s in self._sessions if s.date >= day)

    def _run_auction(self, session: records.Session, column: Literal["open", "close"]) -> None:
        """Fill the orders of an auction at its price, in one call of the accounting; unfilled auction orders expire."""
        time: datetime = getattr(session, column)
        participating = [
            order
            for order in self._orders.values()
            if order.live and order.time_in_force in _FILL_IN_AUCTION[column] and order.submitted_at < time
        ]
        filling: list[tuple[records.Order, float]] = []
        for order in participating:
            price = self._prices.auction_price(order.symbol, session.date, column)
            if price is not None and _limit_allows(order, Decimal(repr(price))):
                filling.append((order, price))
        if filling:
            self._fill_orders(filling, time)
        for order in participating:
            current = self._orders[order.id]
            if current.live and order.time_in_force is not records.TimeInForce.DAY:
                self._close_order(current, records.OrderStatus.EXPIRED, time)

    def _fill_orders(self, filling: list[tuple[records.Order, float]], time: datetime) -> None:
        symbols = [order.symbol for order, _ in filling]
        is_whole = all(order.quantity == order.quantity.to_integral_value() for order, _ in filling)
        prices = torch.tensor([price for _, price in filling], dtype=torch.float64)
        shares = torch.tensor([float(self._shares[symbol]) for symbol in symbols], dtype=torch.float64)
        trades = torch.tensor([float(o.side.sign * o.quantity) for o, _ in filling], dtype=torch.float64)
        rules = ExecutionRules(cost_rate=float(self._cost_rate), whole_shares=is_whole)
        cash = torch.tensor(float(self._cash), dtype=torch.float64)
        shares_after = execute(cash, shares, trades, prices, rules).shares
        for (order, price), change in zip(filling, (shares_after - shares).tolist(), strict=True):
            # The accounting works in floats: an order that it filled completely is filled to the last decimal.
            filled = Decimal(repr(abs(change)))
            quantity = min(filled.quantize(FRACTION, ROUND_DOWN), order.quantity)
            if order.quantity - quantity < _FLOAT_TOLERANCE:
                quantity = order.quantity
            if quantity:
                self._book_fill(order, quantity, Decimal(repr(price)), time)

    def _book_fill(self, order: records.Order, quantity: Decimal, price: Decimal, time: datetime) -> None:
        fee = (quantity * price * self._cost_rate).normalize()
        self._cash -= order.side.sign * quantity * price + fee
        self._shares[order.symbol] += order.side.sign * quantity
        complete = quantity == order.quantity
        status = records.OrderStatus.FILLED if complete else records.OrderStatus.PARTIALLY_FILLED
        order = dataclasses.replace(
            order, filled_quantity=quantity, filled_average_price=price, status=status, raw_status=status.value,
            updated_at=time,
        )  # fmt: skip
        self._orders[order.id] = order
        fill_id = f"fill-{len(self._fills) + 1}"
        fill = records.Fill(fill_id, order.id, order.symbol, order.side, quantity, quantity, price, time, fee)
        self._fills.append(fill)
        self._updates.append(records.OrderUpdate("fill" if complete else "partial_fill", order, time, fill))

    def _close_order(self, order: records.Order, status: records.OrderStatus, time: datetime) -> None:
        closed_order = dataclasses.replace(order, status=status, raw_status=status.value, updated_at=time)
        self._orders[order.id] = closed_order
        self._updates.append(records.OrderUpdate(status.value, closed_order, time))

    def _live_orders(self, symbol: str, side: records.Side) -> list[records.Order]:
        return [o for o in self._orders.values() if o.live and o.symbol == symbol and o.side is side]


def _first_fill(
    order: records.Order, start: datetime, path: tuple[float, float], session: records.Session
) -> tuple[datetime, float] | None:
    """First time from `start` on at which an order fills on the path from open to close, and the price."""
    if start >= session.close:
        return None
    length = session.close - session.open
    limit = order.limit_price if order.type is records.OrderType.LIMIT else None
    fill_point = fill_on_path(*path, (start - session.open) / length, limit, buys=order.side is records.Side.BUY)
    return None if fill_point is None else (max(session.open + fill_point[0] * length, start), fill_point[1])


def _limit_allows(order: records.Order, price: Decimal) -> bool:
    if order.type is not records.OrderType.LIMIT or order.limit_price is None:
        return True
    return price <= order.limit_price if order.side is records.Side.BUY else price >= order.limit_price


class PanelPrices:
    """Prices of a panel of daily bars, as far as they are known at the current time of a clock.

    Raises InputError for a panel without daily bars, and for a symbol that the panel lacks.
    """

    def __init__(self, panel: Panel, clock: Clock, calendar: Calendar) -> None:
        if panel.bar != "1d":
            raise InputError(f"the simulated broker needs daily bars; panel {panel.name!r} has {panel.bar} bars")
        self._panel = panel
        self._days = panel.times.astype("datetime64[D]")
        self._clock = clock
        self._calendar = calendar

    def bars(self, symbols: Sequence[str], start: date, end: date) -> BarTable:
        """Bars of sessions from start to end that have closed."""
        last = self._calendar.last_closed(self._clock.now()).date
        rows = (self._days >= np.datetime64(start)) & (self._days <= np.datetime64(min(end, last)))
        columns = [self._column(symbol) for symbol in symbols]
        missing = np.full((int(rows.sum()), len(columns)), np.nan)

        def select(name: str) -> Floats:
            values: Floats | None = getattr(self._panel, name)
            return missing if values is None else values[rows][:, columns].copy()

        prices = {name: select(name) for name in COLUMNS}
        return BarTable(times=self._panel.times[rows].copy(), symbols=tuple(symbols), feed="panel", **prices)

    def latest(self, symbols: Sequence[str]) -> Mapping[str, tuple[Decimal, datetime]]:
        """Last known close of each symbol, and the time of the last close of the exchange."""
        session = self._calendar.last_closed(self._clock.now())
        return {symbol: (self.last(symbol), session.close) for symbol in symbols}

    def last(self, symbol: str) -> Decimal:
        """Last known close of a symbol, for valuation; 0 before its first bar."""
        last = self._calendar.last_closed(self._clock.now()).date
        n = self._column(symbol)
        rows = np.flatnonzero((self._days <= np.datetime64(last)) & self._panel.tradable[:, n])
        return Decimal(repr(float(self._panel.close[rows[-1], n]))) if len(rows) else Decimal(0)

    def auction_price(self, symbol: str, day: date, column: Literal["open", "close"]) -> float | None:
        """Price of a session's opening or closing auction; None if the symbol has no such price."""
        rows = np.flatnonzero(self._days == np.datetime64(day))
        n = self._column(symbol)
        values: Floats | None = getattr(self._panel, column)
        if values is None or len(rows) != 1 or not self._panel.tradable[rows[0], n]:
            return None
        price = float(values[rows[0], n])
        return price if np.isfinite(price) else None

    def session_path(self, symbol: str, session: records.Session) -> tuple[float, float] | None:
        """Prices at the open (at the close before, without opens) and the close of a session; None without a bar."""
        last = self.auction_price(symbol, session.date, "close")
        first = self.auction_price(symbol, session.date, "open")
        if self._panel.open is None:
            n = self._column(symbol)
            previous_rows = np.flatnonzero((self._days < np.datetime64(session.date)) & self._panel.tradable[:, n])
            first = float(self._panel.close[previous_rows[-1], n]) if len(previous_rows) else None
        return None if first is None or last is None else (first, last)

    def _column(self, symbol: str) -> int:
        try:
            return self._panel.symbols.index(symbol)
        except ValueError:
            name = self._panel.name
            raise InputError(f"panel {name!r} has no symbol {symbol}; choose symbols of the panel") from None
