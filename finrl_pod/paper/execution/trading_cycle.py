"""A round: book what the exchange did, look at prices, decide, plan, send, and follow the orders to their end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal
from typing import Protocol

from sqlalchemy import Connection

from finrl_pod.errors import FinrlPodError
from finrl_pod.market.orders import FRACTION, WHOLE
from finrl_pod.paper.brokers.port import BarTable, Broker, Clock, DataFeed
from finrl_pod.paper.execution.corporate_actions import book_actions
from finrl_pod.paper.execution.decision import Decision, Holdings, StrategyFailed, decide, look_at_prices
from finrl_pod.paper.execution.order_manager import Alert, Desk
from finrl_pod.paper.execution.planning import plan, sizing_rules
from finrl_pod.paper.execution.price_check import CheckedPrices
from finrl_pod.paper.execution.reconcile import Reconciler
from finrl_pod.paper.execution.risk import Exposure, Risk, RiskState
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.book import Book, TrackedIntent
from finrl_pod.paper.journal.store import add, moment
from finrl_pod.paper.records import CorporateAction, Side
from finrl_pod.paper.runtime.schedule import Round
from finrl_pod.paper.runtime.stream_watch import StreamWatch
from finrl_pod.paper.settings import PaperConfig
from finrl_pod.protocols import Strategy

ZERO = Decimal(0)


@dataclass(frozen=True, eq=False)
class LoadedStrategy:
    """A strategy with the hash of everything that it is made of."""

    strategy: Strategy
    sha256: str
    detail: str = ""


class StrategySource(Protocol):
    """Where the strategy comes from. Asked before each decision: a newer promoted run is taken over there."""

    def current(self) -> LoadedStrategy:
        """Raises FinrlPodError when there is none that may trade."""
        ...


@dataclass(frozen=True)
class Parts:
    """What a trader works with."""

    config: PaperConfig
    broker: Broker
    feed: DataFeed
    source: StrategySource
    book: Book
    risk: Risk
    desk: Desk
    reconciler: Reconciler
    stream: StreamWatch
    clock: Clock
    alert: Alert


class Trader:
    """Takes the decision of a round, once, and sends its orders, as often as it takes."""

    def __init__(self, parts: Parts) -> None:
        self._p = parts
        self._rules = sizing_rules(parts.config)
        self._decided = ""  # the last bar that the journal is known to have a decision on
        self._told_problems: tuple[str, dict[str, str]] = ("", {})  # of the last bar looked at, by symbol
        self._account: dict[str, Decimal] | None = None  # shares at the broker when sales were last due

    # ------------------------------------------------------------------ own account

    @property
    def cash(self) -> Decimal:
        """Own cash: the allocated capital and everything that was bought, sold and paid since."""
        return Decimal(str(self._p.config.capital)) + self._p.book.cash

    @property
    def positions(self) -> Mapping[str, Decimal]:
        """Own shares by symbol."""
        return self._p.book.positions

    def equity(self) -> Decimal:
        """Own equity at the last known closes, of symbols that have left the config too. One without any counts
        nothing.
        """
        held, prices = self._p.book.positions.items(), self._p.book.closes.prices
        return self.cash + sum((shares * prices.get(symbol, ZERO) for symbol, shares in held if shares), ZERO)

    def exposure_of(self, tracked: TrackedIntent) -> Callable[[], Exposure]:
        """What an order of the intent adds to: read anew at each call, the intent's own live order left out."""
        return lambda: self._exposure(tracked)

    def _exposure(self, asking: TrackedIntent) -> Exposure:
        """What is held and on its way, and what the orders of the intent's bar have traded."""
        bar = asking.intent.bar
        live: dict[str, Decimal] = {}
        traded = ZERO
        for tracked in self._p.book.open.values():
            intent, order = tracked.intent, None if tracked is asking else tracked.live
            if order is not None:
                live[intent.symbol] = live.get(intent.symbol, ZERO) + intent.side.sign * order.view.remaining
            if intent.bar == bar:
                on_its_way = order.view.remaining if order is not None else ZERO
                traded += (tracked.filled + on_its_way) * intent.reference_price
        traded += self._p.book.traded_and_closed(bar)
        return Exposure(self.equity(), self._p.book.positions, live, self._p.book.closes.prices, traded, self._account)

    def tell_left_out(self) -> None:
        """Alert that own shares are held of symbols that are not traded any more."""
        for symbol, shares in self._left_out().items():
            self._p.alert(
                "warning",
                "left_out",
                f"{shares} own shares of {symbol} are held, which is not among the config's symbols, and are left as "
                "they are: add it to symbols, or sell all with `paper flatten`",
            )

    def _left_out(self) -> dict[str, Decimal]:
        """Own shares of symbols that are not in the config."""
        traded = set(self._p.config.symbols)
        return {s: shares for s, shares in sorted(self._p.book.positions.items()) if shares and s not in traded}

    # ------------------------------------------------------------------ deciding

    def decided(self, round_: Round) -> bool:
        """Whether the journal has a decision on the round's bar."""
        bar = round_.bar.isoformat()
        if self._decided != bar:
            mine = schema.decisions.c.run == self._p.config.name
            if self._p.book.store.last(schema.decisions, mine, schema.decisions.c.bar == bar) is None:
                return False
            self._decided = bar
        return True

    def take_decision(self, round_: Round) -> None:
        """Decide and plan, in one transaction. Raises BrokerError or DataError when prices or broker do not answer:
        then nothing was written and it may be tried again until the deadline.
        """
        p, config = self._p, self._p.config
        today = round_.session.date
        began = moment(p.book.store.rows(schema.cash_marks)[0].at).date()
        pays = config.broker.kind == "simulated"
        asked = sorted({*config.symbols, *self._left_out()})
        actions = book_actions(p.broker, p.book, asked, today, began, p.clock.now(), p.alert, pays_dividends=pays)
        p.desk.take_fills()
        if p.reconciler.compare():
            sentences = "; ".join(d.sentence for d in p.reconciler.differences)
            self.write_off(round_, "refused", f"the account does not agree with the journal: {sentences}")
            return
        p.reconciler.mark()
        checked = self.mark(round_, actions)
        try:
            loaded = self._strategy()
            own = Holdings(p.book.positions, self.cash, p.book.closes.prices)
            decision = decide(loaded.strategy, checked, own)
        except (StrategyFailed, FinrlPodError) as error:
            self.write_off(round_, "failed", str(error))
            return
        assets = p.broker.assets(config.symbols)
        intents, left = plan(config, decision, round_, own, assets)
        halted = self._halted_symbols()
        kept = [i for i in intents if i.symbol not in halted]
        left |= {i.symbol: f"halted: {halted[i.symbol]}" for i in intents if i.symbol in halted}
        outcome = "hold" if decision.weights is None else "orders"
        with p.book.store.write() as connection:
            self._write(connection, round_, loaded.strategy.name, decision, outcome, left)
            planned = p.book.plan(connection, p.clock.now(), kept)
        p.book.adopt(planned)
        for symbol, reason in left.items():
            p.alert("warning", "symbol", f"{symbol} is left as it is: {reason}")

    def mark(self, round_: Round, actions: Sequence[CorporateAction] = ()) -> CheckedPrices:
        """Look at prices and write own equity at the closes of the round's bar. Done again, it writes nothing twice."""
        config = self._p.config
        checked = look_at_prices(self._p.feed, config.symbols, round_.bar, actions, config.data, self._look)
        self._note_problems(round_, checked)
        self._p.book.closes.note(round_.bar.isoformat(), checked.closes, self._p.clock.now())
        self._mark_equity(round_)
        return checked

    def write_off(self, round_: Round, outcome: str, reason: str) -> None:
        """Journal that nothing is done in a round, and why."""
        p = self._p
        p.book.store.add(
            schema.decisions, p.clock.now(), run=p.config.name, bar=round_.bar.isoformat(),
            strategy=p.config.strategy or p.config.run, feed=p.feed.name, inputs="{}", weights=None, outcome=outcome,
            detail=reason,
        )  # fmt: skip
        p.alert("critical" if outcome != "missed" else "warning", outcome, f"decision on {round_.bar}: {reason}")

    # ------------------------------------------------------------------ sending

    def send_due(self, stopping: Callable[[], bool]) -> None:
        """Send the orders of intents that have none yet: sales first, then what cash and their proceeds pay for.

        stopping: asked before each order; once it says so, no more are sent. Raises BrokerError where it is not known
        what the account holds.
        """
        p, now = self._p, self._p.clock.now()
        due = [t for t in p.book.open.values() if not t.orders and t.intent.opens <= now]
        if any(tracked.intent.side is Side.SELL for tracked in due):
            self._account = {position.symbol: position.quantity for position in p.broker.positions()}
        for tracked in due:
            if tracked.intent.side is Side.SELL and not stopping():
                p.desk.send(tracked, tracked.intent.quantity, self.exposure_of(tracked))
        waits = p.config.orders.funding == "after_sales"
        if waits and any(t.intent.side is Side.SELL for t in p.book.open.values()):
            return
        for tracked in due:
            if tracked.intent.side is Side.BUY and not tracked.state.final and not stopping():
                quantity = self._affordable(tracked)
                if quantity:
                    p.desk.send(tracked, quantity, self.exposure_of(tracked))
                elif now > tracked.intent.deadline:
                    p.desk.finish(tracked)

    def _affordable(self, tracked: TrackedIntent) -> Decimal:
        """How much of a purchase own cash and the proceeds of live sales pay for, at the decision's prices."""
        funds = self.cash
        for other in self._p.book.open.values():
            order = other.live
            if order is not None:
                value = order.view.remaining * other.intent.reference_price
                charged = 1 + self._rules.cost_rate * other.intent.side.sign
                funds -= other.intent.side.sign * value * charged
        price = tracked.intent.reference_price * (1 + self._rules.cost_rate)
        step = FRACTION if self._rules.fractional else WHOLE
        most = (max(funds, ZERO) / price).quantize(step, ROUND_DOWN)
        return min(most, tracked.intent.quantity)

    # ------------------------------------------------------------------ inside

    def _strategy(self) -> LoadedStrategy:
        """The strategy to ask, its change journaled."""
        store, loaded = self._p.book.store, self._p.source.current()
        before = store.last(schema.strategies)
        if before is None or before.sha256 != loaded.sha256:
            values = {"name": loaded.strategy.name, "sha256": loaded.sha256, "detail": loaded.detail}
            store.add(schema.strategies, self._p.clock.now(), **values)
            if before is not None:
                self._p.alert("info", "strategy", f"{loaded.strategy.name} is taken over: {loaded.detail}")
        return loaded

    def _note_problems(self, round_: Round, checked: CheckedPrices) -> None:
        """Halt symbols and tell what is wrong with prices: what a try before has noted is not noted again."""
        halted, (bar, told) = self._halted_symbols(), self._told_problems
        if bar != round_.bar.isoformat():
            told = {}
        for symbol in sorted(checked.halted):
            reason = checked.problems[symbol]
            if halted.get(symbol) == reason:
                continue
            values = {"symbol": symbol, "halted": 1, "reason": reason}
            self._p.book.store.add(schema.symbol_halts, self._p.clock.now(), **values)
            self._p.alert("critical", "symbol_halted", f"{symbol} is halted until acknowledged: {reason}")
        for symbol, reason in sorted(checked.problems.items()):
            if symbol not in checked.halted and told.get(symbol) != reason:
                self._p.alert("warning", "prices", f"{symbol}: {reason}")
        self._told_problems = (round_.bar.isoformat(), dict(checked.problems))

    def _halted_symbols(self) -> dict[str, str]:
        state: dict[str, str] = {}
        for row in self._p.book.store.rows(schema.symbol_halts):
            if row.halted:
                state[row.symbol] = row.reason
            else:
                state.pop(row.symbol, None)
        return state

    def _mark_equity(self, round_: Round) -> None:
        """Write own equity at the decision bar's closes, and tighten the state when a loss limit is broken."""
        p, equity, now = self._p, self.equity(), self._p.clock.now()
        session = round_.bar.isoformat()
        day_start, peak = self._marks(equity, session)
        values = {"equity": str(equity), "cash": str(self.cash), "broker_equity": str(p.broker.account().equity)}
        if p.book.store.last(schema.equity, schema.equity.c.session == session) is None:
            p.book.store.add(schema.equity, now, session=session, **values)
        breach = p.risk.breach(equity, day_start, peak)
        if breach is not None and p.risk.tighten(RiskState.REDUCING, breach, now):
            p.alert("critical", "reducing", f"{breach}: only reducing orders are sent until `paper resume`")

    def _marks(self, equity: Decimal, session: str) -> tuple[Decimal, Decimal]:
        """The mark before that of a session, and the highest since trading was last resumed."""
        store = self._p.book.store
        resumed = store.last(schema.risk_states, schema.risk_states.c.state == RiskState.ACTIVE.value)
        since = schema.equity.c.at > (resumed.at if resumed is not None else "")
        marks = [Decimal(row.equity) for row in store.rows(schema.equity, since, schema.equity.c.session != session)]
        start = Decimal(str(self._p.config.capital))
        if not marks:
            return (equity, equity) if resumed is not None else (start, max(start, equity))
        return marks[-1], max(*marks, equity)

    def _look(self, table: BarTable, adjustment: str, sha256: str) -> None:
        days = [str(day) for day in table.times[[0, -1]].astype("datetime64[D]")]
        self._p.book.store.add(
            schema.looks, self._p.clock.now(), feed=table.feed, adjustment=adjustment, start=days[0], end=days[1],
            symbols=len(table.symbols), sha256=sha256,
        )  # fmt: skip

    def _write(
        self, connection: Connection, round_: Round, strategy: str, decision: Decision, outcome: str,
        left: Mapping[str, str],
    ) -> None:  # fmt: skip
        weights = None
        if decision.weights is not None:
            pairs = zip(decision.prices.panel.symbols, decision.weights.tolist(), strict=True)
            weights = json.dumps(dict(pairs), sort_keys=True)
        add(
            connection, schema.decisions, self._p.clock.now(), run=self._p.config.name, bar=round_.bar.isoformat(),
            strategy=strategy, feed=decision.feed, inputs=decision.inputs, weights=weights, outcome=outcome,
            detail=json.dumps(dict(left), sort_keys=True),
        )  # fmt: skip
