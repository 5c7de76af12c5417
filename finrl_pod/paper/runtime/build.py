"""Builds a daemon from its components and records its settings in the journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from finrl_pod.paper.domain.clocks import BrokerTime
from finrl_pod.paper.domain.port import Broker, Clock, DataFeed
from finrl_pod.paper.execution.order_manager import Alert, OrderManager
from finrl_pod.paper.execution.reconcile import Reconciler
from finrl_pod.paper.execution.risk import RiskManager
from finrl_pod.paper.execution.stream_monitor import STALE_STREAM_SECONDS, StreamMonitor
from finrl_pod.paper.execution.trader import StrategySource, TradingComponents
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.ledger import Ledger
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.runtime.control import CommandHandler
from finrl_pod.paper.runtime.daemon import Daemon, HeartbeatSink
from finrl_pod.paper.settings import PaperConfig, allocations, pack


def build_daemon(
    config: PaperConfig, store: Store, broker: Broker, feed: DataFeed, sources: Sequence[StrategySource], clock: Clock,
    heartbeat: HeartbeatSink, send_alert: Alert,
) -> Daemon:  # fmt: skip
    """Return a daemon ready to run.

    sources: one for each of `allocations(config)`. send_alert: called with every alert, also with those
    that could not be written to the journal.

    Raises FinrlPodError if the source has no strategy, or one whose mandate contradicts the config.
    """
    time = BrokerTime(clock)
    ledger = Ledger(store)
    risk = RiskManager(store, config.risk, config.orders)

    def alert(level: str, kind: str, message: str) -> None:
        try:
            store.add(schema.alerts, time.now(), level=level, kind=kind, message=message)
        finally:  # also if the journal cannot be written
            send_alert(level, kind, message)

    idle: list[Callable[[float], None]] = []  # idle function of the daemon, built last
    stream = StreamMonitor(broker, time, STALE_STREAM_SECONDS, alert)
    orders = OrderManager(
        broker, ledger, risk, time, config.timing, alert, [config.name, *(part.name for part in allocations(config))],
        lambda seconds: idle[0](seconds), stream.report_polled_change,
    )  # fmt: skip
    reconciler = Reconciler(orders)
    control = CommandHandler(orders, risk, reconciler, config)
    components = TradingComponents(config, broker, feed, sources, ledger, risk, orders, reconciler, stream, time, alert)
    daemon = Daemon(components, time, heartbeat, control)
    idle.append(daemon.idle)
    return daemon


def record_settings(store: Store, config: PaperConfig, now: datetime) -> None:
    """Write the settings to the journal if they differ from the last ones."""
    content = pack(config)
    last = store.last(schema.settings)
    if last is None or last.content != content:
        store.add(schema.settings, now, content=content)
