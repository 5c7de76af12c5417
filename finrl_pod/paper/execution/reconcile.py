"""Reconciliation of the journal with the broker account: orders, fills, positions, cash and corporate actions.

Start-up is recovery: nothing is sent until journal and broker agree. Holdings of the account beyond the own
positions are external: recorded, reported and never traded. An unexplained difference stops all trading until an
operator acknowledges it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import ROUND_DOWN, Decimal

from finrl_pod.paper.domain import records
from finrl_pod.paper.domain.port import Broker
from finrl_pod.paper.execution.activities import SHARE_STEP, ZERO, activity_groups, book_activities
from finrl_pod.paper.execution.order_manager import OrderManager
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.ledger import Booking, Ledger
from finrl_pod.paper.journal.store import add, moment, stamp
from finrl_pod.paper.settings import PaperConfig

ATTEMPTS = 3
LOOKBACK = timedelta(days=10)  # an action may be announced or booked late
CASH_TOLERANCE = Decimal("1.00")  # regulatory fees and interest are cents
NOT_BOOKED = (records.ActionKind.MERGER, records.ActionKind.SPIN_OFF, records.ActionKind.OTHER)  # at their ex-dates
RELATIVE_CASH_TOLERANCE = Decimal("0.0005")  # of the account equity, if that is more
MISMATCH_ENTRY = "https://github.com/finrl-pod/finrl-pod/blob/main/docs/paper-runbook.md#mismatch"  # of alerts


@dataclass(frozen=True)
class Difference:
    """A disagreement of journal and broker. symbol: "" for cash. excess: broker minus journal."""

    symbol: str
    excess: Decimal
    message: str


@dataclass(frozen=True)
class CertainShares:
    """Own shares by symbol that are certainly in the account, and shares of the journal that are not."""

    shares: dict[str, Decimal]
    uncertain: dict[str, Decimal]


class Reconciler:
    """Compares the journal with the broker. While `differences` is not empty, nothing is traded."""

    def __init__(self, orders: OrderManager, config: PaperConfig) -> None:
        self._orders = orders
        self._config = config
        self.differences: tuple[Difference, ...] = ()
        self.external_orders: tuple[str, ...] = ()

    def initialise(self) -> None:
        """Set up a new journal: record the account holdings as external and skip its past fills."""
        ledger = self._orders.ledger
        now = self._orders.clock.now()
        if ledger.store.last(schema.cash_marks) is not None:
            return
        page = self._orders.broker.fills_since(None)
        account = self._orders.broker.account()
        positions = self._orders.broker.positions()
        with ledger.store.write() as connection:  # one transaction, so that an interrupted start double-counts nothing
            if page.cursor is not None:
                add(connection, schema.cursors, now, name="fills", value=page.cursor)
            for position in positions:
                values = {"symbol": position.symbol, "quantity": str(position.quantity)}
                add(connection, schema.foreign_positions, now, **values, reason="held at the first start")
            values = {"cash": str(account.cash), "own_cash": "0", "foreign_cash": "0"}
            add(connection, schema.cash_marks, now, **values, reason="first start")

    def certain_shares(self) -> CertainShares:
        """Own shares that may be sold although account and journal differ. Raises BrokerError.

        Of a symbol that differs these are at most the shares in the account less the external ones.
        """
        ledger = self._orders.ledger
        shares = {symbol: quantity for symbol, quantity in sorted(ledger.positions.items()) if quantity}
        differing = {difference.symbol for difference in self.differences} & set(shares)
        at_broker = {p.symbol: p.quantity for p in self._orders.broker.positions()} if differing else {}
        external_positions = ledger.external_positions()
        uncertain = {}
        for symbol in sorted(differing):
            own_at_broker = at_broker.get(symbol, ZERO) - max(external_positions.get(symbol, ZERO), ZERO)
            own_shares = shares.pop(symbol)
            certain = min(own_shares, max(own_at_broker, ZERO)) if own_shares > 0 else ZERO
            if certain:
                shares[symbol] = certain
            if own_shares != certain:
                uncertain[symbol] = own_shares - certain
        return CertainShares(shares, uncertain)

    def recover(self) -> tuple[Difference, ...]:
        """Look up orders with an unknown outcome, record new fills, and compare. Sends nothing.

        Raises BrokerError, and JournalError if the broker knows own orders that the journal does not.
        """
        self._orders.look_up_unknown()
        self._orders.refresh()
        return self.compare()

    def compare(self) -> tuple[Difference, ...]:
        """Compare positions and cash with the journal, after fills were recorded; records account activities first.

        A fill between two queries would look like a difference, so a disagreement is checked up to three times.
        """
        for attempt in range(ATTEMPTS):
            if attempt:
                self._orders.idle(self._orders.timing.poll)
                self._orders.refresh()
            self._record_activities()
            self.differences = self._compare_once()
            if not self.differences:
                break
        return self.differences

    def acknowledge(self) -> str:
        """Accept the account as it is and return a summary.

        Differences become external shares and a new cash mark. Own shares that are missing from the account are
        written off against the proceeds of external sales, and own orders unknown to the broker are given up.
        """
        ledger = self._orders.ledger
        now = self._orders.clock.now()
        for entry, order in ledger.live_orders():
            if order.broker_id and self._orders.broker.order(order.broker_id) is None:
                self._orders.give_up(entry, order)
        self.compare()
        account = self._orders.broker.account()
        write_offs = [b for d in self.differences if d.symbol and (b := self._write_off(d)) is not None]
        own_cash = ledger.cash + sum((booking.cash for booking in write_offs), ZERO)
        with ledger.store.write() as connection:
            for difference in self.differences:
                if difference.excess and difference.symbol:
                    values = {"symbol": difference.symbol, "quantity": str(difference.excess)}
                    add(connection, schema.foreign_positions, now, **values, reason="acknowledged")
            for booking in write_offs:
                ledger.write_booking(connection, booking, now)
            cash = {"cash": str(account.cash), "own_cash": str(own_cash), "foreign_cash": str(ledger.external_cash())}
            add(connection, schema.cash_marks, now, **cash, reason="acknowledged")
        for booking in write_offs:
            ledger.apply_booking(booking)
        count = len(self.differences)
        self.differences = ()
        return f"{count} differences acknowledged"

    def _record_activities(self) -> None:
        """Record what the broker booked without a trade since the journal was begun, and alert it."""
        ledger = self._orders.ledger
        now = self._orders.clock.now()
        activities = unrecorded_activities(ledger, self._orders.broker)
        if any(activity.quantity > 0 for activity in activities):
            prices = {p.symbol: p.price for p in self._orders.broker.positions() if p.price is not None}
            new_symbols = set(prices) - set(ledger.closes.prices)
            ledger.closes.record(now.date().isoformat(), {symbol: prices[symbol] for symbol in new_symbols}, now)
        for group in activity_groups(activities):
            account_cash = expected_cash(ledger) or ZERO
            for booking in book_activities(ledger, self._config, group, account_cash, now):
                is_exchange = booking.kind in (records.ActionKind.MERGER, records.ActionKind.SPIN_OFF)
                self._orders.alert("warning" if is_exchange else "info", "activity", booking.text())

    def record_cash_mark(self) -> None:
        """Write the account cash to the journal, after a comparison without differences."""
        ledger = self._orders.ledger
        account = self._orders.broker.account()
        cash = {"cash": str(account.cash), "own_cash": str(ledger.cash), "foreign_cash": str(ledger.external_cash())}
        ledger.store.add(schema.cash_marks, self._orders.clock.now(), **cash, reason="agreed")

    def _write_off(self, difference: Difference) -> Booking | None:
        """Return the write-off of the own shares that the account lacks once the difference is external, or None.

        The same number of external shares is added, so that own plus external shares stay as they are at the broker.
        """
        ledger = self._orders.ledger
        now = self._orders.clock.now()
        symbol = difference.symbol
        own = ledger.positions.get(symbol, ZERO)
        external = ledger.external_positions().get(symbol, ZERO) + difference.excess
        quantity = min(own, -external)
        if quantity <= 0:
            return None
        kind = records.SOLD_BY_OTHERS
        proceeds = ledger.external_proceeds(symbol, quantity)
        name = f"{kind} {symbol} {stamp(now)}"
        return Booking(name, kind, symbol, now.date(), -quantity, quantity, proceeds, detail="acknowledged")

    def _compare_once(self) -> tuple[Difference, ...]:
        broker = self._orders.broker
        orders = broker.orders("open")
        positions = broker.positions()
        account = broker.account()
        self._orders.check_recorded(orders)
        self.external_orders = tuple(f"{o.side} {o.quantity} {o.symbol}" for o in orders if not self._orders.is_own(o))
        return (*self._compare_positions(positions), *self._compare_cash(account))

    def _compare_positions(self, positions: tuple[records.Position, ...]) -> list[Difference]:
        ledger = self._orders.ledger
        at_broker = {p.symbol: p.quantity for p in positions}
        external_positions = ledger.external_positions()
        differences = []
        for symbol in sorted({*at_broker, *external_positions, *ledger.positions}):
            own = ledger.positions.get(symbol, ZERO)
            external = external_positions.get(symbol, ZERO)
            excess = at_broker.get(symbol, ZERO) - own - external
            if excess:
                message = (
                    f"{symbol}: the broker has {at_broker.get(symbol, ZERO)} shares, the journal {own} own and "
                    f"{external} external shares"
                )
                differences.append(Difference(symbol, excess, message))
            elif own > 0 > external:  # the totals agree, but the own shares were sold
                message = f"{symbol}: other clients sold {min(own, -external)} of {own} own shares"
                differences.append(Difference(symbol, excess, message))
        return differences

    def _compare_cash(self, account: records.AccountState) -> list[Difference]:
        expected = expected_cash(self._orders.ledger)
        excess = ZERO if expected is None else account.cash - expected
        if abs(excess) <= max(CASH_TOLERANCE, RELATIVE_CASH_TOLERANCE * abs(account.equity)):
            return []
        message = f"the broker has {account.cash:.2f} in cash, but the journal expects {expected:.2f}"
        return [Difference("", excess, message)]


def unrecorded_activities(ledger: Ledger, broker: Broker) -> list[records.AccountActivity]:
    """Return the activities since the first comparison that the journal does not have, oldest first."""
    marks = ledger.store.rows(schema.cash_marks)
    if not marks:
        return []
    known_ids = {row.action_id for row in ledger.store.rows(schema.corporate_actions)}
    start = max(moment(marks[0].at), moment(marks[-1].at) - LOOKBACK)
    return [activity for activity in broker.activities(start) if activity.id not in known_ids]


def expected_cash(ledger: Ledger) -> Decimal | None:
    """Return the cash of the account at the last agreement plus all flows since; None before the first comparison."""
    mark = ledger.store.last(schema.cash_marks)
    if mark is None:
        return None
    cash_flow = ledger.cash - Decimal(mark.own_cash) + ledger.external_cash() - Decimal(mark.foreign_cash)
    return Decimal(mark.cash) + cash_flow


def record_corporate_actions(
    broker: Broker, ledger: Ledger, symbols: Sequence[str], today: date, start: date, now: datetime,
    alert: Callable[[str, str, str], None], *, pays_dividends: bool,
) -> tuple[records.CorporateAction, ...]:  # fmt: skip
    """Query the actions of `symbols` up to `today` and record new ones. Returns all actions of the query.

    start: date of the journal start; earlier actions are ignored. pays_dividends: whether the account is credited
    with dividends. Alpaca paper accounts are not; a dividend is then recorded as unpaid.
    """
    actions = broker.corporate_actions(symbols, today - LOOKBACK, today)
    known_ids = {row.action_id for row in ledger.store.rows(schema.corporate_actions)}
    for action in sorted(actions, key=lambda a: (a.ex_date, a.id)):
        if action.id in known_ids or action.ex_date <= start:
            continue
        own_shares = ledger.positions.get(action.symbol, ZERO)
        if action.kind in NOT_BOOKED:
            is_unknown = action.kind is records.ActionKind.OTHER
            outcome = "not supported and not recorded" if is_unknown else "recorded as soon as the broker books it"
            message = f"{action.symbol}: {action.detail or 'a corporate action'} of {action.ex_date} is {outcome}"
            if own_shares and ledger.store.last(schema.alerts, schema.alerts.c.message == message) is None:
                alert("critical" if is_unknown else "warning", "corporate_action", message)
            continue
        booking = book_action(ledger, action, now, pays_dividends=pays_dividends)
        if own_shares:
            effect = f"{booking.own_change:+} shares" if booking.own_change else f"{booking.cash} in cash"
            if booking.unpaid:
                effect = f"{booking.unpaid} in cash, which the account does not pay"
            alert("info", "corporate_action", f"{action.symbol}: {action.kind.value} of {action.ex_date}, {effect}")
    return actions


def book_action(ledger: Ledger, action: records.CorporateAction, now: datetime, *, pays_dividends: bool) -> Booking:
    """Record a split or dividend on the shares that are held now."""
    own_shares = ledger.positions.get(action.symbol, ZERO)
    external_shares = ledger.external_positions().get(action.symbol, ZERO)
    own_change = external_change = cash = unpaid = ZERO
    if action.kind is records.ActionKind.CASH_DIVIDEND:
        dividend = own_shares * action.cash
        cash, unpaid = (dividend, ZERO) if pays_dividends else (ZERO, dividend)
    else:
        own_change = (own_shares * action.ratio).quantize(SHARE_STEP, ROUND_DOWN) - own_shares
        external_change = (external_shares * action.ratio).quantize(SHARE_STEP, ROUND_DOWN) - external_shares
    booking = Booking(
        action.id, action.kind, action.symbol, action.ex_date, own_change, external_change, cash, unpaid=unpaid,
        detail=action.detail,
    )  # fmt: skip
    ledger.book(booking, now, ledger.closes.adjusted_for(action))
    return booking
