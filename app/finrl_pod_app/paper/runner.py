"""`finrl-pod paper run`: the daemon as a process, with its signals, its lease, and what is seen of it from outside."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from finrl_pod.errors import BrokerError, ConfigError, DaemonError, Interrupted, JournalError
from finrl_pod.paper.brokers.factory import open_broker, open_clock
from finrl_pod.paper.brokers.port import Broker, Clock
from finrl_pod.paper.execution.risk import Risk
from finrl_pod.paper.journal.lease import Lease
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.monitoring.alerts import Alerts
from finrl_pod.paper.monitoring.health import HealthServer
from finrl_pod.paper.monitoring.heartbeat import Heartbeat
from finrl_pod.paper.monitoring.logs import open_log
from finrl_pod.paper.monitoring.status import facts
from finrl_pod.paper.runtime.build import assemble, keep
from finrl_pod.paper.runtime.control import halt_is_waiting, obey_halt
from finrl_pod.paper.runtime.daemon import Daemon
from finrl_pod.paper.settings import PaperConfig
from finrl_pod_app.paper.sources import strategy_source

HALT_LOOK = 0.25  # real seconds between two looks of the thread that obeys a halt while the loop is busy
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def run_daemon(config: PaperConfig, *, allow_unpromoted: bool = False) -> None:
    """Trade until told to stop.

    Raises FinrlPodError: AuthenticationError, JournalError and DaemonError end a daemon that runs.
    SIGTERM and SIGHUP end it with its own orders cancelled; so does Ctrl-C, which raises Interrupted.
    """
    if allow_unpromoted and urlsplit(config.broker.url).hostname not in LOOPBACK:
        raise ConfigError(
            f"--allow-unpromoted works against a server on this machine alone, broker.url is {config.broker.url!r}"
        )
    source = strategy_source(config, allow_unpromoted=allow_unpromoted)
    clock = open_clock(config.broker)
    log = open_log()
    with ExitStack() as closing:
        closing.enter_context(Lease(Path(config.journal)))
        store = Store.create_or_open(Path(config.journal))
        closing.callback(store.close)
        keep(store, config, clock.now())
        alerts = Alerts(config.outside.webhook, log)
        closing.callback(alerts.close)
        broker, feed = open_broker(config.broker, clock)
        closing.callback(broker.close)
        heartbeat = Heartbeat(Path(config.outside.heartbeat) if config.outside.heartbeat else None)
        if config.outside.port:
            server = HealthServer(config.outside.port, heartbeat, lambda: facts(store, config))
            closing.callback(server.close)
        daemon = assemble(config, store, broker, feed, source, clock, heartbeat, alerts.tell)
        risk = Risk(store, config.risk, config.orders)
        log.info("started", name=config.name, journal=config.journal, broker=broker.name, feed=feed.name)
        with _signals(daemon) as caught, _halting(store, risk, broker, clock, log):
            try:
                daemon.run()
            except DaemonError:
                log.error("failed", exc_info=True)
                raise
        log.info("stopped", name=config.name)
        if signal.SIGINT in caught:
            raise Interrupted("interrupted: own orders were cancelled, the journal is complete; start it again at will")


@contextmanager
def _signals(daemon: Daemon) -> Iterator[list[int]]:
    """SIGTERM, SIGINT and SIGHUP (a closed terminal) ask the daemon to stop; yields the list of those that came."""
    caught: list[int] = []

    def ask(number: int, _: Any) -> None:
        caught.append(number)
        daemon.stop()

    heeded = [n for n in STOPPING if signal.getsignal(n) is not signal.SIG_IGN]  # nohup has one ignored
    before = {number: signal.signal(number, ask) for number in heeded}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _halting(store: Store, risk: Risk, broker: Broker, clock: Clock, log: Any) -> Iterator[None]:
    """A second thread that writes a halt down and cancels own orders, whatever the loop is busy with."""
    over = threading.Event()

    def watch() -> None:
        obeyed = False
        while not over.wait(HALT_LOOK):
            try:
                waiting = halt_is_waiting(store)
                if waiting and not obeyed:
                    obey_halt(store, risk, broker, clock)
                obeyed = waiting
            except (BrokerError, JournalError) as error:
                log.warning("halt", reason=str(error))

    thread = threading.Thread(target=watch, name="halt", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
