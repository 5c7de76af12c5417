"""A broker without a network: the project's own accounting fills orders in the auctions of a panel's sessions.

It answers like a broker of paper accounts: opening and closing auctions, DAY orders that wait for the open, limits,
expiry. Fills happen in auctions alone. It is its own price feed. Time comes from the clock that it is given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import ROUND_DOWN, Decimal
from typing import Literal

import torch

from finrl_pod.market.execution import ExecutionRules, execute
from finrl_pod.market.orders import FRACTION
from finrl_pod.paper.brokers.panel_prices import PanelPrices
from finrl_pod.paper.brokers.port import Adjustment, BarTable, Clock
from finrl_pod.paper.records import (
    AccountState,
    Asset,
    BrokerClock,
    Confirmed,
    CorporateAction,
    Fill,
    FillPage,
    Order,
    OrderRequest,
    OrderStatus,
    OrderType,
    OrderUpdate,
    Outcome,
    Position,
    RateLimit,
    Reason,
    Rejected,
    Session,
    Side,
    StreamState,
    TimeInForce,
)
from finrl_pod.paper.runtime.schedule import CLOSE_CUTOFF, OPEN_CUTOFF, Calendar
from finrl_pod.types import Panel

ZERO = Decimal(0)
_AT_OPEN = (TimeInForce.OPG, TimeInForce.DAY)


class SimulatedBroker:
    """One account on a panel of daily bars. Satisfies `Broker` and `DataFeed`.

    cost_rate: charged on each fill. Raises InputError for a panel that is not daily.
    """

    name = "simulated"

    def __init__(
        self, panel: Panel, clock: Clock, cash: Decimal, cost_rate: Decimal = ZERO, account: str = "simulated"
    ) -> None:
        self._calendar = Calendar()
        self._prices = PanelPrices(panel, clock, self._calendar)
        self._clock = clock
        self._cash = cash
        self._cost_rate = cost_rate
        self._account = account
        self._shares: dict[str, Decimal] = dict.fromkeys(panel.symbols, ZERO)
        self._orders: dict[str, Order] = {}
        self._by_client: dict[str, str] = {}
        self._fills: list[Fill] = []
        self._updates: list[OrderUpdate] = []
        self._done = clock.now()  # auctions up to here have been held
        self._sessions: tuple[Session, ...] = ()

    # ------------------------------------------------------------------ the account

    def account(self) -> AccountState:
        self._advance()
        worth = self._cash + sum((s * self._prices.last(symbol) for symbol, s in self._shares.items() if s), ZERO)
        return AccountState(self._account, "USD", self._cash, worth, worth, max(self._cash, ZERO))

    def positions(self) -> tuple[Position, ...]:
        self._advance()
        return tuple(
            Position(symbol, shares, price=self._prices.last(symbol))
            for symbol, shares in self._shares.items()
            if shares
        )

    # ------------------------------------------------------------------ orders

    def submit(self, request: OrderRequest) -> Outcome:
        self._advance()
        if request.client_order_id in self._by_client:
            return Rejected(Reason.DUPLICATE_ID, "client_order_id must be unique")
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        number, now = f"sim-{len(self._orders) + 1}", self._clock.now()
        order = Order(
            number, request.client_order_id, request.symbol, request.side, request.quantity, ZERO, OrderStatus.NEW,
            request.time_in_force, request.type, now, now, limit_price=request.limit_price, status_word="new",
        )  # fmt: skip
        self._orders[number] = order
        self._by_client[request.client_order_id] = number
        self._tell("new", order)
        return Confirmed(order)

    def cancel(self, order_id: str) -> Outcome:
        self._advance()
        order = self._orders.get(order_id)
        if order is None:
            return Rejected(Reason.NOT_FOUND, "order not found")
        if not order.live:
            return Rejected(Reason.NOT_CANCELABLE, f"order is {order.status.value}")
        self._end(order, OrderStatus.CANCELED)
        return Confirmed()

    def replace(self, order_id: str, request: OrderRequest) -> Outcome:
        self._advance()
        order = self._orders.get(order_id)
        if order is None:
            return Rejected(Reason.NOT_FOUND, "order not found")
        if not order.live:
            return Rejected(Reason.NOT_CANCELABLE, f"order is {order.status.value}")
        outcome = self.submit(request)
        if not isinstance(outcome, Confirmed) or outcome.order is None:
            return outcome
        new = dataclasses.replace(outcome.order, replaces=order.id)
        self._orders[new.id] = new
        self._end(dataclasses.replace(order, replaced_by=new.id), OrderStatus.REPLACED)
        return Confirmed(new)

    def order(self, order_id: str) -> Order | None:
        self._advance()
        return self._orders.get(order_id)

    def order_by_client_id(self, client_order_id: str) -> Order | None:
        self._advance()
        return self._orders.get(self._by_client.get(client_order_id, ""))

    def orders(self, status: Literal["open", "all"], after: datetime | None = None) -> tuple[Order, ...]:
        self._advance()
        return tuple(
            order
            for order in self._orders.values()
            if (status == "all" or order.live) and (after is None or order.submitted_at > after)
        )

    def fills_since(self, cursor: str | None) -> FillPage:
        self._advance()
        first = int(cursor or 0)
        return FillPage(tuple(self._fills[first:]), str(len(self._fills)))

    def updates(self) -> tuple[OrderUpdate, ...]:
        self._advance()
        told, self._updates = tuple(self._updates), []
        return told

    def stream(self) -> StreamState:
        return StreamState(connected=True, last_message=self._clock.now())

    def renew_stream(self) -> None:
        """It never breaks."""

    # ------------------------------------------------------------------ facts

    def assets(self, symbols: Sequence[str]) -> Mapping[str, Asset]:
        return {s: Asset(s, tradable=True, fractionable=True) for s in symbols if s in self._shares}

    def corporate_actions(self, symbols: Sequence[str], start: date, end: date) -> tuple[CorporateAction, ...]:  # noqa: ARG002
        return ()  # the panel's prices are adjusted: its shares never split

    def clock(self) -> BrokerClock:
        now = self._clock.now()
        days = self._calendar.sessions(now.date() - timedelta(days=7), now.date() + timedelta(days=14))
        opens = next(s.open for s in days if s.open > now)
        closes = next(s.close for s in days if s.close > now)
        return BrokerClock(now, closes < opens, opens, closes)

    def calendar(self, start: date, end: date) -> tuple[Session, ...]:
        return self._calendar.sessions(start, end)

    def rate_limit(self) -> RateLimit | None:
        return None

    def close(self) -> None:
        pass

    # ------------------------------------------------------------------ prices

    def bars(self, symbols: Sequence[str], start: date, end: date, adjustment: Adjustment) -> BarTable:  # noqa: ARG002
        """Complete sessions alone: what has not closed on the clock is not there."""
        self._advance()
        return self._prices.bars(symbols, start, end)

    def latest(self, symbols: Sequence[str]) -> Mapping[str, tuple[Decimal, datetime]]:
        self._advance()
        return self._prices.latest(symbols)

    # ------------------------------------------------------------------ inside

    def _refusal(self, request: OrderRequest) -> Rejected | None:
        if request.symbol not in self._shares:
            return Rejected(Reason.INVALID, f"asset {request.symbol} not found")
        if request.quantity <= 0:
            return Rejected(Reason.INVALID, "qty must be > 0")
        whole = request.quantity == request.quantity.to_integral_value()
        if not whole and request.time_in_force is not TimeInForce.DAY:
            return Rejected(Reason.INVALID, "fractional orders must be DAY orders")
        if request.time_in_force is TimeInForce.GTC:
            return Rejected(Reason.INVALID, "the simulated broker holds no auctions for GTC orders")
        if request.side is Side.SELL:
            bound = sum((o.quantity - o.filled_quantity for o in self._live(request.symbol, Side.SELL)), ZERO)
            if request.quantity > self._shares[request.symbol] - bound:
                reason = Reason.HELD_FOR_ORDERS if bound else Reason.INSUFFICIENT_QUANTITY
                return Rejected(reason, f"insufficient qty available, held_for_orders {bound}")
        if self._live(request.symbol, request.side.opposite):
            return Rejected(Reason.WASH_TRADE, "potential wash trade detected")
        now = self._clock.now()
        session = next((s for s in self._ahead(now) if s.close > now), None)
        if session is not None and request.time_in_force is TimeInForce.OPG:
            if session.open - OPEN_CUTOFF <= now < session.close:
                return Rejected(Reason.INVALID, "opg orders are refused from 9:28 until the evening")
        elif session is not None and request.time_in_force is TimeInForce.CLS and now >= session.close - CLOSE_CUTOFF:
            return Rejected(Reason.INVALID, "cls orders are refused from 15:50 until the evening")
        return None

    def _advance(self) -> None:
        """Hold the auctions that the clock has passed."""
        now = self._clock.now()
        if now <= self._done:
            return
        since, self._done = self._done, now
        if not any(order.live for order in self._orders.values()):
            return
        for session in self._ahead(since):
            if session.open > now:
                break
            if since < session.open <= now:
                self._auction(session, session.open, _AT_OPEN, "open")
            if since < session.close <= now:
                self._auction(session, session.close, (TimeInForce.CLS,), "close")
                for order in list(self._orders.values()):
                    if order.live and order.time_in_force is TimeInForce.DAY and order.submitted_at < session.close:
                        self._end(order, OrderStatus.EXPIRED, session.close)

    def _ahead(self, since: datetime) -> tuple[Session, ...]:
        """Sessions from that day on, for two weeks at least."""
        day = since.date() - timedelta(days=1)
        if not self._sessions or self._sessions[0].date > day or self._sessions[-1].close < self._clock.now():
            until = max(since.date(), self._clock.now().date()) + timedelta(days=40)
            self._sessions = self._calendar.sessions(day, until)
        return tuple(s for s in self._sessions if s.date >= day)

    def _auction(
        self, session: Session, at: datetime, kinds: tuple[TimeInForce, ...], column: Literal["open", "close"]
    ) -> None:
        """Fill what fills at the auction's price in one call of the accounting; what is left of auction orders ends."""
        taking = [o for o in self._orders.values() if o.live and o.time_in_force in kinds and o.submitted_at < at]
        filling: list[tuple[Order, float]] = []
        for order in taking:
            price = self._prices.of_auction(order.symbol, session.date, column)
            if price is not None and _within(order, Decimal(repr(price))):
                filling.append((order, price))
        if filling:
            self._fill(filling, at)
        for order in taking:
            now = self._orders[order.id]
            if now.live and order.time_in_force is not TimeInForce.DAY:
                self._end(now, OrderStatus.EXPIRED, at)

    def _fill(self, filling: list[tuple[Order, float]], at: datetime) -> None:
        symbols = [order.symbol for order, _ in filling]
        whole = all(order.quantity == order.quantity.to_integral_value() for order, _ in filling)
        prices = torch.tensor([price for _, price in filling], dtype=torch.float64)
        held = torch.tensor([float(self._shares[symbol]) for symbol in symbols], dtype=torch.float64)
        trades = torch.tensor([float(o.side.sign * o.quantity) for o, _ in filling], dtype=torch.float64)
        rules = ExecutionRules(cost_rate=float(self._cost_rate), whole_shares=whole)
        cash = torch.tensor(float(self._cash), dtype=torch.float64)
        after = execute(cash, held, trades, prices, rules).shares
        for (order, price), change in zip(filling, (after - held).tolist(), strict=True):
            # The accounting works in floats: an order that it filled wholly is filled to the last decimal.
            moved = Decimal(repr(abs(change)))
            quantity = min(moved.quantize(FRACTION, ROUND_DOWN), order.quantity)
            if order.quantity - quantity < Decimal("1e-6"):
                quantity = order.quantity
            if quantity:
                self._book(order, quantity, Decimal(repr(price)), at)

    def _book(self, order: Order, quantity: Decimal, price: Decimal, at: datetime) -> None:
        fee = (quantity * price * self._cost_rate).normalize()
        self._cash -= order.side.sign * quantity * price + fee
        self._shares[order.symbol] += order.side.sign * quantity
        done = quantity == order.quantity
        status = OrderStatus.FILLED if done else OrderStatus.PARTIALLY_FILLED
        order = dataclasses.replace(
            order, filled_quantity=quantity, filled_average_price=price, status=status, status_word=status.value,
            updated_at=at,
        )  # fmt: skip
        self._orders[order.id] = order
        number = f"fill-{len(self._fills) + 1}"
        fill = Fill(number, order.id, order.symbol, order.side, quantity, quantity, price, at, fee)
        self._fills.append(fill)
        self._updates.append(OrderUpdate("fill" if done else "partial_fill", order, at, fill))

    def _end(self, order: Order, status: OrderStatus, at: datetime | None = None) -> None:
        at = at or self._clock.now()
        ended = dataclasses.replace(order, status=status, status_word=status.value, updated_at=at)
        self._orders[order.id] = ended
        self._tell(status.value, ended)

    def _tell(self, event: str, order: Order) -> None:
        self._updates.append(OrderUpdate(event, order, order.updated_at))

    def _live(self, symbol: str, side: Side) -> list[Order]:
        return [o for o in self._orders.values() if o.live and o.symbol == symbol and o.side is side]


def _within(order: Order, price: Decimal) -> bool:
    if order.type is not OrderType.LIMIT or order.limit_price is None:
        return True
    return price <= order.limit_price if order.side is Side.BUY else price >= order.limit_price
