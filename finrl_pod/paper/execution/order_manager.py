"""The desk: sends the orders of intents, and finds out what became of them.

Whatever is about to be sent is written before, whatever was heard is written after. An order of unknown fate stays
with its intent until look-ups settle it, at every turn of the daemon; nothing else is sent for that intent meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from finrl_pod.errors import AuthenticationError, BrokerUnavailable
from finrl_pod.paper.brokers.port import Broker, Clock
from finrl_pod.paper.execution import order_state
from finrl_pod.paper.execution.intents import IntentState
from finrl_pod.paper.execution.order_state import Change, OrderState
from finrl_pod.paper.execution.risk import Exposure, Risk, RiskState
from finrl_pod.paper.journal.book import Book, TrackedIntent, TrackedOrder
from finrl_pod.paper.records import Ambiguous, Confirmed, Order, OrderRequest, OrderStatus, Reason, Rejected
from finrl_pod.paper.settings import TimingSettings

Alert = Callable[[str, str, str], None]  # level, kind, message
ExposureOf = Callable[[TrackedIntent], Callable[[], Exposure]]  # apart from the intent's own order
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 8.0  # seconds between two look-ups
RESENDS = 3  # of one order under its one id
REFUSALS = 3  # orders of one intent that were refused for a reason that passes
_DOUBTFUL = (OrderState.SENDING, OrderState.UNKNOWN)
_PASSING = (Reason.HELD_FOR_ORDERS, Reason.WASH_TRADE)


class Desk:
    """One thread's way to the broker. idle(seconds) waits and meanwhile serves commands."""

    def __init__(
        self, broker: Broker, book: Book, risk: Risk, clock: Clock, timing: TimingSettings, alert: Alert,
        idle: Callable[[float], None], found_by_polling: Callable[[datetime], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.broker = broker
        self.book = book
        self.risk = risk
        self.clock = clock
        self.timing = timing
        self.alert = alert
        self.idle = idle
        self._found_by_polling = found_by_polling
        self._listened = clock.now()
        self._told_doubts: set[int] = set()  # orders whose doubt was told

    # ------------------------------------------------------------------ sending

    def send(self, tracked: TrackedIntent, quantity: Decimal, exposure: Callable[[], Exposure]) -> None:
        """Send up to `quantity` shares of an intent as one order, after a look at every limit."""
        refused = 0
        while not tracked.state.final and tracked.live is None:
            wanted = min(quantity, tracked.remaining)
            if wanted <= 0 or self.clock.now() > tracked.intent.deadline:
                return self.finish(tracked)
            request = tracked.intent.request(len(tracked.orders), wanted)
            refusal = self.risk.refusal(request, tracked.intent.reference_price, exposure())
            if refusal is not None:
                return self._withhold(tracked, refusal)
            order = self.book.start_order(tracked, request, self.clock.now())
            reason = self._post(tracked, order, request, exposure)
            if reason is None:
                return None
            refused += 1
            if reason not in _PASSING or refused >= REFUSALS:
                self.alert("warning", "rejected", f"{request.symbol}: the broker refused {request.side} ({reason})")
                return self.book.close(tracked, IntentState.REJECTED, self.clock.now(), reason)
            self.idle(self.timing.poll)
            self.refresh()
        return None

    def _post(
        self, tracked: TrackedIntent, order: TrackedOrder, request: OrderRequest, exposure: Callable[[], Exposure]
    ) -> Reason | None:
        """Send an order until its fate is known or nobody can say; returns why it was refused, else None."""
        for _ in range(1 + RESENDS):
            try:
                outcome = self.broker.submit(request)
            except AuthenticationError:
                self._heard(order, order_state.was_refused(order.view), "post", "the keys were refused")
                raise
            if isinstance(outcome, Rejected) and outcome.reason is Reason.DUPLICATE_ID:
                outcome = self._own_duplicate(request)
            if isinstance(outcome, Confirmed):
                if outcome.order is not None:
                    self._heard(order, order_state.saw_order(order.view, outcome.order, settle=False), "post")
                return None
            if isinstance(outcome, Rejected) and outcome.reason is not Reason.RATE_LIMITED:
                self._heard(order, order_state.was_refused(order.view), "post", outcome.message)
                if outcome.reason is Reason.BLOCKED:
                    self._halt(f"the broker takes no orders: {outcome.message}")
                if outcome.reason is Reason.WASH_TRADE and not self._clear_opposite(request):
                    return Reason.OTHER
                return outcome.reason
            if isinstance(outcome, Ambiguous):
                self._heard(order, order_state.no_answer(order.view), "post", outcome.message)
                if not self._surely_absent(order, self.look_up([order], self.timing.lookup)[order.id]):
                    return None  # what is still in doubt is looked for at the next turn, by `settle`
            else:
                self._heard(order, order_state.no_answer(order.view), "post", outcome.message)
                until = outcome.retry_at or self.clock.now() + timedelta(minutes=1)
                self.idle(max((until - self.clock.now()).total_seconds(), 0.0))
            if self._given_up(tracked, order, request, exposure):
                return None
            self._heard(order, order_state.sent_again(order.view), "plan", "sent again under the same id")
        self.lose(tracked, order)
        return None

    def find(self) -> None:
        """Look once for every order in doubt. Nothing is sent."""
        self.look_up([order for _, order in self._doubtful()], 0.0)

    def settle(self, exposure_of: ExposureOf, *, may_send: bool) -> None:
        """Look for every order in doubt until that is settled. One that is surely absent is sent again, after the same
        look at every limit as a new one; after its deadline it is given up. may_send: no difference stands.
        """
        doubtful = self._doubtful()
        found = self.look_up([order for _, order in doubtful], self.timing.lookup)
        for tracked, order in doubtful:
            if not self._surely_absent(order, found[order.id]):
                continue
            if may_send:
                self._send_again(tracked, order, exposure_of(tracked))
            elif self.clock.now() > tracked.intent.deadline:
                self.lose(tracked, order)

    def _doubtful(self) -> list[tuple[TrackedIntent, TrackedOrder]]:
        """Orders of which nobody knows whether they reached the broker."""
        found = [(tracked, order) for tracked, order in self.book.live_orders() if order.view.state in _DOUBTFUL]
        for _, order in found:
            self._heard(order, order_state.no_answer(order.view), "recovery", "the answer was not seen")
        return found

    def _surely_absent(self, order: TrackedOrder, found: bool | None) -> bool:
        """Whether a look-up proved that the broker does not have an order. A doubt that remains is told, once."""
        if found is None and order.id not in self._told_doubts:
            self._told_doubts.add(order.id)
            name = order.view.client_order_id
            self.alert(
                "warning", "doubt", f"nobody says whether {name} reached the broker: it is looked for at each turn"
            )
        return found is False and order.view.state is OrderState.UNKNOWN

    def _send_again(self, tracked: TrackedIntent, order: TrackedOrder, exposure: Callable[[], Exposure]) -> None:
        request = tracked.intent.request(order.attempt, order.view.quantity)
        if self._given_up(tracked, order, request, exposure):
            return
        self._heard(order, order_state.sent_again(order.view), "plan", "sent again under the same id")
        reason = self._post(tracked, order, request, exposure)
        if reason is not None:
            self.book.close(tracked, IntentState.REJECTED, self.clock.now(), reason)

    def _given_up(
        self, tracked: TrackedIntent, order: TrackedOrder, request: OrderRequest, exposure: Callable[[], Exposure]
    ) -> bool:
        """Give an absent order up where deadline or limits forbid to send it again."""
        if self.clock.now() > tracked.intent.deadline:
            self.lose(tracked, order)
            return True
        refusal = self.risk.refusal(request, tracked.intent.reference_price, exposure())
        if refusal is None:
            return False
        self._heard(order, order_state.was_lost(order.view), "plan", "not sent again")
        self._withhold(tracked, refusal)
        return True

    def look_up(self, orders: Sequence[TrackedOrder], seconds: float) -> dict[int, bool | None]:
        """Ask for orders by our names until each is found (True), surely absent (False), or the seconds are over
        without an answer (None). Returns what is known, by the orders' rows.

        One "not found" soon after proves nothing: it takes two, and `timing.lookup` seconds. After one call without an
        answer the others of that round are not made, and another order is asked for first in the next.
        """
        began, pause = self.clock.monotonic(), FIRST_PAUSE
        absent = {order.id: 0 for order in orders}
        wanted = list(orders)
        while wanted:
            for order in tuple(wanted):
                try:
                    found = self.broker.order_by_client_id(order.view.client_order_id)
                except BrokerUnavailable:
                    wanted.remove(order)
                    wanted.append(order)
                    break
                if found is None:
                    absent[order.id] += 1
                else:
                    self._heard(order, order_state.saw_order(order.view, found, settle=False), "lookup")
                    wanted.remove(order)
            if not wanted or self.clock.monotonic() - began >= seconds:
                break
            self.idle(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        unsettled = {order.id for order in wanted}
        return {id_: (False if seen >= 2 else None) if id_ in unsettled else True for id_, seen in absent.items()}

    # ------------------------------------------------------------------ cancelling

    def cancel(self, order: TrackedOrder) -> None:
        """Ask for a cancel. Whether the order ended or filled first is left to the next refresh; one that nobody
        answered is asked for again there.
        """
        if not order.view.broker_id:
            return
        self._heard(order, order_state.cancel_was_asked(order.view), "plan", "cancel")
        outcome = self.broker.cancel(order.view.broker_id)
        if isinstance(outcome, Ambiguous):
            self._heard(order, order_state.cancel_was_lost(order.view), "plan", outcome.message)
        elif isinstance(outcome, Rejected) and outcome.reason not in (Reason.NOT_CANCELABLE, Reason.NOT_FOUND):
            self.alert("warning", "cancel", f"{order.view.client_order_id} was not cancelled: {outcome.message}")

    def cancel_all(self, seconds: float) -> bool:
        """Cancel every live order of ours and wait for the broker's word; True when none is left."""
        until = self.clock.monotonic() + seconds
        while True:
            live = self.book.live_orders()
            doubtful = [order for _, order in live if order.view.state is not OrderState.WORKING]
            found = self.look_up(doubtful, self.timing.lookup)
            for tracked, order in live:
                if order.view.state is OrderState.WORKING:
                    self.cancel(order)
                elif found.get(order.id) is False:
                    self.lose(tracked, order)
            self.refresh()
            if not self.book.live_orders():
                return True
            if self.clock.monotonic() >= until:
                return False
            self.idle(min(self.timing.poll, 1.0))

    # ------------------------------------------------------------------ hearing

    def listen(self) -> int:
        """Take in what the stream brought; returns how many messages."""
        self._listened = self.clock.now()
        updates = self.broker.updates()
        for update in updates:
            order = self.book.find(client_order_id=update.order.client_order_id)
            if order is None:
                continue  # somebody else's: fills of it are found by `refresh`
            if update.fill is not None:
                self._heard(order, order_state.saw_fill(order.view, update.fill), "stream", update.event)
            self._heard(order, order_state.saw_order(order.view, update.order, settle=False), "stream", update.event)
        return len(updates)

    def refresh(self) -> None:
        """Hear the stream, ask for our live orders and for new fills, and book what is new. Raises BrokerError."""
        self.listen()
        live = self.book.live_orders()
        seen: dict[str, Order] = {}
        if live:
            first = min(tracked.intent.opens for tracked, _ in live) - timedelta(days=1)
            seen = {order.client_order_id: order for order in self.broker.orders("all", after=first)}
        self.take_fills()
        for _, order in live:
            found = seen.get(order.view.client_order_id)
            if found is None and order.view.broker_id:
                found = self.broker.order(order.view.broker_id)
                if found is None:
                    self._halt(
                        f"order {order.view.client_order_id} has vanished from the broker: was the account reset?"
                    )
            if found is not None:
                self._heard(order, order_state.saw_order(order.view, found, settle=True), "rest")
        for tracked in list(self.book.open.values()):
            self._follow(tracked)
            self.finish(tracked)

    def take_fills(self) -> None:
        """Book fills after the cursor; those of orders that are not ours are written down as foreign."""
        cursor = self.book.cursor
        page = self.broker.fills_since(cursor)
        for fill in page.fills:
            order = self.book.find(broker_id=fill.order_id)
            if order is None:
                at_broker = self.broker.order(fill.order_id)
                if at_broker is not None:
                    order = self.book.find(client_order_id=at_broker.client_order_id) or self._adopted(at_broker)
            if order is None:
                self.book.foreign_fill(fill, self.clock.now())
            else:
                self._heard(order, order_state.saw_fill(order.view, fill), "fills")
        if page.cursor is not None and page.cursor != cursor:
            self.book.move_cursor(page.cursor, self.clock.now())

    def finish(self, tracked: TrackedIntent) -> None:
        """Close an intent that is filled, whose order ended, or whose time is over; cancel what is late."""
        if tracked.state.final:
            return
        now, live = self.clock.now(), tracked.live
        if tracked.remaining == 0 and live is None:
            self.book.close(tracked, IntentState.DONE, now)
        elif live is not None:
            if now > tracked.intent.ends and live.view.state is OrderState.WORKING and not live.view.cancel_requested:
                self.cancel(live)
        elif tracked.orders and tracked.orders[-1].view.state is OrderState.ENDED:
            status = tracked.orders[-1].view.status
            state = {OrderStatus.CANCELED: IntentState.CANCELED, OrderStatus.REJECTED: IntentState.REJECTED}
            detail = f"{status.value}, {tracked.filled} of {tracked.intent.quantity} filled"
            self.book.close(tracked, state.get(status, IntentState.EXPIRED), now, detail)
        elif now > tracked.intent.deadline:
            self.book.close(tracked, IntentState.EXPIRED, now, f"{tracked.filled} of {tracked.intent.quantity} filled")

    # ------------------------------------------------------------------ inside

    def _follow(self, tracked: TrackedIntent) -> None:
        """Where the last order of an intent was replaced, and not by us, its replacement is ours if it is the same."""
        last = tracked.orders[-1].view if tracked.orders else None
        if last is None or last.status is not OrderStatus.REPLACED:
            return
        replaced = self.broker.order(last.broker_id)
        found = None if replaced is None or replaced.replaced_by is None else self.broker.order(replaced.replaced_by)
        order = None if found is None else self._adopted(found)
        if order is not None and found is not None:
            self._heard(order, order_state.saw_order(order.view, found, settle=True), "rest")

    def _adopted(self, found: Order) -> TrackedOrder | None:
        """Take an order over that replaces one of an open intent, by way of others too; None for anything else."""
        if found.replaces is None:
            return None
        tracked = self.book.owner(found.replaces)
        if tracked is None:
            before = self.broker.order(found.replaces)
            if before is None or self._adopted(before) is None:
                return None
            tracked = self.book.owner(found.replaces)
        if tracked is None or (found.symbol, found.side) != (tracked.intent.symbol, tracked.intent.side):
            return None
        wanted = tracked.remaining
        order = self.book.adopt_order(tracked, found, self.clock.now())
        self.alert(
            "warning",
            "replaced",
            f"somebody replaced our order for {found.symbol} by {found.client_order_id}, which is followed as ours",
        )
        self._heard(order, order_state.saw_order(order.view, found, settle=False), "replaced")
        if found.live and found.quantity - found.filled_quantity > wanted:
            self.alert("warning", "replaced", f"{found.quantity} of it are more than the {wanted} wanted: cancelled")
            self.cancel(order)
        return order

    def _heard(self, order: TrackedOrder, change: Change, source: str, detail: str = "") -> None:
        if source in ("rest", "fills") and (change.bookings or change.view.state is not order.view.state):
            self._found_by_polling(self._listened)
        self.book.record(order, change, self.clock.now(), source, detail)
        for alarm in change.alarms:
            self.alert("warning", "order", alarm)

    def _own_duplicate(self, request: OrderRequest) -> Confirmed | Ambiguous | Rejected:
        """The broker has an order of that name: ours if it is the same, else something is badly wrong."""
        try:
            found = self.broker.order_by_client_id(request.client_order_id)
        except BrokerUnavailable as error:
            return Ambiguous(str(error))
        if found is None:
            return Ambiguous("the broker says that the name is taken, and does not find it")
        same = (found.symbol, found.side, found.quantity) == (request.symbol, request.side, request.quantity)
        if same:
            return Confirmed(found)
        message = (
            f"the broker has {found.side} {found.quantity} {found.symbol} under {request.client_order_id}, which here "
            f"is {request.side} {request.quantity} {request.symbol}"
        )
        self._halt(message)
        return Rejected(Reason.OTHER, message)

    def _clear_opposite(self, request: OrderRequest) -> bool:
        """Cancel our own order that stands against this one; False when it is somebody else's."""
        for _, order in self.book.live_orders():
            view = order.view
            if view.symbol == request.symbol and view.side is request.side.opposite:
                self.cancel(order)
                return True
        self.alert("warning", "wash_trade", f"{request.symbol}: an order that is not ours stands against it")
        return False

    def lose(self, tracked: TrackedIntent, order: TrackedOrder) -> None:
        """Give up an order that is not at the broker, and its intent: should it appear, no second one is there."""
        self._heard(order, order_state.was_lost(order.view), "lookup", "not at the broker")
        self.alert("warning", "lost", f"{order.view.client_order_id} is not at the broker and is not sent any more")
        self.book.close(tracked, IntentState.EXPIRED, self.clock.now(), "its order never reached the broker")

    def _withhold(self, tracked: TrackedIntent, refusal: str) -> None:
        intent = tracked.intent
        self.alert("warning", "risk", f"{intent.side} {intent.quantity} {intent.symbol} was kept back: {refusal}")
        self.book.close(tracked, IntentState.WITHHELD, self.clock.now(), refusal)

    def _halt(self, reason: str) -> None:
        if self.risk.tighten(RiskState.HALTED, reason, self.clock.now()):
            self.alert("critical", "halted", reason)
