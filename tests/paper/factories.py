"""Synthetic prices, configs, strategies and faulty brokers for the paper trading tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from finrl_pod.data.panel import make_panel
from finrl_pod.paper.brokers.simulated import SimulatedBroker
from finrl_pod.paper.domain.clocks import ManualClock
from finrl_pod.paper.domain.records import SOLD_BY_OTHERS, Order, TimeInForce
from finrl_pod.paper.domain.schedule import AUCTION_GRACE, Calendar
from finrl_pod.paper.execution.trader import LoadedStrategy
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.ledger import Booking
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.runtime.daemon import Daemon, build_daemon
from finrl_pod.paper.settings import (
    BrokerSettings,
    DataSettings,
    MonitoringSettings,
    OrderSettings,
    PaperConfig,
    RiskSettings,
    ScheduleSettings,
    TimingSettings,
)
from finrl_pod.types import Floats, Panel, Positions, Window

SYMBOLS = ("AA", "BB", "CC")
PAIRS = ("BTC/USD", "ETH/USD", "SOL/USD")
START, END = date(2024, 1, 2), date(2024, 3, 28)


def prices(start: date = START, end: date = END, seed: int = 0, symbols: Sequence[str] = SYMBOLS) -> Panel:
    """Random-walk bars on the exchange's sessions, with prices rounded to cents."""
    days = [s.date for s in Calendar().sessions(start, end)]
    draw = np.random.default_rng(seed)
    returns = draw.normal(0.0005, 0.015, (len(days), len(symbols)))
    close = np.round(50 * np.exp(np.cumsum(returns, axis=0)) * np.arange(1, len(symbols) + 1), 2)
    open_ = np.round(close * np.exp(draw.normal(0, 0.005, close.shape)), 2)
    columns = {
        "open": open_,
        "high": np.maximum(open_, close) + 0.5,
        "low": np.minimum(open_, close) - 0.5,
        "close": close,
        "volume": np.full(close.shape, 1e6),
    }
    return make_panel(
        np.array(days, dtype="datetime64[ns]"), list(symbols), columns, name="synthetic", source="synthetic"
    )


def crypto_prices(first: date = date(2024, 2, 1), count: int = 60) -> Panel:
    """Random-walk bars of crypto pairs on every day, weekends included."""
    days = [first + timedelta(days=k) for k in range(count)]
    draw = np.random.default_rng(0)
    walk = np.cumsum(draw.normal(0, 0.02, (count, len(PAIRS))), axis=0)
    close = np.round(np.array([60_000.0, 3_000.0, 120.0]) * np.exp(walk), 2)
    opened = np.round(close * np.exp(draw.normal(0, 0.005, close.shape)), 2)
    columns = {
        "open": opened, "high": np.maximum(opened, close) * 1.01, "low": np.minimum(opened, close) * 0.99,
        "close": close, "volume": np.full(close.shape, 1e6),
    }  # fmt: skip
    return make_panel(np.array(days, "datetime64[ns]"), list(PAIRS), columns, name="pairs", source="synthetic")


def config(**changes: Any) -> PaperConfig:
    """A config with loose risk limits, a simulated broker without costs and opening auctions."""
    base = PaperConfig(
        name="test",
        strategy="synthetic",
        symbols=SYMBOLS,
        broker=BrokerSettings(kind="simulated"),
        schedule=ScheduleSettings("open"),
        orders=OrderSettings(collar=0.2),
        risk=RiskSettings(max_position=1.0, max_order=1.0, max_turnover=4.0, daily_loss=0.9, drawdown=0.9),
        data=DataSettings(window=0),
        timing=TimingSettings(poll=60.0),
        monitoring=MonitoringSettings(summary_minutes=0),
    )
    return dataclasses.replace(base, **changes)


@dataclasses.dataclass
class RotatingStrategy:
    """Holds a different pair of the three symbols each day, so every decision buys and sells."""

    name: str = "rotating"
    feature_names: tuple[str, ...] = ()
    lookback: int = 2

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        day = int(window.times[-1].astype("datetime64[D]").astype(int))
        weights = np.full(len(window.symbols), 0.5)
        weights[day % len(window.symbols)] = 0.0
        return weights


@dataclasses.dataclass
class SwappingStrategy:
    """Returns weights (0.6, 0.4) without positions and (0.2, 0.7) otherwise."""

    name: str = "swapping"
    feature_names: tuple[str, ...] = ()
    lookback: int = 2

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        return np.array([0.2, 0.7] if np.any(positions.weights) else [0.6, 0.4])


@dataclasses.dataclass
class FunctionStrategy:
    """Delegates target_weights to a function of the window."""

    function: Callable[[Window], Any]
    name: str = "function"
    feature_names: tuple[str, ...] = ()
    lookback: int = 2

    def target_weights(self, window: Window, positions: Positions) -> Any:
        return self.function(window)


class FixedSource:
    """A strategy source that always returns the same strategy."""

    def __init__(self, strategy: Any) -> None:
        self.loaded = LoadedStrategy(strategy, "synthetic", "synthetic strategy for tests")

    def current(self) -> LoadedStrategy:
        return self.loaded


class NoHeartbeat:
    def beat(self, *, recovered: bool, trading: bool) -> None:
        pass


class HostClock:
    """A host clock whose wall time can be stepped; suspended time is not counted by `monotonic`.

    max_sleep: longest sleep in simulated seconds, so that the daemon keeps polling for commands.
    """

    def __init__(self, clock: ManualClock, max_sleep: float = 600.0) -> None:
        self.max_sleep = max_sleep
        self._clock = clock
        self._asleep = 0.0
        self.step = timedelta(0)
        self.steps: list[tuple[datetime, timedelta]] = []  # (time of the step, new offset)
        self.sleeps: list[tuple[datetime, float]] = []  # (time of the suspension, seconds)

    def now(self) -> datetime:
        return self._clock.now() + self.step

    def monotonic(self) -> float:
        return self._clock.monotonic() - self._asleep

    def sleep(self, seconds: float, max_real_seconds: float = float("inf")) -> None:
        """Sleep for `max_sleep` simulated seconds at most."""
        seconds = min(seconds, self.max_sleep)
        while self.sleeps and self._clock.now() + timedelta(seconds=seconds) >= self.sleeps[0][0]:
            self._asleep += self.sleeps[0][1]
            self._clock.sleep(self.sleeps.pop(0)[1])
        self._clock.sleep(seconds)
        while self.steps and self._clock.now() >= self.steps[0][0]:
            self.step = self.steps.pop(0)[1]

    def real_seconds(self, seconds: float) -> float:
        return self._clock.real_seconds(seconds)


class PartialFillBroker(SimulatedBroker):
    """Fills two fifths of each DAY order at the open; the rest stays live until cancelled or expired."""

    def _book_fill(self, order: Order, quantity: Decimal, price: Decimal, at: datetime) -> None:
        if order.time_in_force is TimeInForce.DAY:
            quantity = (quantity * 2 / 5).quantize(Decimal("0.001"))
        super()._book_fill(order, quantity, price, at)


class FaultyBroker:
    """A simulated broker with replaceable methods; an override receives the original method as its first argument.

    Example: `broker.overrides["submit"] = lambda original, request: Ambiguous("timeout")`.
    """

    def __init__(self, broker: SimulatedBroker) -> None:
        self.broker = broker
        self.overrides: dict[str, Callable[..., Any]] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        original = getattr(self.broker, name)
        if not callable(original):
            return original

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append((name, arguments))
            if name in self.overrides:
                return self.overrides[name](original, *arguments, **named)
            return original(*arguments, **named)

        return call

    def called(self, name: str) -> int:
        return sum(1 for called, _ in self.calls if called == name)


class SimulatedDaemon:
    """A daemon on a simulated market that can be restarted with the same journal and broker."""

    def __init__(
        self, folder: Path, settings: PaperConfig | None = None, strategy: Any = None, panel: Panel | None = None,
        start: date = date(2024, 1, 8), kind: type[SimulatedBroker] = SimulatedBroker, max_sleep: float = 600.0,
        strategies: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        """strategies: one for each of `[[strategies]]` in the settings, in place of `strategy`."""
        self.config = settings or config()
        self.journal = folder / "journal.sqlite"
        session = Calendar().sessions(start, start + timedelta(days=7))[0]
        self.clock = ManualClock(session.close + AUCTION_GRACE + timedelta(minutes=1))
        self.host = HostClock(self.clock, max_sleep)
        self.panel = panel or prices()
        self.account = kind(self.panel, self.clock, Decimal(100_000))
        self.broker = FaultyBroker(self.account)
        self.source = FixedSource(strategy or RotatingStrategy())
        self.sources = [FixedSource(each) for each in strategies]
        self.alerts: list[tuple[str, str, str]] = []
        self.restart()

    def restart(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        self.store = Store.create_or_open(self.journal)
        self.daemon = build_daemon(
            self.config, self.store, self.broker, self.broker, self.sources or [self.source], self.host, NoHeartbeat(),  # type: ignore[arg-type]
            lambda *alert: self.alerts.append(alert),
        )  # fmt: skip

    def run_to(self, moment: datetime) -> Daemon:
        self.daemon.run(until=lambda: self.clock.now() >= moment)
        return self.daemon

    def day(self, day: date, hour: int = 22) -> Daemon:
        """Run until `hour` (UTC) of the day; the default is after the close in winter."""
        return self.run_to(datetime(day.year, day.month, day.day, hour, tzinfo=UTC))

    # ------------------------------------------------------------------ queries and checks

    def alert_kinds(self) -> set[str]:
        return {kind for _, kind, _ in self.alerts}

    def intents(self) -> list[Any]:
        return list(self.store.rows(schema.intents))

    def intent_state(self, intent: Any) -> str:
        events = schema.intent_events
        return str(self.store.last(events, events.c.intent_id == intent.id).state)

    def assert_journal_matches_broker(self) -> None:
        """Assert that the journal's orders, fills and positions match the broker's and no intent is overfilled."""
        at_broker = {o.client_order_id: o for o in self.account.orders("all") if o.client_order_id.startswith("fp1.")}
        rows = {row.id: row for row in self.store.rows(schema.orders)}
        booked: dict[str, Decimal] = dict.fromkeys(at_broker, Decimal(0))
        value: dict[str, Decimal] = dict.fromkeys(at_broker, Decimal(0))
        by_intent: dict[int, Decimal] = {}
        for fill in self.store.rows(schema.fills):
            order = rows[fill.order_id]
            booked[order.client_order_id] += Decimal(fill.quantity)
            value[order.client_order_id] += Decimal(fill.quantity) * Decimal(fill.price)
            by_intent[order.intent_id] = by_intent.get(order.intent_id, Decimal(0)) + Decimal(fill.quantity)
        assert booked == {name: order.filled_quantity for name, order in at_broker.items()}
        for name, order in at_broker.items():
            if order.filled_average_price is not None:
                assert abs(value[name] - order.filled_quantity * order.filled_average_price) < Decimal("1e-6")
        for intent in self.intents():
            assert by_intent.get(intent.id, Decimal(0)) <= Decimal(intent.quantity)
        names: Mapping[str, int] = {row.client_order_id: row.intent_id for row in rows.values()}
        live = [names[name] for name, order in at_broker.items() if order.live]
        assert len(live) == len(set(live)), "an intent has two live orders"
        own = {symbol: shares for symbol, shares in self.daemon.trader.positions.items() if shares}
        external = self.daemon._c.ledger.external_positions()
        assert {p.symbol: p.quantity for p in self.account.positions()} == {
            s: q for s in {*own, *external} if (q := own.get(s, Decimal(0)) + external.get(s, Decimal(0)))
        }


def for_first_calls(times: int, replacement: Any) -> Any:
    """Override that calls `replacement` for the first `times` calls and the original method afterwards."""
    remaining = [times]

    def override(original: Any, *arguments: Any) -> Any:
        if remaining[0]:
            remaining[0] -= 1
            return replacement(original, *arguments)
        return original(*arguments)

    return override


def write_off(symbol: str, quantity: Decimal, cash: Decimal, now: datetime) -> Booking:
    """Own shares that other clients sold, as `acknowledge` writes them off."""
    return Booking("write-off", SOLD_BY_OTHERS, symbol, now.date(), -quantity, quantity, cash)


def own_orders(sim: SimulatedDaemon) -> list[Any]:
    return [o for o in sim.account.orders("all") if o.client_order_id.startswith("fp1.")]
