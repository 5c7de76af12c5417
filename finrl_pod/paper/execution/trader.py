"""The trader of one strategy: takes its decision of each trading cycle and plans its orders.

An account has one, or several that share its cash; `AccountTrader` runs them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_DOWN, Decimal
from typing import Protocol

from sqlalchemy import Connection

from finrl_pod.errors import FinrlPodError
from finrl_pod.evaluate.active_management import ActiveBand
from finrl_pod.market.orders import FRACTION, WHOLE, distance_to_target, missing_shares
from finrl_pod.market.protocols import MandatedStrategy
from finrl_pod.paper.domain.intents import Intent
from finrl_pod.paper.domain.port import Broker, Clock, DataFeed
from finrl_pod.paper.domain.records import Asset, CorporateAction, Side
from finrl_pod.paper.domain.schedule import Calendar, TradingCycle
from finrl_pod.paper.execution import stop_rule
from finrl_pod.paper.execution.decision import Decision, Holdings, StrategyFailed, decide, strategy_failures
from finrl_pod.paper.execution.mandate_limits import risk_limits
from finrl_pod.paper.execution.order_manager import Alert, OrderManager
from finrl_pod.paper.execution.order_plan import OrderPlan, limits_note, plan_orders
from finrl_pod.paper.execution.price_check import CheckedPrices
from finrl_pod.paper.execution.reconcile import Reconciler
from finrl_pod.paper.execution.risk import Exposure, RiskManager
from finrl_pod.paper.execution.sizing import sizing_rules
from finrl_pod.paper.execution.stop_rule import advance
from finrl_pod.paper.execution.stream_monitor import StreamMonitor
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.decision_state import (
    BaseAccount,
    DecisionState,
    KeptTarget,
    TargetState,
    new_target,
    open_target,
    was_flattened,
    write_target,
)
from finrl_pod.paper.journal.ledger import Book, Ledger, LedgerEntry, market_value
from finrl_pod.paper.journal.store import add
from finrl_pod.paper.settings import PaperConfig
from finrl_pod.protocols import Strategy

ZERO = Decimal(0)


@dataclass(frozen=True, eq=False)
class LoadedStrategy:
    """A strategy with a hash of all files that define it.

    base: base of the mandate for the active return; None without one. band: range of the active return in its
    backtest, None if unknown. warning: why a newer one could not be loaded, empty if there is none.
    """

    strategy: Strategy
    sha256: str
    detail: str = ""
    base: MandatedStrategy | None = None
    band: ActiveBand | None = None
    warning: str = ""


class StrategySource(Protocol):
    """Provides the strategy before each decision, so that a newer promoted run can replace it between decisions."""

    def current(self) -> LoadedStrategy:
        """Return the strategy to trade. Raises FinrlPodError if there is none."""


@dataclass(frozen=True)
class TradingComponents:
    """The collaborators of the traders and the daemon. sources: one for each of `allocations(config)`.

    calendar: sessions as the broker reported them last.
    """

    config: PaperConfig
    broker: Broker
    feed: DataFeed
    sources: Sequence[StrategySource]
    ledger: Ledger
    risk: RiskManager
    orders: OrderManager
    reconciler: Reconciler
    stream: StreamMonitor
    clock: Clock
    alert: Alert
    calendar: Calendar


@dataclass(frozen=True)
class CycleInputs:
    """What all strategies of an account get in a cycle: checked prices, assets, halted symbols, corporate actions.

    buying_power: amount for purchases.
    """

    prices: CheckedPrices
    assets: Mapping[str, Asset]
    halt_reasons: Mapping[str, str]
    actions: Sequence[CorporateAction]
    buying_power: Decimal


class StrategyTrader:
    """Takes one decision of a strategy per trading cycle and plans its orders.

    book: the strategy's own shares and cash flows. label: its name at the start of alerts, empty if it is the only one.
    """

    def __init__(
        self, components: TradingComponents, config: PaperConfig, source: StrategySource, book: Book | Ledger,
        label: str = "",
    ) -> None:  # fmt: skip
        self.config = config
        self.label = label
        self._c = components
        self._source = source
        self._book = book
        self._rules = sizing_rules(config)
        self._limits = risk_limits(config, source.current().strategy)
        self._calendar = components.calendar
        self._last_decided_bar = ""  # the last bar known to have a decision in the journal

    # ------------------------------------------------------------------ own part of the account

    @property
    def cash(self) -> Decimal:
        """Own cash: the allocated capital plus all cash flows since."""
        return Decimal(str(self.config.capital)) + self._book.cash

    @property
    def positions(self) -> Mapping[str, Decimal]:
        """Own shares by symbol."""
        return self._book.positions

    def equity(self) -> Decimal:
        """Return own equity at the last known closes; 0 for a symbol that never had one."""
        return self.cash + market_value(self._book.positions, self._c.ledger.closes.prices)

    def exposure(self, excluded_entry: LedgerEntry, account: Mapping[str, Decimal] | None) -> Exposure:
        """Return what the strategy holds and trades without the live order of an intent. account: shares there."""
        bar = excluded_entry.intent.bar
        live: dict[str, Decimal] = defaultdict(Decimal)
        turnover = ZERO
        for entry in self._open_intents():
            intent = entry.intent
            order = None if entry is excluded_entry else entry.live
            if order is not None:
                live[intent.symbol] += intent.side.sign * order.remaining
            if intent.bar == bar:
                remaining = order.remaining if order is not None else ZERO
                turnover += (entry.filled + remaining) * intent.reference_price
        ledger = self._c.ledger
        turnover += ledger.closed_intents_value(self.config.name, bar)
        prices = ledger.closes.prices
        return Exposure(self.equity(), self._book.positions, live, prices, turnover, account, self._limits)

    def affordable(self, entry: LedgerEntry) -> Decimal:
        """Return the shares of a purchase that own cash and live sales pay for, at the decision prices."""
        funds = self.cash
        for other in self._open_intents():
            order = other.live
            if order is not None:
                value = order.remaining * other.intent.reference_price
                cost_factor = 1 + self._rules.cost_rate * other.intent.side.sign
                funds -= other.intent.side.sign * value * cost_factor
        price = entry.intent.reference_price * (1 + self._rules.cost_rate)
        step = FRACTION if self._rules.fractional else WHOLE
        affordable = (max(funds, ZERO) / price).quantize(step, ROUND_DOWN)
        return min(affordable, entry.intent.quantity)

    def _open_intents(self) -> list[LedgerEntry]:
        return [t for t in self._c.ledger.open.values() if t.intent.run == self.config.name]

    # ------------------------------------------------------------------ deciding

    def has_decided(self, cycle: TradingCycle) -> bool:
        """Return True if the journal has a decision on the cycle bar."""
        bar = cycle.id
        if self._last_decided_bar != bar:
            is_own = schema.decisions.c.run == self.config.name
            if self._c.ledger.store.last(schema.decisions, is_own, schema.decisions.c.bar == bar) is None:
                return False
            self._last_decided_bar = bar
        return True

    def take_decision(self, cycle: TradingCycle, inputs: CycleInputs) -> None:
        """Decide and write decision, target and intents in one transaction; a failed strategy is recorded as such."""
        c = self._c
        config = self.config
        ledger = self._c.ledger
        try:
            loaded_strategy = self._strategy()
            holdings = Holdings(self._book.positions, self.cash, ledger.closes.prices)
            saved_state = self._saved_state()
            decision = decide(loaded_strategy.strategy, inputs.prices, holdings, state=saved_state.strategy)
        except (StrategyFailed, FinrlPodError) as error:
            self.skip(cycle, "failed", str(error))
            return
        rules = sizing_rules(config, self._limits)
        previous_target = self._kept_target(cycle, inputs, holdings, decision)
        targets = None
        if previous_target is not None and previous_target.state is TargetState.OPEN:
            targets = previous_target.target.by_symbol(decision.prices.panel.symbols)
        plan = plan_orders(config, decision, cycle, holdings, inputs.assets, rules, targets, inputs.buying_power)
        self._alert_cut_weights(limits_note(decision, rules))
        intents, skip_reasons = self._without_blocked(plan, inputs.halt_reasons)
        # The active return is measured between closes.
        base = None if cycle.time is not None else self._base_account(loaded_strategy, inputs.prices, saved_state.base)
        state = DecisionState(decision.state, base)
        outcome = "orders" if decision.weights is not None else "hold" if targets is None else "target"
        with ledger.store.write() as connection:
            self._write_decision(
                connection, cycle, loaded_strategy.strategy.name, decision, outcome, skip_reasons, state
            )
            self._write_targets(connection, cycle, decision, plan, previous_target)
            entries = ledger.add_intents(connection, c.clock.now(), intents)
        ledger.track(entries)
        if previous_target is not None and previous_target.state is TargetState.MISSED:
            message = (
                f"the target of {previous_target.target.bar} was not reached in time: "
                f"{previous_target.distance:.2%} of equity is missing"
            )
            self.alert("warning", "target", message)
        for symbol, reason in skip_reasons.items():
            self.alert("warning", "symbol", f"{symbol} is not traded: {reason}")
        previous = None if saved_state.base is None else saved_state.base.active_return
        if base is not None and (warning := stop_rule.warning(base.active_return, previous)):
            self.alert("warning", stop_rule.ALERT, warning)

    def skip(self, cycle: TradingCycle, outcome: str, reason: str) -> None:
        """Record that a cycle has no orders, and why."""
        c = self._c
        config = self.config
        c.ledger.store.add(
            schema.decisions, c.clock.now(), run=config.name, bar=cycle.id,
            strategy=config.strategy or config.run or config.champion, feed=c.feed.name, inputs="{}",
            weights=None, outcome=outcome, detail=reason,
        )  # fmt: skip
        self.alert("critical" if outcome != "missed" else "warning", outcome, f"decision on {cycle.id}: {reason}")

    def alert(self, level: str, kind: str, message: str) -> None:
        """Raise an alert about this strategy."""
        self._c.alert(level, kind, f"{self.label}: {message}" if self.label else message)

    def _kept_target(
        self, cycle: TradingCycle, inputs: CycleInputs, holdings: Holdings, decision: Decision
    ) -> _KeptState | None:
        """Return the open target of an earlier decision with what becomes of it in this cycle; None without one."""
        store = self._c.ledger.store
        run = self.config.name
        open_row = open_target(store, run)
        if open_row is None:
            return None
        target = open_row[0].adjusted(inputs.actions, open_row[1], cycle.session.date)
        symbols = decision.prices.panel.symbols
        prices = [holdings.prices.get(symbol, WHOLE) for symbol in symbols]
        shares = [holdings.shares.get(symbol, ZERO) if symbol in holdings.prices else ZERO for symbol in symbols]
        missing = missing_shares(target.by_symbol(symbols), holdings.cash, shares, prices, self._rules)
        distance = distance_to_target(missing, self.equity(), prices)
        if was_flattened(store, run):
            state = TargetState.DROPPED
        elif not distance:
            state = TargetState.REACHED
        elif decision.weights is not None:
            state = TargetState.REPLACED
        else:
            state = TargetState.OPEN if cycle.bar <= target.until else TargetState.MISSED
        return _KeptState(target, state, distance)

    def _write_targets(
        self, connection: Connection, cycle: TradingCycle, decision: Decision, plan: OrderPlan,
        previous_target: _KeptState | None,
    ) -> None:  # fmt: skip
        states = [previous_target] if previous_target is not None else []
        if decision.weights is not None:
            symbols = decision.prices.panel.symbols
            sessions = self.config.orders.target_sessions
            target = new_target(self._calendar, cycle.bar, sessions, symbols, plan.targets)
            state = TargetState.OPEN if plan.distance else TargetState.REACHED
            states.append(_KeptState(target, state, plan.distance))
        now = self._c.clock.now()
        for row in states:
            write_target(connection, now, self.config.name, cycle, row.target, row.state, row.distance)

    def _without_blocked(self, plan: OrderPlan, halt_reasons: Mapping[str, str]) -> tuple[list[Intent], dict[str, str]]:
        """Leave out purchases of halted symbols, and skip them with the reason."""
        intents = [i for i in plan.intents if i.symbol not in halt_reasons or i.side is Side.SELL]
        block_reasons = {
            i.symbol: f"not bought while halted: {halt_reasons[i.symbol]}" for i in plan.intents if i not in intents
        }
        return intents, {**plan.skip_reasons, **block_reasons}

    def _alert_cut_weights(self, note: str) -> None:
        """Alert once in the life of a journal that the limits cut target weights, again if the limits change."""
        alerts = schema.alerts.c
        text = f"{self.label}: {note}" if self.label else note
        if note and self._c.ledger.store.last(schema.alerts, alerts.kind == "limits", alerts.message == text) is None:
            self.alert("warning", "limits", note)

    def _strategy(self) -> LoadedStrategy:
        """Return the current strategy and set its risk limits; a change is recorded in the journal.

        Raises FinrlPodError if there is none, or its mandate contradicts the config.
        """
        store = self._c.ledger.store
        loaded_strategy = self._source.current()
        rows = schema.strategies.c
        self._limits = risk_limits(self.config, loaded_strategy.strategy)
        previous = store.last(schema.strategies, rows.run == self.config.name)
        if previous is None or previous.sha256 != loaded_strategy.sha256:
            name = loaded_strategy.strategy.name
            values = {"name": name, "sha256": loaded_strategy.sha256, "detail": loaded_strategy.detail}
            store.add(schema.strategies, self._c.clock.now(), **values, run=self.config.name)
            if previous is not None:
                self.alert("info", "strategy", f"strategy is now {name}: {loaded_strategy.detail}")
        if loaded_strategy.warning:
            self.alert("warning", "registry", loaded_strategy.warning)
        return loaded_strategy

    def _saved_state(self) -> DecisionState:
        """Return the virtual holdings of strategy and base after the last decision that had some; empty without any."""
        decisions = schema.decisions.c
        row = self._c.ledger.store.last(
            schema.decisions, decisions.run == self.config.name, decisions.state.is_not(None)
        )
        return DecisionState() if row is None else DecisionState.decode(row.state)

    def _base_account(
        self, loaded_strategy: LoadedStrategy, prices: CheckedPrices, account: BaseAccount | None
    ) -> BaseAccount | None:
        """Return the base account after this decision, with the active return over it; None if it has no base."""
        c = self._c
        config = self.config
        if loaded_strategy.base is None:
            return None
        try:
            with strategy_failures("the base"):
                base = advance(
                    loaded_strategy.base, account, prices.panel, config.orders.cash_buffer, config.schedule.mode,
                    float(self._rules.cost_rate),
                )  # fmt: skip
        except FinrlPodError as error:  # must not stop the trading
            self.alert("warning", stop_rule.ALERT, f"the active return is unknown: {error}")
            return None
        marks = schema.strategy_equity if self.label else schema.equity
        active_return = stop_rule.measure(c.ledger.store, config.name, base, self.equity(), loaded_strategy.band, marks)
        return replace(base, active_return=active_return)

    def _write_decision(
        self, connection: Connection, cycle: TradingCycle, strategy: str, decision: Decision, outcome: str,
        skip_reasons: Mapping[str, str], state: DecisionState,
    ) -> None:  # fmt: skip
        weights = None
        if decision.weights is not None:
            pairs = zip(decision.prices.panel.symbols, decision.weights.tolist(), strict=True)
            weights = json.dumps(dict(pairs), sort_keys=True)
        add(
            connection, schema.decisions, self._c.clock.now(), run=self.config.name, bar=cycle.id,
            strategy=strategy, feed=decision.feed, inputs=decision.inputs, weights=weights, outcome=outcome,
            detail=json.dumps(dict(skip_reasons), sort_keys=True),
            state=state.encode(),
        )  # fmt: skip


@dataclass(frozen=True)
class _KeptState:
    """The target of an earlier decision, its state in this cycle, and the distance to it as a share of equity."""

    target: KeptTarget
    state: TargetState
    distance: Decimal
