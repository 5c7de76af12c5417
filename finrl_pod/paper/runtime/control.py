"""Execution of operator commands; each gets one result in the journal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

from finrl_pod.errors import BrokerError
from finrl_pod.paper.domain.intents import FLATTEN, Intent
from finrl_pod.paper.domain.order_state import OrderState
from finrl_pod.paper.domain.records import OrderType, Side, TimeInForce
from finrl_pod.paper.domain.schedule import DAY_ORDER_CUTOFF, SEND_MARGIN, Calendar
from finrl_pod.paper.execution.order_manager import OrderManager
from finrl_pod.paper.execution.reconcile import Reconciler
from finrl_pod.paper.execution.risk import RiskManager
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import (
    Command,
    CommandName,
    CommandResult,
    RiskState,
    add_result,
    pending_commands,
    record_result,
    tighten_risk_state,
)
from finrl_pod.paper.journal.ledger import Ledger
from finrl_pod.paper.journal.store import Store, add
from finrl_pod.paper.settings import PaperConfig

if TYPE_CHECKING:
    from finrl_pod.paper.domain.port import Broker, Clock

SHUTDOWN_SECONDS = 30.0  # for cancels at shutdown


class CommandHandler:
    """Executes commands one after the other, in the daemon thread."""

    def __init__(
        self, orders: OrderManager, risk: RiskManager, reconciler: Reconciler, config: PaperConfig, calendar: Calendar
    ) -> None:
        self._orders = orders
        self._risk = risk
        self._reconciler = reconciler
        self._config = config
        self._calendar = calendar

    def execute(self, command: Command, stop: Callable[[], None]) -> None:
        """Execute a command and record its result. Raises BrokerError if it could not be; it then stays pending."""
        if command.name is CommandName.FLATTEN:
            self._flatten(command)
            return
        if command.name is CommandName.STOP:
            stop()
            result = CommandResult("stopping")
        else:
            actions: dict[CommandName, Callable[[], CommandResult]] = {
                CommandName.HALT: self._halt,
                CommandName.RESUME: self._resume,
                CommandName.RECONCILE: self._reconcile,
                CommandName.ACKNOWLEDGE: self._acknowledge,
            }
            result = actions[command.name]()
        record_result(self._orders.ledger.store, command, result, self._orders.clock.now())

    def set_halted(self) -> None:
        """Set the risk state to HALTED immediately; the loop sends cancels and records the result later."""
        self._risk.tighten(RiskState.HALTED, "by command", self._orders.clock.now())

    def _halt(self) -> CommandResult:
        self.set_halted()
        if self._orders.cancel_all(SHUTDOWN_SECONDS):
            return CommandResult("halted, no own order is live")
        return CommandResult("halted, but own orders are still live: their cancels are not confirmed", refused=True)

    def _resume(self) -> CommandResult:
        if self._reconciler.differences:
            message = "not resumed: account and journal differ; acknowledge the differences first"
            return CommandResult(message, refused=True)
        if self._risk.state is RiskState.ACTIVE:
            return CommandResult("was already active")
        self._risk.set(RiskState.ACTIVE, "by command", self._orders.clock.now())
        return CommandResult("active")

    def _reconcile(self) -> CommandResult:
        self._orders.refresh()
        differences = self._reconciler.compare()
        if differences:
            return CommandResult("; ".join(d.message for d in differences), refused=True)
        return CommandResult("journal and broker agree")

    def _acknowledge(self) -> CommandResult:
        self._orders.refresh()
        summary = self._reconciler.acknowledge()
        store = self._orders.ledger.store
        is_halted = {row.symbol: row.halted for row in store.rows(schema.symbol_halts)}
        halted_symbols = [symbol for symbol in is_halted if is_halted[symbol]]
        for symbol in halted_symbols:
            store.add(schema.symbol_halts, self._orders.clock.now(), symbol=symbol, halted=0, reason="acknowledged")
        return CommandResult(f"{summary}, {len(halted_symbols)} symbol halts lifted")

    def _flatten(self, command: Command) -> None:
        """Sell own shares by DAY orders; afterwards only reducing orders are sent until a resume.

        While account and journal differ, only shares that are certainly own ones are sold.
        State, intents and result are written in one transaction, so that an interrupted command starts over.
        """
        is_cancelled = self._orders.cancel_all(SHUTDOWN_SECONDS)
        ledger = self._orders.ledger
        now = self._orders.clock.now()
        if not is_cancelled:
            message = "not flattened: own orders are still live, their cancels are not confirmed"
            record_result(ledger.store, command, CommandResult(message, refused=True), now)
            return
        certain = self._reconciler.certain_shares()
        intents = flatten_intents(ledger, certain.shares, self._config, self._calendar, str(command.id), now)
        message = f"{len(certain.shares)} positions are being sold"
        for symbol, shares in certain.uncertain.items():
            message += f"; {shares} shares of {symbol} are left, on which account and journal differ"
        with ledger.store.write() as connection:
            values = {"state": RiskState.REDUCING.value, "reason": "flattened by command"}
            add(connection, schema.risk_states, now, **values)
            entries = ledger.add_intents(connection, now, intents)
            add_result(connection, command, CommandResult(message), now)
        ledger.track(entries)


def halt_pending(store: Store) -> bool:
    """Return True if a halt was submitted that the main loop has not executed yet."""
    return any(command.name is CommandName.HALT for command in pending_commands(store))


def apply_halt(store: Store, broker: Broker, clock: Clock) -> None:
    """Set the risk state to HALTED and cancel live orders, from a second thread while the main loop is busy.

    The main loop reads the outcome of the cancels at its next refresh, repeats them if needed, and records the result.
    """
    tighten_risk_state(store, RiskState.HALTED, "by command", clock.now())
    newest_events = {row.order_id: row for row in store.rows(schema.order_events)}
    for event in newest_events.values():
        if event.state == OrderState.WORKING and event.broker_id:
            with contextlib.suppress(BrokerError):  # the main loop cancels it again
                broker.cancel(event.broker_id)


def flatten_intents(
    ledger: Ledger, shares: Mapping[str, Decimal], config: PaperConfig, calendar: Calendar, name: str, now: datetime
) -> list[Intent]:
    """Return DAY orders (GTC where there are none) that sell `shares` by symbol in the current or next session.

    config: config of the account; shares of no strategy get its name. name: name of the flatten, unique in the journal.
    """
    days = calendar.sessions(now.date() - timedelta(days=1), now.date() + timedelta(days=14))
    session = next(s for s in days if s.close - DAY_ORDER_CUTOFF - SEND_MARGIN > now)
    deadline = session.close - DAY_ORDER_CUTOFF
    time_in_force = TimeInForce.GTC if config.broker.continuous else TimeInForce.DAY
    terms = (time_in_force, OrderType.MARKET, None, Decimal(1), now, deadline, session.close)
    return [
        Intent(run, f"{FLATTEN}-{name}", symbol, Side.SELL if quantity > 0 else Side.BUY, abs(quantity), *terms)
        for symbol, total in sorted(shares.items())
        for run, quantity in _shares_by_run(ledger, config.name, symbol, total)
    ]


def _shares_by_run(ledger: Ledger, account_run: str, symbol: str, total: Decimal) -> list[tuple[str, Decimal]]:
    """Split own shares over the runs that hold them, at most what each holds; the rest is the account's."""
    shares_by_run = []
    remaining = total
    for run, book in sorted(ledger.books.items()):
        shares = max(min(book.positions.get(symbol, Decimal(0)), remaining), Decimal(0))
        if shares and run != account_run:
            shares_by_run.append((run, shares))
            remaining -= shares
    return [*shares_by_run, (account_run, remaining)] if remaining else shares_by_run
