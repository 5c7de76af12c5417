"""`finrl-pod paper run`: the daemon process with its signals, journal lock and monitoring."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from finrl_pod.errors import BrokerError, ConfigError, DaemonError, Interrupted, JournalError, SetupError
from finrl_pod.paper.brokers.alpaca.credentials import is_loopback
from finrl_pod.paper.brokers.factory import open_broker, open_clock
from finrl_pod.paper.domain.port import Broker, Clock
from finrl_pod.paper.execution.mandate_limits import check_strategies, recorded_limits
from finrl_pod.paper.journal.row_check import check_rows
from finrl_pod.paper.journal.store import JournalLock, Store
from finrl_pod.paper.monitoring.alerts import PING, PING_SECONDS, Alerts, DeadManPing
from finrl_pod.paper.monitoring.health import HealthServer, Heartbeat
from finrl_pod.paper.monitoring.logs import open_log
from finrl_pod.paper.monitoring.status import Metrics, status_text
from finrl_pod.paper.monitoring.telegram import TOKEN, TelegramCommands
from finrl_pod.paper.runtime.control import apply_halt, halt_pending
from finrl_pod.paper.runtime.daemon import Daemon, build_daemon, record_settings
from finrl_pod.paper.settings import BROKERS, PaperConfig
from finrl_pod_app.paper.owner_checks import check_history, check_journal
from finrl_pod_app.paper.sources import log_deployments, strategy_sources

HALT_POLL = 0.25  # real seconds between two checks of the thread that applies a halt while the main loop is busy
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run_daemon(config: PaperConfig, *, allow_unpromoted: bool = False) -> None:
    """Trade until a stop command or signal.

    SIGTERM and SIGHUP cancel own orders and return; so does Ctrl-C, and then raises Interrupted. Raises
    FinrlPodError; AuthenticationError, JournalError and DaemonError end a running daemon.
    """
    if allow_unpromoted and config.broker.kind not in BROKERS:
        raise ConfigError(f"--allow-unpromoted needs a broker that is built in, got broker.kind {config.broker.kind!r}")
    if allow_unpromoted and not is_loopback(config.broker.url):
        raise ConfigError(f"--allow-unpromoted needs a server on this machine, but broker.url is {config.broker.url!r}")
    sources = strategy_sources(config, allow_unpromoted=allow_unpromoted)
    strategies = [source.current().strategy for source in sources]
    check_strategies(config, strategies)
    check_history(config, strategies)
    limits = recorded_limits(config, strategies)
    clock = open_clock(config.broker)
    log = open_log()
    with ExitStack() as closing:
        alerts = Alerts(config.monitoring.webhook, log, spool=alert_spool(config))
        closing.callback(alerts.close)
        try:
            check_journal(config)
            closing.enter_context(JournalLock(Path(config.journal)))
            store = Store.create_or_open(Path(config.journal))
            closing.callback(store.close)
            check_rows(store)
            record_settings(store, dataclasses.replace(config, risk=limits), clock.now())
        except (JournalError, OSError) as error:
            alerts.send("critical", "journal", f"the daemon does not start: {error}")
            raise
        broker, feed = open_broker(config.broker, clock)
        closing.callback(broker.close)
        heartbeat = Heartbeat(Path(config.monitoring.heartbeat) if config.monitoring.heartbeat else None)
        if config.monitoring.port:
            server = HealthServer(config.monitoring.port, heartbeat, Metrics(store, config))
            closing.callback(server.close)
        daemon = build_daemon(config, store, broker, feed, sources, clock, heartbeat, alerts.send)

        def is_well() -> bool:
            return heartbeat.alive and heartbeat.recovered and not daemon.in_outage

        if os.environ.get(PING):
            closing.callback(DeadManPing(os.environ[PING], PING_SECONDS, is_well, log).close)
        if os.environ.get(TOKEN):
            users = config.monitoring.telegram_users
            commands = TelegramCommands(
                os.environ[TOKEN], users, store, lambda: status_text(store, config), log, alerts.send
            )
            closing.callback(commands.close)
        try:
            log_deployments(config)
        except SetupError as error:  # an account with positions has to be traded all the same
            log.warning("registry of trials", reason=str(error))
        log.info("started", name=config.name, journal=config.journal, broker=broker.name, feed=feed.name)
        with _handle_signals(daemon) as received_signals, _halt_thread(store, broker, clock, log):
            try:
                daemon.run()
            except DaemonError:
                log.error("failed", exc_info=True)
                raise
        log.info("stopped", name=config.name)
        if signal.SIGINT in received_signals:
            raise Interrupted("interrupted: own orders were cancelled and the journal is complete")


def alert_spool(config: PaperConfig) -> Path:
    """The file of undelivered alerts, next to the journal."""
    journal = Path(config.journal)
    return journal.with_name(f"{journal.name}.alerts.json")


@contextmanager
def _handle_signals(daemon: Daemon) -> Iterator[list[int]]:
    """Stop on SIGTERM, SIGINT and SIGHUP. Yields the list of signals that were received."""
    received_signals: list[int] = []

    def stop(number: int, _: Any) -> None:
        received_signals.append(number)
        daemon.stop()

    # nohup ignores SIGHUP.
    numbers = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    previous_handlers = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield received_signals
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


@contextmanager
def _halt_thread(store: Store, broker: Broker, clock: Clock, log: Any) -> Iterator[None]:
    """Run a second thread that applies a halt immediately, also while the main loop is busy."""
    stop_event = threading.Event()

    def watch() -> None:
        is_applied = False
        while not stop_event.wait(HALT_POLL):
            try:
                waiting = halt_pending(store)
                if waiting and not is_applied:
                    apply_halt(store, broker, clock)
                is_applied = waiting
            except (BrokerError, JournalError) as error:
                log.warning("halt", reason=str(error))

    thread = threading.Thread(target=watch, name="halt", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop_event.set()
        thread.join()
