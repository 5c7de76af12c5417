"""Prices, settings, strategies and a broker that can be made to misbehave, for the tests of paper trading."""

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
from finrl_pod.paper.execution.trader import LoadedStrategy
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.records import Order, TimeInForce
from finrl_pod.paper.runtime.build import build_daemon
from finrl_pod.paper.runtime.clocks import ManualClock
from finrl_pod.paper.runtime.daemon import Daemon
from finrl_pod.paper.runtime.schedule import AUCTION_GRACE, Calendar
from finrl_pod.paper.settings import (
    BrokerSettings,
    DataSettings,
    OrderSettings,
    PaperConfig,
    RiskSettings,
    ScheduleSettings,
    TimingSettings,
)
from finrl_pod.types import Floats, Panel, Positions, Window

SYMBOLS = ("AA", "BB", "CC")
START, END = date(2024, 1, 2), date(2024, 3, 28)


def prices(start: date = START, end: date = END, seed: int = 0, symbols: Sequence[str] = SYMBOLS) -> Panel:
    """A random walk with opening prices on the exchange's sessions, to the cent."""
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
    return make_panel(np.array(days, dtype="datetime64[ns]"), list(symbols), columns, name="made", source="made")


def config(**changes: Any) -> PaperConfig:
    """Loose limits, a simulated broker without costs, the opening auction."""
    base = PaperConfig(
        name="test",
        strategy="made",
        symbols=SYMBOLS,
        broker=BrokerSettings(kind="simulated"),
        schedule=ScheduleSettings("open"),
        orders=OrderSettings(collar=0.2),
        risk=RiskSettings(max_position=1.0, max_order=1.0, max_turnover=4.0, daily_loss=0.9, drawdown=0.9),
        data=DataSettings(window=0),
        timing=TimingSettings(poll=60.0),
    )
    return dataclasses.replace(base, **changes)


@dataclasses.dataclass
class RotatingStrategy:
    """Holds another pair of the three symbols each day: sales and purchases at every decision."""

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
    """Two symbols, 60 and 40 percent, the other way round the next day."""

    name: str = "swapping"
    feature_names: tuple[str, ...] = ()
    lookback: int = 2

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        return np.array([0.2, 0.7] if np.any(positions.weights) else [0.6, 0.4])


@dataclasses.dataclass
class FunctionStrategy:
    """Returns what a function says."""

    answer: Callable[[Window], Any]
    name: str = "told"
    feature_names: tuple[str, ...] = ()
    lookback: int = 2

    def target_weights(self, window: Window, positions: Positions) -> Any:
        return self.answer(window)


class FixedSource:
    """A strategy that is simply there."""

    def __init__(self, strategy: Any) -> None:
        self.loaded = LoadedStrategy(strategy, "made", "made for a test")

    def current(self) -> LoadedStrategy:
        return self.loaded


class NoHeartbeat:
    def beat(self, *, trading: bool) -> None:
        pass


class HostClock:
    """The clock of a machine: it can be set wrong (`step`), and suspended, which `monotonic` does not count.

    max_sleep: simulated seconds after which a sleep returns, so that the daemon polls for commands meanwhile.
    """

    def __init__(self, true: ManualClock, max_sleep: float = 600.0) -> None:
        self.max_sleep = max_sleep
        self._true = true
        self._asleep = 0.0
        self.step = timedelta(0)
        self.steps: list[tuple[datetime, timedelta]] = []  # when the clock is set, and its new deviation
        self.sleeps: list[tuple[datetime, float]] = []  # when the machine is suspended, and for how many seconds

    def now(self) -> datetime:
        return self._true.now() + self.step

    def monotonic(self) -> float:
        return self._true.monotonic() - self._asleep

    def sleep(self, seconds: float, max_real_seconds: float = float("inf")) -> None:
        """Sleep for `max_sleep` simulated seconds at most."""
        seconds = min(seconds, self.max_sleep)
        while self.sleeps and self._true.now() + timedelta(seconds=seconds) >= self.sleeps[0][0]:
            self._asleep += self.sleeps[0][1]
            self._true.sleep(self.sleeps.pop(0)[1])
        self._true.sleep(seconds)
        while self.steps and self._true.now() >= self.steps[0][0]:
            self.step = self.steps.pop(0)[1]

    def real_seconds(self, seconds: float) -> float:
        return self._true.real_seconds(seconds)


class PartialFillBroker(SimulatedBroker):
    """Fills two fifths of each DAY order at the open; the rest stays live until it is cancelled or the day ends."""

    def _book_fill(self, order: Order, quantity: Decimal, price: Decimal, at: datetime) -> None:
        if order.time_in_force is TimeInForce.DAY:
            quantity = (quantity * 2 / 5).quantize(Decimal("0.001"))
        super()._book_fill(order, quantity, price, at)


class FaultyBroker:
    """A simulated broker whose methods can be replaced: `odd.overrides["submit"] = f`; f gets the true method first."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self.true = broker
        self.overrides: dict[str, Callable[..., Any]] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        true = getattr(self.true, name)
        if not callable(true):
            return true

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append((name, arguments))
            if name in self.overrides:
                return self.overrides[name](true, *arguments, **named)
            return true(*arguments, **named)

        return call

    def called(self, name: str) -> int:
        return sum(1 for called, _ in self.calls if called == name)


class SimulatedDaemon:
    """A daemon on a simulated market, which can be started again on the same journal and broker."""

    def __init__(
        self, folder: Path, settings: PaperConfig | None = None, strategy: Any = None, panel: Panel | None = None,
        start: date = date(2024, 1, 8), kind: type[SimulatedBroker] = SimulatedBroker, max_sleep: float = 600.0,
    ) -> None:  # fmt: skip
        self.config = settings or config()
        self.journal = folder / "journal.sqlite"
        session = Calendar().sessions(start, start + timedelta(days=7))[0]
        self.clock = ManualClock(session.close + AUCTION_GRACE + timedelta(minutes=1))
        self.host = HostClock(self.clock, max_sleep)
        self.panel = panel or prices()
        self.account = kind(self.panel, self.clock, Decimal(100_000))
        self.broker = FaultyBroker(self.account)
        self.source = FixedSource(strategy or RotatingStrategy())
        self.alerts: list[tuple[str, str, str]] = []
        self.restart()

    def restart(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        self.store = Store.create_or_open(self.journal)
        self.daemon = build_daemon(
            self.config, self.store, self.broker, self.broker, self.source, self.host, NoHeartbeat(),  # type: ignore[arg-type]
            lambda *alert: self.alerts.append(alert),
        )  # fmt: skip

    def run_to(self, moment: datetime) -> Daemon:
        self.daemon.run(until=lambda: self.clock.now() >= moment)
        return self.daemon

    def day(self, day: date, hour: int = 22) -> Daemon:
        """Run to that hour (UTC) of a day; 22 is after the close in winter."""
        return self.run_to(datetime(day.year, day.month, day.day, hour, tzinfo=UTC))

    # ------------------------------------------------------------------ what must hold

    def alert_kinds(self) -> set[str]:
        return {kind for _, kind, _ in self.alerts}

    def intents(self) -> list[Any]:
        return list(self.store.rows(schema.intents))

    def state_of(self, intent: Any) -> str:
        events = schema.intent_events
        return str(self.store.last(events, events.c.intent_id == intent.id).state)

    def check_agreement(self) -> None:
        """The journal's orders, fills and positions are the broker's; nothing was filled beyond its intent."""
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
        foreign = self.daemon._c.ledger.external_positions()
        assert {p.symbol: p.quantity for p in self.account.positions()} == {
            s: q for s in {*own, *foreign} if (q := own.get(s, Decimal(0)) + foreign.get(s, Decimal(0)))
        }


def first(times: int, otherwise: Any) -> Any:
    """Do something odd at the first calls, then what the broker does."""
    left = [times]

    def odd(true: Any, *arguments: Any) -> Any:
        if left[0]:
            left[0] -= 1
            return otherwise(true, *arguments)
        return true(*arguments)

    return odd


def own_orders(sim: SimulatedDaemon) -> list[Any]:
    return [o for o in sim.account.orders("all") if o.client_order_id.startswith("fp1.")]
