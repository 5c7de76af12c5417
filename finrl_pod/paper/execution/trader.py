"""The trader: takes the decision of each trading cycle and sends its orders.

A cycle records corporate actions, reconciles, checks prices, runs the strategy, plans order intents and sends them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal
from typing import Any, Protocol

from sqlalchemy import Connection

from finrl_pod.errors import FinrlPodError
from finrl_pod.evaluate.stop_rule import ActiveBand
from finrl_pod.market.orders import FRACTION, WHOLE
from finrl_pod.paper.brokers.port import BarTable, Broker, Clock, DataFeed
from finrl_pod.paper.execution import stop_rule
from finrl_pod.paper.execution.base_account import advance
from finrl_pod.paper.execution.corporate_actions import record_corporate_actions
from finrl_pod.paper.execution.decision import Decision, Holdings, StrategyFailed, decide, fetch_checked_prices
from finrl_pod.paper.execution.mandate_limits import risk_limits
from finrl_pod.paper.execution.order_manager import Alert, OrderManager
from finrl_pod.paper.execution.order_plan import limits_note, plan_orders, sizing_rules
from finrl_pod.paper.execution.price_check import CheckedPrices
from finrl_pod.paper.execution.reconcile import Reconciler
from finrl_pod.paper.execution.risk import Exposure, RiskManager, RiskState
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.ledger import Ledger, TrackedIntent
from finrl_pod.paper.journal.store import add, moment
from finrl_pod.paper.records import CorporateAction, Side
from finrl_pod.paper.runtime.schedule import TradingCycle
from finrl_pod.paper.runtime.stream_monitor import StreamMonitor
from finrl_pod.paper.settings import PaperConfig
from finrl_pod.protocols import MandatedStrategy, Strategy

ZERO = Decimal(0)


@dataclass(frozen=True, eq=False)
class LoadedStrategy:
    """A strategy with a hash of all files that define it.

    base: of its mandate, which the active return is measured against; None without one. band: that the active return
    stayed in in its backtest, None if unknown. warning: why a newer one could not be loaded, empty if there is none.
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
        ...


@dataclass(frozen=True)
class TradingComponents:
    """The collaborators of a trader and its daemon."""

    config: PaperConfig
    broker: Broker
    feed: DataFeed
    source: StrategySource
    ledger: Ledger
    risk: RiskManager
    orders: OrderManager
    reconciler: Reconciler
    stream: StreamMonitor
    clock: Clock
    alert: Alert


class Trader:
    """Takes one decision per trading cycle and sends its orders, again until the outcome of each is known."""

    def __init__(self, components: TradingComponents) -> None:
        self._c = components
        self._rules = sizing_rules(components.config)
        self._decided = ""  # the last bar known to have a decision in the journal
        self._alerted_problems: tuple[str, dict[str, str]] = ("", {})  # bar, and its price problems by symbol
        self._account: dict[str, Decimal] | None = None  # shares at the broker when sales were last due

    # ------------------------------------------------------------------ own account

    @property
    def cash(self) -> Decimal:
        """Own cash: the allocated capital plus all cash flows since."""
        return Decimal(str(self._c.config.capital)) + self._c.ledger.cash

    @property
    def positions(self) -> Mapping[str, Decimal]:
        """Own shares by symbol."""
        return self._c.ledger.positions

    def equity(self) -> Decimal:
        """Return own equity at the last known closes, including symbols no longer in the config.

        A symbol that never had a close counts as 0.
        """
        held, prices = self._c.ledger.positions.items(), self._c.ledger.closes.prices
        return self.cash + sum((shares * prices.get(symbol, ZERO) for symbol, shares in held if shares), ZERO)

    def exposure_of(self, tracked: TrackedIntent) -> Callable[[], Exposure]:
        """Return a function that computes the current exposure without the intent's own live order."""
        return lambda: self._exposure(tracked)

    def _exposure(self, excluded: TrackedIntent) -> Exposure:
        """Return positions, live orders and the value traded on the intent's bar, without its own live order."""
        bar = excluded.intent.bar
        live: dict[str, Decimal] = {}
        traded = ZERO
        for tracked in self._c.ledger.open.values():
            intent, order = tracked.intent, None if tracked is excluded else tracked.live
            if order is not None:
                live[intent.symbol] = live.get(intent.symbol, ZERO) + intent.side.sign * order.view.remaining
            if intent.bar == bar:
                unfilled = order.view.remaining if order is not None else ZERO
                traded += (tracked.filled + unfilled) * intent.reference_price
        traded += self._c.ledger.closed_intents_value(bar)
        ledger = self._c.ledger
        return Exposure(self.equity(), ledger.positions, live, ledger.closes.prices, traded, self._account)

    def alert_untraded_positions(self) -> None:
        """Alert if own shares are held of symbols that are not in the config."""
        for symbol, shares in self._untraded_positions().items():
            self._c.alert(
                "warning",
                "left_out",
                f"{shares} own shares of {symbol} are held but {symbol} is not in `symbols`, so they are not traded. "
                "Add it, or sell all shares with `paper flatten`.",
            )

    def _untraded_positions(self) -> dict[str, Decimal]:
        """Return own shares of symbols that are not in the config."""
        traded = set(self._c.config.symbols)
        return {s: shares for s, shares in sorted(self._c.ledger.positions.items()) if shares and s not in traded}

    # ------------------------------------------------------------------ deciding

    def decided(self, cycle: TradingCycle) -> bool:
        """Return True if the journal has a decision on the cycle's bar."""
        bar = cycle.bar.isoformat()
        if self._decided != bar:
            mine = schema.decisions.c.run == self._c.config.name
            if self._c.ledger.store.last(schema.decisions, mine, schema.decisions.c.bar == bar) is None:
                return False
            self._decided = bar
        return True

    def take_decision(self, cycle: TradingCycle) -> None:
        """Decide and write decision and intents in one transaction.

        Raises BrokerError or DataError if broker or prices are unavailable. Nothing is written then, and the call may
        be repeated until the deadline.
        """
        c, config = self._c, self._c.config
        today = cycle.session.date
        began = moment(c.ledger.store.rows(schema.cash_marks)[0].at).date()
        actions = record_corporate_actions(
            c.broker, c.ledger, sorted({*config.symbols, *self._untraded_positions()}), today, began, c.clock.now(),
            c.alert, pays_dividends=config.broker.kind == "simulated",
        )  # fmt: skip
        c.orders.record_new_fills()
        if c.reconciler.compare():
            messages = "; ".join(d.message for d in c.reconciler.differences)
            self.skip(cycle, "refused", f"account and journal differ: {messages}")
            return
        c.reconciler.record_cash_mark()
        checked = self.record_prices(cycle, actions)
        try:
            loaded = self._strategy()
            own = Holdings(c.ledger.positions, self.cash, c.ledger.closes.prices)
            saved = self._saved_state()
            decision = decide(loaded.strategy, checked, own, state=saved.get("strategy"))
        except (StrategyFailed, FinrlPodError) as error:
            self.skip(cycle, "failed", str(error))
            return
        assets = c.broker.assets(config.symbols)
        rules = sizing_rules(config, c.risk.limits)
        intents, skipped = plan_orders(config, decision, cycle, own, assets, rules)
        self._alert_cut_weights(limits_note(decision, rules))
        halted = self._halted_symbols()
        kept = [i for i in intents if i.symbol not in halted or i.side is Side.SELL]
        skipped |= {i.symbol: f"not bought while halted: {halted[i.symbol]}" for i in intents if i not in kept}
        outcome = "hold" if decision.weights is None else "orders"
        base = self._base_account(loaded, checked, saved.get("base"))
        state = None if decision.state is None and base is None else {"strategy": decision.state, "base": base}
        with c.ledger.store.write() as connection:
            self._write_decision(connection, cycle, loaded.strategy.name, decision, outcome, skipped, state)
            planned = c.ledger.add_intents(connection, c.clock.now(), kept)
        c.ledger.track(planned)
        for symbol, reason in skipped.items():
            c.alert("warning", "symbol", f"{symbol} is not traded: {reason}")
        before = saved.get("base") or {}
        if base is not None and (message := stop_rule.warning(base["active_return"], before.get("active_return"))):
            c.alert("warning", stop_rule.ALERT, message)

    def _alert_cut_weights(self, note: str) -> None:
        """Alert once in the life of a journal that the limits cut target weights, again if the limits change."""
        alerts = schema.alerts.c
        if note and self._c.ledger.store.last(schema.alerts, alerts.kind == "limits", alerts.message == note) is None:
            self._c.alert("warning", "limits", note)

    def record_prices(self, cycle: TradingCycle, actions: Sequence[CorporateAction] = ()) -> CheckedPrices:
        """Fetch and check prices and record own equity at the closes of the cycle's bar. Idempotent."""
        config = self._c.config
        checked = fetch_checked_prices(
            self._c.feed, config.symbols, cycle.bar, actions, config.data, self._record_fetch
        )  # fmt: skip
        self._record_problems(cycle, checked)
        self._c.ledger.closes.record(cycle.bar.isoformat(), checked.closes, self._c.clock.now())
        self._record_equity(cycle)
        return checked

    def skip(self, cycle: TradingCycle, outcome: str, reason: str) -> None:
        """Record that a cycle has no orders, and why."""
        c = self._c
        c.ledger.store.add(
            schema.decisions, c.clock.now(), run=c.config.name, bar=cycle.bar.isoformat(),
            strategy=c.config.strategy or c.config.run or c.config.champion, feed=c.feed.name, inputs="{}",
            weights=None, outcome=outcome, detail=reason,
        )  # fmt: skip
        c.alert("critical" if outcome != "missed" else "warning", outcome, f"decision on {cycle.bar}: {reason}")

    # ------------------------------------------------------------------ sending

    def send_due(self, stopping: Callable[[], bool], *, only_flatten: bool = False) -> None:
        """Send the orders of intents that have none yet: sales first, then purchases that cash and proceeds pay for.

        stopping: checked before each order; once it returns True, no more are sent. only_flatten: only orders of
        flatten commands. Raises BrokerError if the account's positions cannot be queried.
        """
        c, now = self._c, self._c.clock.now()
        due = [t for t in c.ledger.open.values() if not t.orders and t.intent.opens <= now]
        due = [t for t in due if t.intent.flattens or not only_flatten]
        if any(tracked.intent.side is Side.SELL for tracked in due):
            self._account = {position.symbol: position.quantity for position in c.broker.positions()}
        for tracked in due:
            if tracked.intent.side is Side.SELL and not stopping():
                c.orders.send(tracked, tracked.intent.quantity, self.exposure_of(tracked))
        waits = c.config.orders.funding == "after_sales"
        if waits and any(t.intent.side is Side.SELL for t in c.ledger.open.values()):
            return
        for tracked in due:
            if tracked.intent.side is Side.BUY and not tracked.state.final and not stopping():
                quantity = self._affordable(tracked)
                if quantity:
                    c.orders.send(tracked, quantity, self.exposure_of(tracked))
                elif now > tracked.intent.deadline:
                    c.orders.finish(tracked)

    def _affordable(self, tracked: TrackedIntent) -> Decimal:
        """Return the shares of a purchase that own cash and live sales pay for, at the decision's prices."""
        funds = self.cash
        for other in self._c.ledger.open.values():
            order = other.live
            if order is not None:
                value = order.view.remaining * other.intent.reference_price
                charged = 1 + self._rules.cost_rate * other.intent.side.sign
                funds -= other.intent.side.sign * value * charged
        price = tracked.intent.reference_price * (1 + self._rules.cost_rate)
        step = FRACTION if self._rules.fractional else WHOLE
        affordable = (max(funds, ZERO) / price).quantize(step, ROUND_DOWN)
        return min(affordable, tracked.intent.quantity)

    # ------------------------------------------------------------------ helpers

    def _strategy(self) -> LoadedStrategy:
        """Return the current strategy and set its risk limits; a change is recorded in the journal.

        Raises FinrlPodError if there is none, or its mandate contradicts the config.
        """
        store, loaded = self._c.ledger.store, self._c.source.current()
        self._c.risk.limits = risk_limits(self._c.config, loaded.strategy)
        before = store.last(schema.strategies)
        if before is None or before.sha256 != loaded.sha256:
            values = {"name": loaded.strategy.name, "sha256": loaded.sha256, "detail": loaded.detail}
            store.add(schema.strategies, self._c.clock.now(), **values)
            if before is not None:
                self._c.alert("info", "strategy", f"strategy is now {loaded.strategy.name}: {loaded.detail}")
        if loaded.warning:
            self._c.alert("warning", "registry", loaded.warning)
        return loaded

    def _saved_state(self) -> Mapping[str, Any]:
        """Return the virtual holdings of strategy and base after the last decision that had some; empty without any."""
        decisions = schema.decisions.c
        row = self._c.ledger.store.last(
            schema.decisions, decisions.run == self._c.config.name, decisions.state.is_not(None)
        )
        return {} if row is None else json.loads(row.state)

    def _base_account(
        self, loaded: LoadedStrategy, checked: CheckedPrices, saved: Mapping[str, Any] | None
    ) -> dict[str, Any] | None:
        """Return the base account after this decision, with the active return over it; None if it has no base."""
        c, config = self._c, self._c.config
        if loaded.base is None:
            return None
        try:
            base = advance(loaded.base, saved, checked.panel, config.orders.cash_buffer, config.schedule.mode)
        except FinrlPodError as error:  # must not stop the trading
            c.alert("warning", stop_rule.ALERT, f"the active return is unknown: {error}")
            return None
        measured = stop_rule.measure(c.ledger.store, config.name, base, self.equity(), loaded.band)
        return {**base, "active_return": measured}

    def _record_problems(self, cycle: TradingCycle, checked: CheckedPrices) -> None:
        """Halt symbols with a price jump and alert price problems, each once per bar however often it is retried."""
        halted, (bar, alerted) = self._halted_symbols(), self._alerted_problems
        if bar != cycle.bar.isoformat():
            alerted = {}
        for symbol in sorted(checked.halted):
            reason = checked.problems[symbol]
            if halted.get(symbol) == reason:
                continue
            values = {"symbol": symbol, "halted": 1, "reason": reason}
            self._c.ledger.store.add(schema.symbol_halts, self._c.clock.now(), **values)
            self._c.alert("critical", "symbol_halted", f"{symbol} is halted until acknowledged: {reason}")
        for symbol, reason in sorted(checked.problems.items()):
            if symbol not in checked.halted and alerted.get(symbol) != reason:
                self._c.alert("warning", "prices", f"{symbol}: {reason}")
        self._alerted_problems = (cycle.bar.isoformat(), dict(checked.problems))

    def _halted_symbols(self) -> dict[str, str]:
        state: dict[str, str] = {}
        for row in self._c.ledger.store.rows(schema.symbol_halts):
            if row.halted:
                state[row.symbol] = row.reason
            else:
                state.pop(row.symbol, None)
        return state

    def _record_equity(self, cycle: TradingCycle) -> None:
        """Write own equity at the decision bar's closes, and tighten the risk state if a loss limit is exceeded."""
        c, equity, now = self._c, self.equity(), self._c.clock.now()
        session = cycle.bar.isoformat()
        day_start, peak = self._previous_and_peak_equity(equity, session)
        values = {"equity": str(equity), "cash": str(self.cash), "broker_equity": str(c.broker.account().equity)}
        if c.ledger.store.last(schema.equity, schema.equity.c.session == session) is None:
            c.ledger.store.add(schema.equity, now, session=session, **values)
        breach = c.risk.loss_breach(equity, day_start, peak)
        if breach is not None and c.risk.tighten(RiskState.REDUCING, breach, now):
            c.alert("critical", "reducing", f"{breach}: only reducing orders are sent until `paper resume`")

    def _previous_and_peak_equity(self, equity: Decimal, session: str) -> tuple[Decimal, Decimal]:
        """Return the equity of the session before, and the highest since trading was last resumed."""
        store = self._c.ledger.store
        resumed = store.last(schema.risk_states, schema.risk_states.c.state == RiskState.ACTIVE.value)
        since = schema.equity.c.at > (resumed.at if resumed is not None else "")
        marks = [Decimal(row.equity) for row in store.rows(schema.equity, since, schema.equity.c.session != session)]
        start = Decimal(str(self._c.config.capital))
        if not marks:
            return (equity, equity) if resumed is not None else (start, max(start, equity))
        return marks[-1], max(*marks, equity)

    def _record_fetch(self, table: BarTable, adjustment: str, sha256: str) -> None:
        days = [str(day) for day in table.times[[0, -1]].astype("datetime64[D]")]
        self._c.ledger.store.add(
            schema.price_fetches, self._c.clock.now(), feed=table.feed, adjustment=adjustment, start=days[0],
            end=days[1], symbols=len(table.symbols), sha256=sha256,
        )  # fmt: skip

    def _write_decision(
        self, connection: Connection, cycle: TradingCycle, strategy: str, decision: Decision, outcome: str,
        skipped: Mapping[str, str], state: Mapping[str, Any] | None,
    ) -> None:  # fmt: skip
        weights = None
        if decision.weights is not None:
            pairs = zip(decision.prices.panel.symbols, decision.weights.tolist(), strict=True)
            weights = json.dumps(dict(pairs), sort_keys=True)
        add(
            connection, schema.decisions, self._c.clock.now(), run=self._c.config.name, bar=cycle.bar.isoformat(),
            strategy=strategy, feed=decision.feed, inputs=decision.inputs, weights=weights, outcome=outcome,
            detail=json.dumps(dict(skipped), sort_keys=True),
            state=None if state is None else json.dumps(state, sort_keys=True),
        )  # fmt: skip
