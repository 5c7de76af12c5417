"""What commands do. Each is answered once, in the journal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

from finrl_pod.errors import BrokerError
from finrl_pod.paper.execution.intents import Intent
from finrl_pod.paper.execution.order_manager import Desk
from finrl_pod.paper.execution.order_state import OrderState
from finrl_pod.paper.execution.reconcile import Reconciler
from finrl_pod.paper.execution.risk import Risk, RiskState
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import Answer, Command, CommandName, answer, answer_in, pending
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.records import OrderType, Side, TimeInForce
from finrl_pod.paper.runtime.schedule import DAY_END, MARGIN, Calendar

if TYPE_CHECKING:
    from finrl_pod.paper.brokers.port import Broker, Clock


class Stoppable(Protocol):
    """What a command can end."""

    def stop(self) -> None: ...


class Control:
    """Carries commands out, one after the other, in the daemon's thread."""

    def __init__(self, desk: Desk, risk: Risk, reconciler: Reconciler, run: str, cancel_seconds: float) -> None:
        self._desk = desk
        self._risk = risk
        self._reconciler = reconciler
        self._run = run
        self._cancel_seconds = cancel_seconds

    def serve(self, command: Command, daemon: Stoppable) -> None:
        """Carry a command out and answer it. Raises BrokerError when it could not be: it stays pending."""
        if command.name is CommandName.FLATTEN:
            self._flatten(command)
            return
        actions: dict[CommandName, Callable[[], Answer]] = {
            CommandName.HALT: self._halt,
            CommandName.RESUME: self._resume,
            CommandName.RECONCILE: self._reconcile,
            CommandName.ACKNOWLEDGE: self._acknowledge,
            CommandName.STOP: lambda: self._stop(daemon),
        }
        given = actions[command.name]()
        answer(self._desk.book.store, command, given, self._desk.clock.now())

    def halt_now(self) -> None:
        """Write HALTED at once; the cancels follow when the loop is free, and then the command is answered."""
        self._risk.tighten(RiskState.HALTED, "by command", self._desk.clock.now())

    def _halt(self) -> Answer:
        self._risk.tighten(RiskState.HALTED, "by command", self._desk.clock.now())
        if self._desk.cancel_all(self._cancel_seconds):
            return Answer("halted, no own order is live")
        return Answer("halted, but own orders are still live: their cancels are not confirmed", refused=True)

    def _resume(self) -> Answer:
        if self._reconciler.differences:
            words = "not resumed: the account does not agree with the journal, acknowledge that first"
            return Answer(words, refused=True)
        if self._risk.state is RiskState.ACTIVE:
            return Answer("was active already")
        self._risk.set(RiskState.ACTIVE, "by command", self._desk.clock.now())
        return Answer("active")

    def _reconcile(self) -> Answer:
        self._desk.refresh()
        found = self._reconciler.compare()
        if found:
            return Answer("; ".join(d.sentence for d in found), refused=True)
        return Answer("journal and broker agree")

    def _acknowledge(self) -> Answer:
        self._desk.refresh()
        text, store = self._reconciler.acknowledge(), self._desk.book.store
        halted = {row.symbol: row.halted for row in store.rows(schema.symbol_halts)}
        freed = [symbol for symbol, is_halted in halted.items() if is_halted]
        for symbol in freed:
            store.add(schema.symbol_halts, self._desk.clock.now(), symbol=symbol, halted=0, reason="acknowledged")
        return Answer(f"{text}, {len(freed)} symbols freed")

    def _stop(self, daemon: Stoppable) -> Answer:
        daemon.stop()
        return Answer("stopping")

    def _may_not_flatten(self) -> str | None:
        """Cancel own orders; why own shares cannot be sold now, or None."""
        if self._reconciler.differences:
            return "not flattened: the account does not agree with the journal, acknowledge that first"
        if not self._desk.cancel_all(self._cancel_seconds):
            return "not flattened: own orders are still live, their cancels are not confirmed"
        return None

    def _flatten(self, command: Command) -> None:
        """Sell own shares alone, by DAY orders; from then on only reducing orders are sent until resumed.

        State, intents and answer are written together: a command that was cut short is served again from its start.
        """
        refusal = self._may_not_flatten()
        desk, now = self._desk, self._desk.clock.now()
        if refusal is not None:
            answer(desk.book.store, command, Answer(refusal, refused=True), now)
            return
        days = Calendar().sessions(now.date() - timedelta(days=1), now.date() + timedelta(days=14))
        session = next(s for s in days if s.close - DAY_END - MARGIN > now)
        terms = (TimeInForce.DAY, OrderType.MARKET, None, Decimal(1), now, session.close - DAY_END, session.close)
        intents = [
            Intent(
                self._run,
                f"flatten-{command.id}",
                symbol,
                Side.SELL if shares > 0 else Side.BUY,
                abs(shares),
                *terms,
            )
            for symbol, shares in sorted(desk.book.positions.items())
            if shares
        ]
        with desk.book.store.write() as connection:
            self._risk.set_in(connection, RiskState.REDUCING, "flattened by command", now)
            planned = desk.book.plan(connection, now, intents)
            answer_in(connection, command, Answer(f"{len(intents)} positions are being sold"), now)
        desk.book.adopt(planned)


def halt_is_waiting(store: Store) -> bool:
    """Whether a halt has been given that the loop has not answered yet."""
    return any(command.name is CommandName.HALT for command in pending(store))


def obey_halt(store: Store, risk: Risk, broker: Broker, clock: Clock) -> None:
    """What a second thread does at a halt, whatever the loop is busy with: write HALTED, cancel what is live.

    The loop finds the cancels' outcome at its next refresh, cancels again where need be, and answers the command.
    """
    risk.tighten(RiskState.HALTED, "by command", clock.now())
    latest: dict[int, tuple[str, str]] = {}
    for row in store.rows(schema.order_events):
        latest[row.order_id] = (row.state, row.broker_id)
    for state, broker_id in latest.values():
        if state == OrderState.WORKING.value and broker_id:
            with contextlib.suppress(BrokerError):  # the loop cancels it again
                broker.cancel(broker_id)
