"""The trader of an account: a cycle records corporate actions, reconciles, checks prices, and lets strategies decide.

Several strategies share the account cash and its broker; each has its own book, limits and decisions. Sales of all
strategies are sent before purchases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from decimal import ROUND_DOWN, Decimal

from finrl_pod.errors import ConfigError
from finrl_pod.market.orders import FRACTION, WHOLE
from finrl_pod.paper.domain.flows import NOW
from finrl_pod.paper.domain.intents import Intent
from finrl_pod.paper.domain.port import BarTable, Broker
from finrl_pod.paper.domain.records import CorporateAction, Side
from finrl_pod.paper.domain.schedule import TradingCycle
from finrl_pod.paper.execution.price_check import (
    CheckedPrices,
    fetch_checked_prices,
    fetch_minute_prices,
    table_sha256,
)
from finrl_pod.paper.execution.reconcile import MISMATCH_ENTRY, record_corporate_actions
from finrl_pod.paper.execution.risk import Exposure
from finrl_pod.paper.execution.trader import CycleInputs, StrategyTrader, TradingComponents
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.capital_flows import adjusted_equity
from finrl_pod.paper.journal.commands import RiskState
from finrl_pod.paper.journal.ledger import LedgerEntry, market_value
from finrl_pod.paper.journal.store import moment
from finrl_pod.paper.settings import PaperConfig, allocations

ZERO = Decimal(0)


class AccountTrader:
    """Takes the decisions of every strategy once per trading cycle and sends their orders. traders: one of each."""

    def __init__(self, components: TradingComponents) -> None:
        """Raises FinrlPodError if a source has no strategy, or one whose mandate contradicts the config."""
        self._c = components
        self._alerted_problems: tuple[str, dict[str, str]] = ("", {})  # bar, and its price problems by symbol
        self._account: dict[str, Decimal] | None = None  # shares at the broker when sales were last due
        config = components.config
        ledger = components.ledger
        if config.strategies:
            strategies = zip(allocations(config), components.sources, config.strategies, strict=True)
            self.traders = tuple(
                StrategyTrader(components, allocation, source, ledger.books[allocation.name], strategy_config.name)
                for allocation, source, strategy_config in strategies
            )
        else:
            self.traders = (StrategyTrader(components, config, components.sources[0], ledger),)

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
        """Return own equity at the last known closes; 0 for a symbol that never had one."""
        return self.cash + market_value(self.positions, self._c.ledger.closes.prices)

    def exposure_of(self, entry: LedgerEntry) -> Callable[[], Exposure]:
        """Return a function that computes the exposure of a strategy without the live order of this intent."""
        trader = self._trader_of(entry)
        if trader is not None:
            return lambda: trader.exposure(entry, self._account)
        ledger = self._c.ledger  # of a flatten: shares that no strategy of the config holds
        positions = ledger.books.get(entry.intent.run, ledger).positions
        return lambda: Exposure(self.equity(), positions, {}, ledger.closes.prices, ZERO, self._account)

    def check_symbols(self) -> None:
        """Refuse symbols that cannot be traded, before the first decision; later ones are skipped with an alert.

        Raises ConfigError, and BrokerError if the assets cannot be queried.
        """
        if self._c.ledger.store.last(schema.decisions) is None:
            check_assets(self._c.broker, self._c.config)

    def alert_untraded_positions(self) -> None:
        """Alert if own shares are held of symbols, or by strategies, that are not in the config."""
        advice = "so they are not traded. Add it, or sell all shares with `paper flatten`."
        for symbol, shares in self._untraded_positions().items():
            message = f"{shares} own shares of {symbol} are held but {symbol} is not in `symbols`, {advice}"
            self._c.alert("warning", "left_out", message)
        runs = {trader.config.name for trader in self.traders}
        for run, book in sorted(self._c.ledger.books.items()):
            holdings = ", ".join(f"{shares} {symbol}" for symbol, shares in sorted(book.positions.items()) if shares)
            if holdings and run not in runs:
                message = f"own shares of {run} are held ({holdings}), but the config has no such strategy, {advice}"
                self._c.alert("warning", "left_out", message)

    def _untraded_positions(self) -> dict[str, Decimal]:
        """Return own shares of symbols that are not in the config."""
        traded_symbols = set(self._c.config.symbols)
        return {
            s: shares for s, shares in sorted(self._c.ledger.positions.items()) if shares and s not in traded_symbols
        }

    # ------------------------------------------------------------------ deciding

    def has_decided(self, cycle: TradingCycle) -> bool:
        """Return True if the journal has a decision of every strategy on the cycle bar."""
        return all(trader.has_decided(cycle) for trader in self.traders)

    def take_decision(self, cycle: TradingCycle) -> None:
        """Let each strategy decide that has not yet, each in a separate transaction.

        Raises BrokerError or DataError if broker or prices are unavailable. Nothing is written then, and the call may
        be repeated until the deadline.
        """
        c = self._c
        config = self._c.config
        today = cycle.session.date
        first_day = moment(c.ledger.store.rows(schema.cash_marks)[0].at).date()
        actions = record_corporate_actions(
            c.broker, c.ledger, sorted({*config.symbols, *self._untraded_positions()}), today, first_day, c.clock.now(),
            c.alert, pays_dividends=config.broker.kind == "simulated",
        )  # fmt: skip
        c.orders.record_new_fills()
        if c.reconciler.compare():
            messages = "; ".join(d.message for d in c.reconciler.differences)
            self.skip(cycle, "refused", f"account and journal differ: {messages}; see {MISMATCH_ENTRY}")
            return
        c.reconciler.record_cash_mark()
        prices = self.record_prices(cycle, actions)
        power = c.broker.account().buying_power
        assets = c.broker.assets(config.symbols)
        halted_symbols = self._halted_symbols()
        funds = sum((max(trader.cash, ZERO) for trader in self.traders), ZERO)
        for trader in self.traders:
            if not trader.has_decided(cycle):
                buying_power = power * max(trader.cash, ZERO) / funds if funds else ZERO  # the strategies share it
                trader.take_decision(cycle, CycleInputs(prices, assets, halted_symbols, actions, buying_power))

    def record_prices(self, cycle: TradingCycle, actions: Sequence[CorporateAction] = ()) -> CheckedPrices:
        """Fetch and check prices and record own equity at the closes of the cycle bar. Idempotent."""
        config = self._c.config
        if cycle.time is not None:
            return self._record_minute_prices(cycle)
        prices = fetch_checked_prices(
            self._c.feed, config.symbols, cycle.bar, actions, config.data, self._record_fetch
        )  # fmt: skip
        self._record_problems(cycle, prices)
        self._c.ledger.closes.record(cycle.id, prices.closes, self._c.clock.now())
        self._record_equity(cycle.id)
        return prices

    def _record_minute_prices(self, cycle: TradingCycle) -> CheckedPrices:
        """Fetch and check the bars of an intraday decision. The first of a day records equity at the closes before."""
        c = self._c
        today = cycle.session.date
        prices, earlier_closes = fetch_minute_prices(c.feed, c.config, c.calendar, cycle, self._record_fetch)
        self._record_problems(cycle, prices)
        previous_session = c.calendar.sessions(today - timedelta(days=14), today)[-2].date.isoformat()
        if c.ledger.store.last(schema.equity, schema.equity.c.session == previous_session) is None:
            c.ledger.closes.record(previous_session, earlier_closes, c.clock.now())
            self._record_equity(previous_session)
        c.ledger.closes.record(cycle.id, prices.closes, c.clock.now())
        self._check_losses(self.equity(), "")
        return prices

    def skip(self, cycle: TradingCycle, outcome: str, reason: str) -> None:
        """Record that a cycle has no orders of the strategies that have not decided, and why."""
        for trader in self.traders:
            if not trader.has_decided(cycle):
                trader.skip(cycle, outcome, reason)

    # ------------------------------------------------------------------ sending

    def send_due(self, stopping: Callable[[], bool], *, only_flatten: bool = False) -> None:
        """Send the orders of intents that have none yet: sales first, then purchases that cash and proceeds pay for.

        stopping: checked before each order; once it returns True, no more are sent. only_flatten: only orders of
        flatten commands. Raises BrokerError if the account positions cannot be queried.
        """
        c = self._c
        now = self._c.clock.now()
        due = [
            entry
            for entry in c.ledger.open.values()
            if (entry.intent.flattens or not only_flatten) and entry.intent.opens <= now and not entry.orders
        ]
        if any(entry.intent.side is Side.SELL for entry in due):
            self._account = {position.symbol: position.quantity for position in c.broker.positions()}
        for entry in due:
            if entry.intent.side is Side.SELL and not stopping() and not self._waits_for_opposite(entry):
                c.orders.send(entry, entry.intent.quantity, self.exposure_of(entry))
        waits = c.config.orders.funding == "after_sales"
        if waits and any(t.intent.side is Side.SELL for t in c.ledger.open.values()):
            return
        purchases = [entry for entry in due if entry.intent.side is Side.BUY]
        power = c.broker.account().buying_power if purchases else ZERO
        for entry in purchases:
            if entry.state.final or stopping() or self._waits_for_opposite(entry):
                continue
            trader = self._trader_of(entry)
            affordable = entry.intent.quantity if trader is None else trader.affordable(entry)
            quantity = self._within_power(entry, affordable, power)
            power -= quantity * _reserve(entry.intent)
            if quantity:
                c.orders.send(entry, quantity, self.exposure_of(entry))
            elif now > entry.intent.deadline:
                c.orders.finish(entry)

    def _within_power(self, entry: LedgerEntry, quantity: Decimal, power: Decimal) -> Decimal:
        """Return the shares of a purchase whose limit price the account buying power covers.

        While sales are open it waits for their proceeds, as far as its deadline allows, rather than being cut.
        """
        reserve = _reserve(entry.intent)
        if quantity * reserve <= power:
            return quantity
        if any(other.intent.side is Side.SELL for other in self._c.ledger.open.values()):
            return ZERO
        step = FRACTION if self._c.config.orders.fractional else WHOLE
        return (max(power, ZERO) / reserve).quantize(step, ROUND_DOWN)

    def _waits_for_opposite(self, entry: LedgerEntry) -> bool:
        """Whether another strategy has a live opposite order in the symbol. Brokers refuse that as a wash trade.

        The intent waits for that order to end; past its own deadline it is closed, and its target kept.
        """
        intent = entry.intent
        waits = any(
            other.intent.run != intent.run
            and other.live is not None
            and (other.intent.symbol, other.intent.side) == (intent.symbol, intent.side.opposite)
            for other in self._c.ledger.open.values()
        )
        if waits and self._c.clock.now() > intent.deadline:
            self._c.orders.finish(entry)
        return waits

    def _trader_of(self, entry: LedgerEntry) -> StrategyTrader | None:
        return next((trader for trader in self.traders if trader.config.name == entry.intent.run), None)

    def _record_problems(self, cycle: TradingCycle, prices: CheckedPrices) -> None:
        """Halt symbols with a price jump and alert price problems, each once per bar however often it is retried."""
        halted_symbols = self._halted_symbols()
        bar, alerted_reasons = self._alerted_problems
        if bar != cycle.id:
            alerted_reasons = {}
        for symbol in sorted(prices.halted_symbols):
            reason = prices.problems[symbol]
            if halted_symbols.get(symbol) == reason:
                continue
            values = {"symbol": symbol, "halted": 1, "reason": reason}
            self._c.ledger.store.add(schema.symbol_halts, self._c.clock.now(), **values)
            self._c.alert("critical", "symbol_halted", f"{symbol} is halted until acknowledged: {reason}")
        for symbol, reason in sorted(prices.problems.items()):
            if symbol not in prices.halted_symbols and alerted_reasons.get(symbol) != reason:
                self._c.alert("warning", "prices", f"{symbol}: {reason}")
        self._alerted_problems = (cycle.id, dict(prices.problems))

    def _halted_symbols(self) -> dict[str, str]:
        newest_rows = {row.symbol: row for row in self._c.ledger.store.rows(schema.symbol_halts)}
        return {symbol: row.reason for symbol, row in newest_rows.items() if row.halted}

    def _record_equity(self, session: str) -> None:
        """Write own equity at the last closes for a session, and check the loss limits."""
        c = self._c
        equity = self.equity()
        now = self._c.clock.now()
        values = {"equity": str(equity), "cash": str(self.cash), "broker_equity": str(c.broker.account().equity)}
        if c.ledger.store.last(schema.equity, schema.equity.c.session == session) is None:
            c.ledger.store.add(schema.equity, now, session=session, **values)
            for trader in self.traders if len(self.traders) > 1 else ():
                values = {"run": trader.config.name, "equity": str(trader.equity()), "cash": str(trader.cash)}
                c.ledger.store.add(schema.strategy_equity, now, session=session, **values)
        self._check_losses(equity, session)

    def _check_losses(self, equity: Decimal, session: str) -> None:
        """Tighten the risk state if own equity exceeds a loss limit. session: session date, empty within a session."""
        c = self._c
        breach = c.risk.loss_breach(equity, *self._previous_and_peak_equity(equity, session))
        if breach is not None and c.risk.tighten(RiskState.REDUCING, breach, c.clock.now()):
            c.alert("critical", "reducing", f"{breach}: only reducing orders are sent until `paper resume`")

    def _previous_and_peak_equity(self, equity: Decimal, session: str) -> tuple[Decimal, Decimal]:
        """Return the equity of the session before, and the highest since trading was last resumed, both adjusted."""
        store = self._c.ledger.store
        resumption = store.last(schema.risk_states, schema.risk_states.c.state == RiskState.ACTIVE.value)
        rows = store.rows(schema.equity, schema.equity.c.session != session)
        marks = [(row.at, Decimal(row.equity)) for row in rows]
        start, *values = adjusted_equity(store, self._c.config, [*marks, (NOW, equity)])
        since = resumption.at if resumption is not None else ""
        earlier_values = [value for (at, _), value in zip(marks, values, strict=False) if at > since]
        if not earlier_values:
            return (equity, equity) if resumption is not None else (start, max(start, equity))
        return earlier_values[-1], max(*earlier_values, equity)

    def _record_fetch(self, table: BarTable, adjustment: str) -> None:
        days = [str(day) for day in table.times[[0, -1]].astype("datetime64[D]")]
        self._c.ledger.store.add(
            schema.price_fetches, self._c.clock.now(), feed=table.feed, adjustment=adjustment, start=days[0],
            end=days[1], symbols=len(table.symbols), sha256=table_sha256(table),
        )  # fmt: skip


def check_assets(broker: Broker, config: PaperConfig) -> None:
    """Raises ConfigError for symbols that cannot be traded, and BrokerError if the assets cannot be queried."""
    assets = broker.assets(config.symbols)
    faults = {
        "unknown to the broker": [s for s in config.symbols if s not in assets],
        "not tradable at the broker": [s for s, asset in assets.items() if not asset.tradable],
    }
    if config.orders.fractional:
        whole_share_symbols = [s for s, asset in assets.items() if asset.tradable and not asset.fractionable]
        faults["not traded in fractions (set orders.fractional = false)"] = whole_share_symbols
    for fault, symbols in faults.items():
        if symbols:
            raise ConfigError(f"symbols: {', '.join(sorted(symbols))}: {fault}; remove them from the config")


def _reserve(intent: Intent) -> Decimal:
    """What a broker reserves for each share of a purchase."""
    return intent.reference_price if intent.limit_price is None else intent.limit_price
