"""The order manager: submits the orders of intents, tracks their state at the broker, and cancels them.

Every order is in the journal before it is sent. An order with an unknown submit outcome blocks its intent until a
look-up resolves it. The daemon tries that on every iteration; no other order of that intent is sent meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from finrl_pod.errors import AuthenticationError, BrokerUnavailable, JournalError
from finrl_pod.paper.domain import order_state
from finrl_pod.paper.domain.intents import MAX_ATTEMPT, IntentState, is_program_order_id, is_run_order_id
from finrl_pod.paper.domain.order_state import Change, OrderState, TrackedOrder
from finrl_pod.paper.domain.port import Broker, Clock
from finrl_pod.paper.domain.records import Ambiguous, Confirmed, Order, OrderRequest, OrderStatus, Reason, Rejected
from finrl_pod.paper.execution.risk import Exposure, RiskManager
from finrl_pod.paper.journal.commands import RiskState
from finrl_pod.paper.journal.ledger import Ledger, LedgerEntry
from finrl_pod.paper.settings import TimingSettings

Alert = Callable[[str, str, str], None]  # level, kind, message
ExposureOf = Callable[[LedgerEntry], Callable[[], Exposure]]  # exposure without the intent's own live order
MIN_LOOKUP_PAUSE = 1.0  # seconds between two look-ups
MAX_LOOKUP_PAUSE = 8.0
LOOKUP_SECONDS = 30.0  # after which an order of unknown outcome counts as not accepted
MAX_RESENDS = 3  # of one order under its id
MAX_REFUSALS = 3  # orders of one intent that were refused for a temporary reason
# Of intents by the status of their ended last order; EXPIRED for any other.
FINAL_STATES = {OrderStatus.CANCELED: IntentState.CANCELED, OrderStatus.REJECTED: IntentState.REJECTED}
_UNCONFIRMED = (OrderState.SENDING, OrderState.UNKNOWN)
_TEMPORARY = (Reason.HELD_FOR_ORDERS, Reason.WASH_TRADE)


class OrderManager:
    """Sends and tracks orders, from one thread.

    runs: run names of the account and its strategies, part of their order ids. idle: called as idle(seconds)
    to wait; it keeps the heartbeat alive and applies a halt. on_polled_change: called with the time of the last stream
    read when polling found a change that the stream had not reported.
    """

    def __init__(
        self, broker: Broker, ledger: Ledger, risk: RiskManager, clock: Clock, timing: TimingSettings, alert: Alert,
        runs: Sequence[str], idle: Callable[[float], None],
        on_polled_change: Callable[[datetime], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.broker = broker
        self.ledger = ledger
        self.risk = risk
        self.clock = clock
        self.timing = timing
        self.alert = alert
        self.idle = idle
        self._runs = tuple(runs)
        self._on_polled_change = on_polled_change
        self._stream_read_at = clock.now()
        self._alerted_other_run = False
        self._alerted_unknown: set[int] = set()  # orders whose unknown outcome was alerted

    # ------------------------------------------------------------------ sending

    def send(self, entry: LedgerEntry, quantity: Decimal, exposure: Callable[[], Exposure]) -> None:
        """Send up to `quantity` shares of an intent as one order, after checking every limit."""
        refusals = 0
        while not entry.state.final and entry.live is None:
            shares = min(quantity, entry.remaining)
            if shares <= 0 or self.clock.now() > entry.intent.deadline or len(entry.orders) > MAX_ATTEMPT:
                return self.finish(entry)
            now = self.clock.now()
            request = entry.intent.request(len(entry.orders), shares)
            refusal = self.risk.refusal(request, entry.intent.reference_price, exposure())
            if refusal is not None:
                return self._withhold(entry, refusal)
            order = self.ledger.start_order(entry, request, now)
            rejection = self._submit(entry, order, request, exposure)
            if rejection is None:
                return None
            refusals += 1
            if rejection.reason not in _TEMPORARY or refusals >= MAX_REFUSALS:
                return self._close_rejected(entry, rejection)
            self.idle(self.timing.poll)
            self.refresh()
        return None

    def _submit(
        self, entry: LedgerEntry, order: TrackedOrder, request: OrderRequest, exposure: Callable[[], Exposure]
    ) -> Rejected | None:
        """Submit an order, repeatedly if needed. Returns its rejection, or None if it has none or it is unknown."""
        for _ in range(1 + MAX_RESENDS):
            try:
                outcome = self.broker.submit(request)
            except AuthenticationError:
                self._apply(order, order_state.mark_unknown(order), "post", "the keys were refused")
                raise
            if isinstance(outcome, Rejected) and outcome.reason is Reason.DUPLICATE_ID:
                outcome = self._resolve_duplicate(request)
            if isinstance(outcome, Confirmed):
                if outcome.order is not None:
                    self._apply(order, order_state.apply_order(order, outcome.order, authoritative=False), "post")
                return None
            if isinstance(outcome, Rejected) and outcome.reason is not Reason.RATE_LIMITED:
                self._apply(order, order_state.mark_rejected(order), "post", outcome.message)
                if outcome.reason is Reason.BLOCKED:
                    self._halt(f"the broker accepts no orders: {outcome.message}")
                if outcome.reason is Reason.WASH_TRADE and not self._cancel_opposite(request):
                    return Rejected(Reason.OTHER, outcome.message)
                return outcome
            self._apply(order, order_state.mark_unknown(order), "post", outcome.message)
            if isinstance(outcome, Rejected):
                until = outcome.retry_at or self.clock.now() + timedelta(minutes=1)
                self.idle(max((until - self.clock.now()).total_seconds(), 0.0))
            elif not self._is_absent(order, self.look_up([order], LOOKUP_SECONDS)[order.id]):
                return None  # still unknown: `resolve_unknown` looks it up on the next iteration
            if self._give_up_if_blocked(entry, order, request, exposure):
                return None
            self._apply(order, order_state.mark_resent(order), "plan", "sent again under the same id")
        self.give_up(entry, order)
        return None

    def look_up_unknown(self) -> None:
        """Look up once every order with an unknown submit outcome. Sends nothing."""
        self.look_up([order for _, order in self._unknown_orders()], 0.0)

    def resolve_unknown(self, exposure_of: ExposureOf, *, may_send: bool) -> None:
        """Look up every order with an unknown submit outcome, for up to `LOOKUP_SECONDS`.

        An order that is not at the broker is sent again if `may_send` and the limits allow it, and given up after its
        deadline.
        """
        unknown = self._unknown_orders()
        lookups = self.look_up([order for _, order in unknown], LOOKUP_SECONDS)
        for entry, order in unknown:
            if not self._is_absent(order, lookups[order.id]):
                continue
            if may_send:
                self._resend(entry, order, exposure_of(entry))
            elif self.clock.now() > entry.intent.deadline:
                self.give_up(entry, order)

    def _unknown_orders(self) -> list[tuple[LedgerEntry, TrackedOrder]]:
        """Return the orders of which it is unknown whether they reached the broker."""
        orders = [(entry, order) for entry, order in self.ledger.live_orders() if order.state in _UNCONFIRMED]
        for _, order in orders:
            self._apply(order, order_state.mark_unknown(order), "recovery", "no response was received")
        return orders

    def _is_absent(self, order: TrackedOrder, is_found: bool | None) -> bool:
        """Return True if a look-up proved that the broker does not have an order. Alerts once while it is unknown."""
        if is_found is None and order.id not in self._alerted_unknown:
            self._alerted_unknown.add(order.id)
            message = f"submit outcome of {order.client_order_id} unknown; looking it up at every poll"
            self.alert("warning", "doubt", message)
        return is_found is False and order.state is OrderState.UNKNOWN

    def _resend(self, entry: LedgerEntry, order: TrackedOrder, exposure: Callable[[], Exposure]) -> None:
        request = entry.intent.request(order.attempt, order.quantity)
        if self._give_up_if_blocked(entry, order, request, exposure):
            return
        self._apply(order, order_state.mark_resent(order), "plan", "sent again under the same id")
        rejection = self._submit(entry, order, request, exposure)
        if rejection is not None:
            self._close_rejected(entry, rejection)

    def _close_rejected(self, entry: LedgerEntry, rejection: Rejected) -> None:
        """Close an intent whose order the broker refused, with its words in the alert."""
        side_and_reason = f"the broker refused to {entry.intent.side} ({rejection.reason}): {rejection.message}"
        self.alert("warning", "rejected", f"{entry.intent.symbol}: {side_and_reason}")
        self.ledger.close(entry, IntentState.REJECTED, self.clock.now(), rejection.reason)

    def _give_up_if_blocked(
        self, entry: LedgerEntry, order: TrackedOrder, request: OrderRequest, exposure: Callable[[], Exposure]
    ) -> bool:
        """Give up an absent order if its deadline or a limit forbids sending it again. Returns True if so."""
        if self.clock.now() > entry.intent.deadline:
            self.give_up(entry, order)
            return True
        refusal = self.risk.refusal(request, entry.intent.reference_price, exposure())
        if refusal is None:
            return False
        self._apply(order, order_state.mark_lost(order), "plan", "not sent again")
        self._withhold(entry, refusal)
        return True

    def look_up(self, orders: Sequence[TrackedOrder], seconds: float) -> dict[int, bool | None]:
        """Query orders by client id for up to `seconds`.

        Returns by row: True if found, False if absent, None if unknown. A single "not found" soon after a submit is
        not conclusive, so False requires two. After a query without a response, the rest of the pass is skipped, and
        the next pass starts with another order.
        """
        start = self.clock.monotonic()
        pause = MIN_LOOKUP_PAUSE
        not_found = {order.id: 0 for order in orders}
        remaining = list(orders)
        while remaining:
            for order in tuple(remaining):
                try:
                    report = self.broker.order_by_client_id(order.client_order_id)
                except BrokerUnavailable:
                    remaining.remove(order)
                    remaining.append(order)
                    break
                if report is None:
                    not_found[order.id] += 1
                else:
                    self._apply(order, order_state.apply_order(order, report, authoritative=False), "lookup")
                    remaining.remove(order)
            if not remaining or self.clock.monotonic() - start >= seconds:
                break
            self.idle(pause)
            pause = min(2 * pause, MAX_LOOKUP_PAUSE)
        lookups = {order.id: False if not_found[order.id] >= 2 else None for order in remaining}
        return {order.id: lookups.get(order.id, True) for order in orders}

    # ------------------------------------------------------------------ cancelling

    def cancel(self, order: TrackedOrder) -> None:
        """Request a cancel. The next refresh shows whether it worked, and repeats a request without a response."""
        if not order.broker_id:
            return
        self._apply(order, order_state.mark_cancel_requested(order), "plan", "cancel")
        outcome = self.broker.cancel(order.broker_id)
        if isinstance(outcome, Ambiguous):
            self._apply(order, order_state.mark_cancel_requested(order, requested=False), "plan", outcome.message)
        elif isinstance(outcome, Rejected) and outcome.reason not in (Reason.NOT_CANCELABLE, Reason.NOT_FOUND):
            self.alert("warning", "cancel", f"{order.client_order_id} was not cancelled: {outcome.message}")

    def cancel_all(self, seconds: float) -> bool:
        """Cancel own live orders and wait for confirmation. Returns True if no order is left."""
        until = self.clock.monotonic() + seconds
        while True:
            live = self.ledger.live_orders()
            unknown = [order for _, order in live if order.state is not OrderState.WORKING]
            lookups = self.look_up(unknown, LOOKUP_SECONDS)
            for entry, order in live:
                if order.state is OrderState.WORKING:
                    self.cancel(order)
                elif lookups.get(order.id) is False:
                    self.give_up(entry, order)
            self.refresh()
            if not self.ledger.live_orders():
                return True
            if self.clock.monotonic() >= until:
                return False
            self.idle(min(self.timing.poll, 1.0))

    # ------------------------------------------------------------------ updates from the broker

    def read_stream(self) -> int:
        """Apply new messages of the stream. Returns how many there were."""
        self._stream_read_at = self.clock.now()
        updates = self.broker.updates()
        for update in updates:
            order = self.ledger.find(client_order_id=update.order.client_order_id)
            if order is None:
                continue  # external: `refresh` finds its fills
            if update.fill is not None:
                self._apply(order, order_state.apply_fill(order, update.fill), "stream", update.event)
            change = order_state.apply_order(order, update.order, authoritative=False)
            self._apply(order, change, "stream", update.event)
        return len(updates)

    def refresh(self) -> None:
        """Read the stream, query own live orders and new fills, and record changes. Raises BrokerError."""
        self.read_stream()
        live = self.ledger.live_orders()
        at_broker: dict[str, Order] = {}
        if live:
            first = min(entry.intent.opens for entry, _ in live) - timedelta(days=1)
            at_broker = {order.client_order_id: order for order in self.broker.orders("all", after=first)}
        self.record_new_fills()
        for _, order in live:
            report = at_broker.get(order.client_order_id)
            if report is None and order.broker_id:
                report = self.broker.order(order.broker_id)
                if report is None:
                    self._halt(f"order {order.client_order_id} has vanished from the broker: was the account reset?")
            if report is not None:
                self._apply(order, order_state.apply_order(order, report, authoritative=True), "rest")
        for entry in list(self.ledger.open.values()):
            self._adopt_replacement(entry)
            self.finish(entry)

    def record_new_fills(self) -> None:
        """Record the fills after the cursor; fills of external orders as external fills."""
        cursor = self.ledger.fill_cursor
        page = self.broker.fills_since(cursor)
        for fill in page.fills:
            order = self.ledger.find(broker_id=fill.order_id)
            if order is None:
                at_broker = self.broker.order(fill.order_id)
                if at_broker is not None:
                    order = self.ledger.find(client_order_id=at_broker.client_order_id) or self._adopt(at_broker)
                    if order is None:
                        self.check_recorded([at_broker])
            if order is None:
                self.ledger.record_external_fill(fill, self.clock.now())
            else:
                self._apply(order, order_state.apply_fill(order, fill), "fills")
        if page.cursor is not None and page.cursor != cursor:
            self.ledger.move_fill_cursor(page.cursor, self.clock.now())

    def is_own(self, order: Order) -> bool:
        """Return True if the order was sent by the run of this account or one of its strategies."""
        return any(is_run_order_id(order.client_order_id, run) for run in self._runs)

    def check_recorded(self, orders: Iterable[Order]) -> None:
        """Raise JournalError if one of these orders of the broker is an own order that the journal does not have.

        The journal is then lost or an old copy: whoever trades on would buy all positions again. Alerts once if another
        run of this program trades the account.
        """
        orders = tuple(orders)
        foreign = next((o for o in orders if is_program_order_id(o.client_order_id) and not self.is_own(o)), None)
        if foreign is not None and not self._alerted_other_run:
            self._alerted_other_run = True
            message = (
                f"another run of this program trades the account too (order {foreign.client_order_id}, {foreign.side} "
                f"{foreign.quantity} {foreign.symbol}): give each run an account of its own"
            )
            self.alert("warning", "other_run", message)
        own_orders = [order for order in orders if self.is_own(order)]
        recorded_ids = self.ledger.client_order_ids() if own_orders else set()
        unknown = [order for order in own_orders if order.client_order_id not in recorded_ids]
        if unknown:
            last = max(unknown, key=lambda order: order.submitted_at)
            raise JournalError(
                f"the broker has {len(unknown)} orders of this run that journal {self.ledger.store.path} does not, the "
                f"last one {last.client_order_id} of {last.submitted_at:%Y-%m-%d} ({last.side} {last.quantity} "
                f"{last.symbol}, {last.filled_quantity} filled): the journal was lost, or is an old copy. Put its "
                "newest copy back with all companion files, or rebuild it with: finrl-pod paper adopt CONFIG.toml"
            )

    def check_all_recorded(self) -> None:
        """Raise JournalError as `check_recorded`, over all orders since the newest one in the journal."""
        newest = self.ledger.newest_moment()
        self.check_recorded(self.broker.orders("all", after=None if newest is None else newest - timedelta(days=1)))

    def finish(self, entry: LedgerEntry) -> None:
        """Close an intent that is filled, or after the end of its order or deadline; cancel an order past its end."""
        if entry.state.final:
            return
        now = self.clock.now()
        live = entry.live
        if entry.remaining == 0 and live is None:
            self.ledger.close(entry, IntentState.DONE, now)
        elif live is not None:
            if now > entry.intent.ends and live.state is OrderState.WORKING and not live.cancel_requested:
                self.cancel(live)
        elif entry.orders and entry.orders[-1].state is OrderState.ENDED:
            last = entry.orders[-1]
            state = FINAL_STATES.get(last.status, IntentState.EXPIRED)
            detail = f"{last.status.value}, {entry.filled} of {entry.intent.quantity} filled"
            self._close_unfilled(entry, state, detail)
        elif now > entry.intent.deadline:
            self._close_unfilled(entry, IntentState.EXPIRED, f"{entry.filled} of {entry.intent.quantity} filled")

    def _close_unfilled(self, entry: LedgerEntry, state: IntentState, detail: str) -> None:
        """Close an intent with shares that were not filled; an expiry raises an alert."""
        intent = entry.intent
        if state is IntentState.EXPIRED:
            filled = f"{entry.filled.normalize():f} of {intent.quantity} shares were filled in time"
            message = f"{intent.side} {intent.symbol}: {filled}; the rest waits for the next session"
            self.alert("warning", "expired", message)
        self.ledger.close(entry, state, self.clock.now(), detail)

    def _adopt_replacement(self, entry: LedgerEntry) -> None:
        """If an intent's last order was replaced externally, track the replacement as the intent order."""
        last = entry.orders[-1] if entry.orders else None
        if last is None or last.status is not OrderStatus.REPLACED:
            return
        replaced_order = self.broker.order(last.broker_id)
        if replaced_order is None or replaced_order.replaced_by is None:
            return
        replacement = self.broker.order(replaced_order.replaced_by)
        if replacement is not None and (order := self._adopt(replacement)) is not None:
            self._apply(order, order_state.apply_order(order, replacement, authoritative=True), "rest")

    def _adopt(self, replacement: Order) -> TrackedOrder | None:
        """Track an order that replaces, directly or through others, an order of an open intent; None for any other."""
        if replacement.replaces is None:
            return None
        entry = self.ledger.intent_of_order(replacement.replaces)
        if entry is None:
            previous = self.broker.order(replacement.replaces)
            if previous is None or self._adopt(previous) is None:
                return None
            entry = self.ledger.intent_of_order(replacement.replaces)
        if entry is None or (replacement.symbol, replacement.side) != (entry.intent.symbol, entry.intent.side):
            return None
        remaining = entry.remaining
        order = self.ledger.add_order(entry, replacement, self.clock.now(), "replaced")
        message = f"the order for {order.symbol} was replaced externally by {order.client_order_id}: it is tracked now"
        self.alert("warning", "replaced", message)
        self._apply(order, order_state.apply_order(order, replacement, authoritative=False), "replaced")
        if replacement.live and replacement.quantity - replacement.filled_quantity > remaining:
            message = f"the replacement is for {replacement.quantity} shares, but {remaining} remain: it is cancelled"
            self.alert("warning", "replaced", message)
            self.cancel(order)
        return order

    def _apply(self, order: TrackedOrder, change: Change, source: str, detail: str = "") -> None:
        """Record a change of an order and raise its warnings as alerts."""
        if source in ("rest", "fills") and (change.fills or change.order.state is not order.state):
            self._on_polled_change(self._stream_read_at)
        self.ledger.record(order, change, self.clock.now(), source, detail)
        for warning in change.warnings:
            self.alert("warning", "order", warning)

    def _resolve_duplicate(self, request: OrderRequest) -> Confirmed | Ambiguous | Rejected:
        """Handle a duplicate client id: confirmed if the broker order is the same one, else trading is halted."""
        try:
            report = self.broker.order_by_client_id(request.client_order_id)
        except BrokerUnavailable as error:
            return Ambiguous(str(error))
        if report is None:
            return Ambiguous("the broker refused the order id as a duplicate, but does not find that order")
        if (report.symbol, report.side, report.quantity) == (request.symbol, request.side, request.quantity):
            return Confirmed(report)
        message = (
            f"order id {request.client_order_id} is {request.side} {request.quantity} {request.symbol} in the journal "
            f"but {report.side} {report.quantity} {report.symbol} at the broker"
        )
        self._halt(message)
        return Rejected(Reason.OTHER, message)

    def _cancel_opposite(self, request: OrderRequest) -> bool:
        """Cancel the own opposite order that blocks this one. Returns False if it is external."""
        for _, order in self.ledger.live_orders():
            if order.symbol == request.symbol and order.side is request.side.opposite:
                self.cancel(order)
                return True
        self.alert("warning", "wash_trade", f"{request.symbol}: the order is blocked by an external opposite order")
        return False

    def give_up(self, entry: LedgerEntry, order: TrackedOrder) -> None:
        """Close an order that is not at the broker and its intent, so that no second order exists if it appears."""
        self._apply(order, order_state.mark_lost(order), "lookup", "not at the broker")
        self.alert("warning", "lost", f"{order.client_order_id} is not at the broker; it is not sent again")
        self.ledger.close(entry, IntentState.EXPIRED, self.clock.now(), "its order did not reach the broker")

    def _withhold(self, entry: LedgerEntry, refusal: str) -> None:
        intent = entry.intent
        self.alert("warning", "risk", f"{intent.side} {intent.quantity} {intent.symbol} not sent: {refusal}")
        self.ledger.close(entry, IntentState.WITHHELD, self.clock.now(), refusal)

    def _halt(self, reason: str) -> None:
        if self.risk.tighten(RiskState.HALTED, reason, self.clock.now()):
            self.alert("critical", "halted", reason)
