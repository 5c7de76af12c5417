"""Puts a daemon together from its parts."""

from __future__ import annotations

from collections.abc import Callable

from finrl_pod.paper.broker import Broker, Clock, DataFeed
from finrl_pod.paper.clocks import BrokerTime
from finrl_pod.paper.control import Control
from finrl_pod.paper.daemon import Daemon, Watch
from finrl_pod.paper.desk import Alert, Desk
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.book import Book
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.reconcile import Reconciler
from finrl_pod.paper.risk import Risk
from finrl_pod.paper.settings import PaperConfig
from finrl_pod.paper.stream_watch import StreamWatch
from finrl_pod.paper.trader import Parts, StrategySource


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
