"""Start-up is recovery: orders, then fills, then positions and cash must agree with the broker before anything is sent.

What the account holds beyond our own is foreign: recorded, reported, never touched. A difference that nothing explains
stops all trading until a person acknowledges it.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from finrl_pod.paper.execution.intents import is_ours
from finrl_pod.paper.execution.order_manager import Desk
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.book import Loss
from finrl_pod.paper.journal.store import add
from finrl_pod.paper.records import AccountState, Position

ZERO = Decimal(0)
CASH_TOLERANCE = Decimal("1.00")  # fees of regulators and interest come to cents
CASH_SHARE = Decimal("0.0005")  # of the account's equity, where that is more


@dataclass(frozen=True)
class Difference:
    """One thing in which journal and broker disagree. symbol: "" for cash. missing: what the broker has beyond ours."""

    symbol: str
    missing: Decimal
    sentence: str


class Reconciler:
    """Compares the journal with the broker. `differences` is what stands; while it is not empty nothing is traded."""

    def __init__(self, desk: Desk, run: str) -> None:
        self._desk = desk
        self._run = run
        self.differences: tuple[Difference, ...] = ()
        self.foreign_orders: tuple[str, ...] = ()

    def first_start(self) -> None:
        """A new journal: what the account holds now is foreign, and its past fills are none of ours."""
        book, now = self._desk.book, self._desk.clock.now()
        if book.store.last(schema.cash_marks) is not None:
            return
        page = self._desk.broker.fills_since(None)
        account, positions = self._desk.broker.account(), self._desk.broker.positions()
        with book.store.write() as connection:  # all of it, or a start that was cut short counts nothing twice
            if page.cursor is not None:
                add(connection, schema.cursors, now, name="fills", value=page.cursor)
            for position in positions:
                values = {"symbol": position.symbol, "quantity": str(position.quantity)}
                add(connection, schema.foreign_positions, now, **values, reason="held at the first start")
            values = {"cash": str(account.cash), "own_cash": "0", "foreign_cash": "0"}
            add(connection, schema.cash_marks, now, **values, reason="first start")

    def recover(self) -> tuple[Difference, ...]:
        """Look for every order in doubt, take in fills, compare. Nothing is sent. Raises BrokerError."""
        self._desk.find()
        self._desk.refresh()
        return self.compare()

    def compare(self) -> tuple[Difference, ...]:
        """Positions and cash against the journal, after fills were taken in. Two readings that agree are needed.

        A fill between our two questions would look like a difference: what does not agree at once is asked again.
        """
        for attempt in range(3):
            if attempt:
                self._desk.idle(self._desk.timing.poll)
                self._desk.refresh()
            self.differences = self._once()
            if not self.differences:
                break
        return self.differences

    def acknowledge(self) -> str:
        """Accept the account as it is: differences become foreign shares and a new mark of cash. Own shares that it
        does not have are given up, for the cash that others' sales of them brought.

        Orders of ours that the broker does not know any more are given up.
        """
        book, now = self._desk.book, self._desk.clock.now()
        for tracked, order in book.live_orders():
            if order.view.broker_id and self._desk.broker.order(order.view.broker_id) is None:
                self._desk.lose(tracked, order)
        self.compare()
        account = self._desk.broker.account()
        losses = [loss for d in self.differences if d.symbol and (loss := self._loss(d)) is not None]
        own_cash = book.cash + sum((loss.cash for loss in losses), ZERO)
        with book.store.write() as connection:
            for difference in self.differences:
                if difference.missing and difference.symbol:
                    values = {"symbol": difference.symbol, "quantity": str(difference.missing)}
                    add(connection, schema.foreign_positions, now, **values, reason="acknowledged")
            for loss in losses:
                book.write_loss(connection, loss, now)
            cash = {"cash": str(account.cash), "own_cash": str(own_cash), "foreign_cash": str(book.foreign_cash())}
            add(connection, schema.cash_marks, now, **cash, reason="acknowledged")
        for loss in losses:
            book.adopt_loss(loss)
        count, self.differences = len(self.differences), ()
        return f"{count} differences acknowledged"

    def mark(self) -> None:
        """Write the account's cash down, after a comparison that agreed."""
        book, account = self._desk.book, self._desk.broker.account()
        cash = {"cash": str(account.cash), "own_cash": str(book.cash), "foreign_cash": str(book.foreign_cash())}
        book.store.add(schema.cash_marks, self._desk.clock.now(), **cash, reason="agreed")

    def _loss(self, difference: Difference) -> Loss | None:
        """The own shares of a symbol that are gone once its difference is foreign, or None."""
        book, symbol = self._desk.book, difference.symbol
        own, other = book.positions.get(symbol, ZERO), book.foreign().get(symbol, ZERO) + difference.missing
        quantity = min(own, -other)
        return Loss(symbol, quantity, book.foreign_proceeds(symbol, quantity)) if quantity > 0 else None

    def _once(self) -> tuple[Difference, ...]:
        desk = self._desk
        orders, positions, account = desk.broker.orders("open"), desk.broker.positions(), desk.broker.account()
        known = desk.book.used_names() if orders else set()
        lost = [o for o in orders if is_ours(o.client_order_id, self._run) and o.client_order_id not in known]
        self.foreign_orders = tuple(
            f"{o.side} {o.quantity} {o.symbol}" for o in orders if not is_ours(o.client_order_id, self._run)
        )
        found = [
            Difference(
                "", ZERO, f"order {o.client_order_id} carries our name and is not in the journal: is this an old copy?"
            )
            for o in lost
        ]
        return (*found, *self._positions(positions), *self._cash(account))

    def _positions(self, positions: tuple[Position, ...]) -> list[Difference]:
        book = self._desk.book
        at_broker = {p.symbol: p.quantity for p in positions}
        foreign = book.foreign()
        found = []
        for symbol in sorted({*at_broker, *foreign, *book.positions}):
            own, other = book.positions.get(symbol, ZERO), foreign.get(symbol, ZERO)
            missing = at_broker.get(symbol, ZERO) - own - other
            if missing:
                sentence = (
                    f"{symbol}: the broker has {at_broker.get(symbol, ZERO)} shares, the journal {own} own and {other} "
                    "foreign ones"
                )
                found.append(Difference(symbol, missing, sentence))
            elif own > 0 > other:  # the sum agrees, but what we would sell is not there
                sentence = f"{symbol}: others have sold {min(own, -other)} of our {own} shares"
                found.append(Difference(symbol, missing, sentence))
        return found

    def _cash(self, account: AccountState) -> list[Difference]:
        book = self._desk.book
        mark = book.store.last(schema.cash_marks)
        if mark is None:
            return []
        moved = book.cash - Decimal(mark.own_cash) + book.foreign_cash() - Decimal(mark.foreign_cash)
        expected = Decimal(mark.cash) + moved
        missing = account.cash - expected
        if abs(missing) <= max(CASH_TOLERANCE, CASH_SHARE * abs(account.equity)):
            return []
        return [
            Difference(
                "", missing, f"the broker has {account.cash:.2f} in cash, {expected:.2f} follows from the journal"
            )
        ]
