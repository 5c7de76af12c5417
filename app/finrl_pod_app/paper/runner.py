"""`finrl-pod paper run`: the daemon process with its signals, journal lock and monitoring."""

from __future__ import annotations

import dataclasses
import functools
import os
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
from finrl_pod.paper.execution.mandate_limits import check_strategies, recorded_limits
from finrl_pod.paper.execution.risk import RiskManager
from finrl_pod.paper.journal.store import JournalLock, Store
from finrl_pod.paper.monitoring.alerts import PING, Alerts, DeadManPing
from finrl_pod.paper.monitoring.health import HealthServer, Heartbeat
from finrl_pod.paper.monitoring.logs import open_log
from finrl_pod.paper.monitoring.status import metrics, status_text
from finrl_pod.paper.monitoring.symbols import symbol_figures
from finrl_pod.paper.monitoring.telegram import TOKEN, TelegramCommands
from finrl_pod.paper.runtime.build import build_daemon, record_settings
from finrl_pod.paper.runtime.control import apply_halt, halt_pending
from finrl_pod.paper.runtime.daemon import Daemon
from finrl_pod.paper.settings import PaperConfig
from finrl_pod_app.paper.sources import strategy_sources

HALT_POLL = 0.25  # real seconds between two checks of the thread that applies a halt while the main loop is busy
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def run_daemon(config: PaperConfig, *, allow_unpromoted: bool = False) -> None:
    """Trade until a stop command or signal.

    SIGTERM and SIGHUP cancel own orders and return; so does Ctrl-C, which then raises Interrupted.
    Raises FinrlPodError; AuthenticationError, JournalError and DaemonError end a running daemon.
    """
    if allow_unpromoted and urlsplit(config.broker.url).hostname not in LOOPBACK:
        raise ConfigError(f"--allow-unpromoted needs a server on this machine, but broker.url is {config.broker.url!r}")
    sources = strategy_sources(config, allow_unpromoted=allow_unpromoted)
    strategies = [source.current().strategy for source in sources]
    check_strategies(config, strategies)
    limits = recorded_limits(config, strategies)
    clock = open_clock(config.broker)
    log = open_log()
    with ExitStack() as closing:
        alerts = Alerts(config.monitoring.webhook, log, spool=alert_spool(config))
        closing.callback(alerts.close)
        try:
            closing.enter_context(JournalLock(Path(config.journal)))
            store = Store.create_or_open(Path(config.journal))
            closing.callback(store.close)
            record_settings(store, dataclasses.replace(config, risk=limits), clock.now())
        except (JournalError, OSError) as error:
            alerts.send("critical", "journal", f"the daemon does not start: {error}")
            raise
        broker, feed = open_broker(config.broker, clock)
        closing.callback(broker.close)
        heartbeat = Heartbeat(Path(config.monitoring.heartbeat) if config.monitoring.heartbeat else None)
        if config.monitoring.port:
            server = HealthServer(
                config.monitoring.port, heartbeat, lambda: metrics(store, config), lambda: symbol_figures(store)
            )
            closing.callback(server.close)
        daemon = build_daemon(config, store, broker, feed, sources, clock, heartbeat, alerts.send)
        if os.environ.get(PING):
            well = functools.partial(_is_well, heartbeat, daemon)
            ping = DeadManPing(os.environ[PING], config.monitoring.ping_seconds, well, log)
            closing.callback(ping.close)
        if os.environ.get(TOKEN):
            status = functools.partial(status_text, store, config)
            users, url = config.monitoring.telegram_users, config.monitoring.telegram_url
            closing.callback(TelegramCommands(os.environ[TOKEN], users, store, status, log, url).close)
        risk = RiskManager(store, limits, config.orders)
        log.info("started", name=config.name, journal=config.journal, broker=broker.name, feed=feed.name)
        with _stop_on_signals(daemon) as caught, _halt_thread(store, risk, broker, clock, log):
            try:
                daemon.run()
            except DaemonError:
                log.error("failed", exc_info=True)
                raise
        log.info("stopped", name=config.name)
        if signal.SIGINT in caught:
            raise Interrupted("interrupted: own orders were cancelled and the journal is complete")


def alert_spool(config: PaperConfig) -> Path:
    """The file of undelivered alerts, next to the journal."""
    journal = Path(config.journal)
    return journal.with_name(f"{journal.name}.alerts.json")


def _is_well(heartbeat: Heartbeat, daemon: Daemon) -> bool:
    return heartbeat.alive and heartbeat.trading and not daemon.in_outage


@contextmanager
def _stop_on_signals(daemon: Daemon) -> Iterator[list[int]]:
    """Stop the daemon on SIGTERM, SIGINT and SIGHUP (a closed terminal). Yields the list of signals received."""
    caught: list[int] = []

    def stop(number: int, _: Any) -> None:
        caught.append(number)
        daemon.stop()

    handled = [n for n in STOP_SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    before = {number: signal.signal(number, stop) for number in handled}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _halt_thread(store: Store, risk: RiskManager, broker: Broker, clock: Clock, log: Any) -> Iterator[None]:
    """Run a second thread that applies a halt immediately, also while the main loop is busy."""
    finished = threading.Event()

    def watch() -> None:
        applied = False
        while not finished.wait(HALT_POLL):
            try:
                waiting = halt_pending(store)
                if waiting and not applied:
                    apply_halt(store, risk, broker, clock)
                applied = waiting
            except (BrokerError, JournalError) as error:
                log.warning("halt", reason=str(error))

    thread = threading.Thread(target=watch, name="halt", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
