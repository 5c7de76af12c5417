"""Builds a daemon from its parts, and records its settings in the journal."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime

from finrl_pod.paper.brokers.port import Broker, Clock, DataFeed
from finrl_pod.paper.execution.order_manager import Alert, Desk
from finrl_pod.paper.execution.reconcile import Reconciler
from finrl_pod.paper.execution.risk import Risk
from finrl_pod.paper.execution.trading_cycle import Parts, StrategySource
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.book import Book
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.runtime.clocks import BrokerTime
from finrl_pod.paper.runtime.control import Control
from finrl_pod.paper.runtime.daemon import Daemon, Watch
from finrl_pod.paper.runtime.stream_watch import StreamWatch
from finrl_pod.paper.settings import PaperConfig, plain


def assemble(
    config: PaperConfig, store: Store, broker: Broker, feed: DataFeed, source: StrategySource, clock: Clock,
    watch: Watch, tell: Alert,
) -> Daemon:  # fmt: skip
    """A daemon that is ready to run. tell: is handed every alert after it was journaled."""
    time = BrokerTime(clock)
    book, risk = Book(store), Risk(store, config.risk, config.orders)

    def alert(level: str, kind: str, message: str) -> None:
        store.add(schema.alerts, time.now(), level=level, kind=kind, message=message)
        tell(level, kind, message)

    waits: list[Callable[[float], None]] = []
    stream = StreamWatch(broker, time, config.timing.stale_stream, alert)
    desk = Desk(
        broker, book, risk, time, config.timing, alert, lambda seconds: waits[0](seconds), stream.found_by_polling
    )
    reconciler = Reconciler(desk, config.name)
    control = Control(desk, risk, reconciler, config.name, config.timing.shutdown)
    parts = Parts(config, broker, feed, source, book, risk, desk, reconciler, stream, time, alert)
    daemon = Daemon(parts, time, watch, control)
    waits.append(daemon.idle)
    return daemon


def keep(store: Store, config: PaperConfig, at: datetime) -> None:
    """Write the settings down, where they are not what was written last."""
    content = json.dumps(plain(config), sort_keys=True)
    last = store.last(schema.settings)
    if last is None or last.content != content:
        store.add(schema.settings, at, content=content)
