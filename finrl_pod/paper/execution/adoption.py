"""Rebuilds a lost journal from the broker: own orders by their ids, their fills, and the splits since.

What only the journal knew is gone: the history of equity, targets, halts, and the inputs of decisions. The rebuilt one
has a decision for each bar with orders, so that none is taken twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from finrl_pod.paper.domain import order_state
from finrl_pod.paper.domain.intents import FLATTEN, Intent, IntentState, parse_order_id
from finrl_pod.paper.domain.order_state import TrackedOrder
from finrl_pod.paper.domain.port import Broker
from finrl_pod.paper.domain.records import (
    AccountActivity,
    AccountState,
    ActionKind,
    CorporateAction,
    Fill,
    Order,
    Position,
)
from finrl_pod.paper.domain.schedule import AUCTION_GRACE, Calendar, calendar_of
from finrl_pod.paper.execution.activities import activity_groups, book_activities
from finrl_pod.paper.execution.order_manager import FINAL_STATES
from finrl_pod.paper.execution.reconcile import NOT_BOOKED, book_action
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import RiskState
from finrl_pod.paper.journal.ledger import Ledger, LedgerEntry
from finrl_pod.paper.journal.store import Store, add
from finrl_pod.paper.settings import PaperConfig, allocations

ZERO = Decimal(0)
SOURCE = "adopted"
ENOUGH_CASH = Decimal("Infinity")  # of the account at the time of a transfer, which then counts as external
NEW_YORK = ZoneInfo("America/New_York")
QUERIED_BEFORE = timedelta(days=15)  # before the current time, of the broker's calendar


@dataclass(frozen=True)
class Adoption:
    """The books of a rebuilt journal. positions: own shares. external: the other shares of the account.

    unsupported: corporate actions on own shares that could not be recorded.
    """

    positions: dict[str, Decimal]
    external: dict[str, Decimal]
    cash: Decimal
    orders: int
    fills: int
    unsupported: tuple[str, ...]


def adopt(store: Store, config: PaperConfig, broker: Broker, now: datetime) -> Adoption:
    """Fill a new journal with the orders and fills of the run at the broker. Raises BrokerError and JournalError."""
    page = broker.fills_since(None)
    account = broker.account()
    positions = broker.positions()
    runs = [allocation.name for allocation in allocations(config)]
    own_order_rows = own_orders(broker.orders("all"), [*runs, config.name])
    first = own_order_rows[0][0].submitted_at if own_order_rows else now
    calendar = calendar_of(config)
    calendar.query(broker, min(first, now - QUERIED_BEFORE).date(), now)
    last_session = _last_decided_session(calendar, config, now)
    actions: tuple[CorporateAction, ...] = ()
    if own_order_rows and first.date() <= last_session:
        actions = broker.corporate_actions(
            sorted({order.symbol for order, *_ in own_order_rows}), first.date(), last_session
        )
    ledger = Ledger(store)
    activities = broker.activities(first)
    with store.batch():
        store.bind("account", account.id)
        store.bind("run", config.name)
        rebuilding = _Rebuilding(ledger, config, calendar)
        unsupported = rebuilding.replay(own_order_rows, page.fills, [*actions, *activities], first)
        if page.cursor is not None:
            ledger.move_fill_cursor(page.cursor, now)
        _write_rest(ledger, account, positions, calendar.last_closed(now).date, now, last_session)
    return Adoption(
        positions={symbol: shares for symbol, shares in sorted(ledger.positions.items()) if shares},
        external=dict(sorted(ledger.external_positions().items())),
        cash=Decimal(str(config.capital)) + ledger.cash,
        orders=store.count(schema.orders),
        fills=store.count(schema.fills),
        unsupported=unsupported,
    )


def _last_decided_session(calendar: Calendar, config: PaperConfig, now: datetime) -> date:
    """Return the last session of which the decision was due: the daemon records later corporate actions itself."""
    cycle = calendar.next_cycle(now, config)
    if now >= cycle.opens:
        return cycle.session.date
    return calendar.sessions(cycle.session.date - QUERIED_BEFORE, cycle.session.date)[-2].date


def own_orders(orders: Sequence[Order], runs: Sequence[str]) -> list[tuple[Order, str, str]]:
    """Return the orders of these runs with run and bar, oldest first, and what replaced them externally."""
    own: dict[str, tuple[Order, str, str]] = {}
    for order in sorted(orders, key=lambda order: order.submitted_at):
        run_and_bar = parse_order_id(order.client_order_id, runs, order.submitted_at.astimezone(NEW_YORK).date())
        if run_and_bar is None and order.replaces in own:
            replaced_order, run, bar = own[order.replaces or ""]
            if (replaced_order.symbol, replaced_order.side) == (order.symbol, order.side):
                run_and_bar = (run, bar)
        if run_and_bar is not None:
            own[order.id] = (order, *run_and_bar)
    return list(own.values())


class _Rebuilding:
    """Writes intents, orders, fills, corporate actions and activities in the order in which they happened."""

    def __init__(self, ledger: Ledger, config: PaperConfig, calendar: Calendar) -> None:
        self._ledger = ledger
        self._config = config
        self._calendar = calendar
        self._orders: dict[str, TrackedOrder] = {}  # by broker id
        self._intents: dict[tuple[str, ...], LedgerEntry] = {}

    def replay(
        self, own: Sequence[tuple[Order, str, str]], fills: Sequence[Fill],
        actions: Sequence[CorporateAction | AccountActivity], first: datetime,
    ) -> tuple[str, ...]:  # fmt: skip
        """Write all events. Returns the corporate actions on own shares that could not be recorded."""
        groups: dict[tuple[str, ...], list[Order]] = {}
        for order, run, bar in own:
            groups.setdefault((run, bar, order.symbol, order.side.value), []).append(order)
        for key, members in groups.items():
            self._add_intent(key, members)
        for order, run, bar in own:
            entry = self._intents[run, bar, order.symbol, order.side.value]
            self._orders[order.id] = self._ledger.add_order(entry, order, order.submitted_at, SOURCE)
        events: list[tuple[datetime, int, Fill | CorporateAction | list[AccountActivity]]] = [
            (fill.time, 1, fill) for fill in fills if fill.order_id in self._orders
        ]
        activities = [action for action in actions if isinstance(action, AccountActivity)]
        events += [(group[0].created, 2, group) for group in activity_groups(activities)]
        first_day = first.astimezone(NEW_YORK).date()
        events += [
            (datetime.combine(action.ex_date, time(), NEW_YORK), 0, action)
            for action in actions
            if isinstance(action, CorporateAction) and action.ex_date > first_day
        ]
        unsupported_actions = []
        for at, _, event in sorted(events, key=lambda event_row: event_row[:2]):
            if isinstance(event, list):
                book_activities(self._ledger, self._config, event, ENOUGH_CASH, at)
            elif isinstance(event, Fill):
                tracked_order = self._orders[event.order_id]
                self._ledger.record(tracked_order, order_state.apply_fill(tracked_order, event), at, SOURCE)
            elif event.kind not in NOT_BOOKED:
                book_action(self._ledger, event, at, pays_dividends=self._config.broker.kind == "simulated")
            elif event.kind is ActionKind.OTHER and self._ledger.positions.get(event.symbol):
                unsupported_actions.append(f"{event.symbol}: {event.detail or 'a corporate action'} of {event.ex_date}")
        for order, *_ in own:
            tracked_order = self._orders[order.id]
            change = order_state.apply_order(tracked_order, order, authoritative=True)
            self._ledger.record(tracked_order, change, order.updated_at, SOURCE)
        self._close_intents()
        return tuple(unsupported_actions)

    def _add_intent(self, key: tuple[str, ...], members: Sequence[Order]) -> None:
        """Write the intent of orders that were sent one after the other, each for what was left of it."""
        first = members[0]
        last = members[-1]
        filled = ZERO
        quantity = ZERO
        for order in members:
            quantity = max(quantity, filled + order.quantity)
            filled += order.filled_quantity
        day = first.submitted_at.date()
        sessions = self._calendar.sessions(day, day + timedelta(days=14))
        close = next((session.close for session in sessions if session.close > last.submitted_at), last.updated_at)
        price = next((x for x in (first.limit_price, first.filled_average_price) if x is not None), ZERO)
        intent = Intent(
            key[0], key[1], first.symbol, first.side, quantity, first.time_in_force, first.type, first.limit_price,
            price, first.submitted_at, last.submitted_at, close + AUCTION_GRACE,
        )  # fmt: skip
        with self._ledger.store.write() as connection:
            (self._intents[key],) = self._ledger.add_intents(connection, first.submitted_at, [intent])
        self._ledger.track([self._intents[key]])

    def _close_intents(self) -> None:
        """Close the intents without a live order. Each bar with orders was decided."""
        decision_times: dict[tuple[str, str], datetime] = {}
        for entry in self._intents.values():
            intent = entry.intent
            if not intent.bar.startswith(FLATTEN):
                decision_times.setdefault((intent.run, intent.bar), intent.opens)
            if entry.live is not None:
                continue
            unfilled_state = FINAL_STATES.get(entry.orders[-1].status, IntentState.EXPIRED)
            state = unfilled_state if entry.remaining else IntentState.DONE
            self._ledger.close(entry, state, intent.deadline, f"{entry.filled} of {intent.quantity} filled")
        for (run, bar), at in sorted(decision_times.items(), key=lambda item: item[1]):
            self._ledger.store.add(
                schema.decisions, at, run=run, bar=bar, strategy="", feed="", inputs="{}", weights=None,
                outcome=SOURCE, detail="rebuilt from the broker's orders",
            )  # fmt: skip


def _write_rest(
    ledger: Ledger, account: AccountState, positions: Sequence[Position], last_close: date, now: datetime,
    last_session: date,
) -> None:  # fmt: skip
    """Write what the account holds besides, the last prices, and the state from which the daemon goes on.

    last_close: session of the prices. last_session: last date with recorded corporate actions. The daemon records
    later ones after its first cash mark.
    """
    store = ledger.store
    at_broker = {position.symbol: position for position in positions}
    has_mark = min(now, datetime.combine(last_session, time.max, UTC))
    with store.write() as connection:
        for symbol in sorted({*at_broker, *ledger.positions}):
            position = at_broker.get(symbol)
            own_shares = ledger.positions.get(symbol, ZERO)
            external_shares = (position.quantity if position else ZERO) - own_shares
            if external_shares:
                values = {"symbol": symbol, "quantity": str(external_shares), "reason": SOURCE}
                add(connection, schema.foreign_positions, now, **values)
            if own_shares and position is not None and position.price is not None:
                values = {"symbol": symbol, "session": last_close.isoformat(), "price": str(position.price)}
                add(connection, schema.closes, now, **values)
        cash = {"cash": str(account.cash), "own_cash": str(ledger.cash), "foreign_cash": str(ledger.external_cash())}
        add(connection, schema.cash_marks, has_mark, **cash, reason=SOURCE)
        # Losses are measured from here: the highest equity so far is not known.
        add(connection, schema.risk_states, now, state=RiskState.ACTIVE.value, reason=SOURCE)
