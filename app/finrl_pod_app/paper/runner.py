"""`finrl-pod paper run`: the daemon process with its signals, journal lock and monitoring."""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from finrl_pod.errors import BrokerError, ConfigError, DaemonError, FinrlPodError, Interrupted, JournalError
from finrl_pod.paper.brokers.alpaca.credentials import is_loopback
from finrl_pod.paper.brokers.factory import open_broker, open_clock
from finrl_pod.paper.domain.port import Broker, Clock, DataFeed
from finrl_pod.paper.execution.mandate_limits import check_strategies, recorded_limits
from finrl_pod.paper.execution.order_manager import Alert
from finrl_pod.paper.execution.risk import RiskManager
from finrl_pod.paper.execution.trader import StrategySource
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.row_check import check_rows
from finrl_pod.paper.journal.store import JournalLock, Store
from finrl_pod.paper.monitoring.alerts import PING, PING_SECONDS, Alerts, DeadManPing
from finrl_pod.paper.monitoring.health import HealthServer, Heartbeat
from finrl_pod.paper.monitoring.logs import open_log
from finrl_pod.paper.monitoring.status import metrics, status_text
from finrl_pod.paper.monitoring.symbols import symbol_figures
from finrl_pod.paper.monitoring.telegram import TOKEN, TelegramCommands
from finrl_pod.paper.runtime.build import build_daemon, changed_settings, record_settings
from finrl_pod.paper.runtime.control import apply_halt, halt_pending
from finrl_pod.paper.runtime.daemon import Daemon
from finrl_pod.paper.settings import BROKERS, PaperConfig
from finrl_pod_app.paper.sources import strategy_sources

HALT_POLL = 0.25  # real seconds between two checks of the thread that applies a halt while the main loop is busy
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
DaemonParts = tuple[Store, Broker, DataFeed, Sequence[StrategySource], Clock, Heartbeat, Alert]


def run_daemon(
    config: PaperConfig, *, allow_unpromoted: bool = False, reload: Callable[[], PaperConfig] | None = None
) -> None:
    """Trade until a stop command or signal.

    SIGTERM cancels own orders and returns; so does Ctrl-C, and then raises Interrupted. SIGHUP calls `reload` and
    continues with the config that it returns, as after a restart but with own orders live; without `reload` it is
    ignored. Raises FinrlPodError; AuthenticationError, JournalError and DaemonError end a running daemon.
    """
    if allow_unpromoted and config.broker.kind not in BROKERS:
        raise ConfigError(f"--allow-unpromoted needs a broker that is built in, got broker.kind {config.broker.kind!r}")
    if allow_unpromoted and not is_loopback(config.broker.url):
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
            check_rows(store)
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
        components = (store, broker, feed, sources, clock, heartbeat, alerts.send)
        process = DaemonProcess(build_daemon(config, *components))
        if os.environ.get(PING):
            well = functools.partial(_is_well, heartbeat, process)
            ping = DeadManPing(os.environ[PING], PING_SECONDS, well, log)
            closing.callback(ping.close)
        if os.environ.get(TOKEN):
            status = functools.partial(status_text, store, config)
            users = config.monitoring.telegram_users
            closing.callback(TelegramCommands(os.environ[TOKEN], users, store, status, log).close)
        risk = RiskManager(store, limits, config.orders)
        log.info("started", name=config.name, journal=config.journal, broker=broker.name, feed=feed.name)
        with _handle_signals(process) as received_signals, _halt_thread(store, risk, broker, clock, log):
            try:
                while process.run():
                    config = _reload_config(config, reload, process, components)
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


class DaemonProcess:
    """The current daemon of a process. A reload of the config replaces it."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self._is_stopped = False
        self._reload = threading.Event()

    def run(self) -> bool:
        """Run the current daemon. Returns True if a reload was requested, False if it stopped. Raises as it does."""
        self.daemon.run(until=self._reload.is_set)
        is_requested = self._reload.is_set()
        self._reload.clear()
        return is_requested and not self._is_stopped

    def replace(self, daemon: Daemon) -> None:
        """Continue with another daemon at the next `run`."""
        self.daemon = daemon
        if self._is_stopped:
            daemon.stop()

    def stop(self) -> None:
        """Request a stop."""
        self._is_stopped = True
        self.daemon.stop()

    def reload(self) -> None:
        """Request a reload of the config."""
        self._reload.set()
        self.daemon.wake()


def _reload_config(
    config: PaperConfig, reload: Callable[[], PaperConfig] | None, process: DaemonProcess, components: DaemonParts
) -> PaperConfig:
    """Replace the daemon by one with the config of `reload`. Keeps both, with an alert, if that cannot be traded."""
    store, _, _, sources, clock, _, send_alert = components

    def alert(level: str, message: str) -> None:
        store.add(schema.alerts, clock.now(), level=level, kind="config", message=message)
        send_alert(level, "config", message)

    try:
        new_config = config if reload is None else reload()
        changes = changed_settings(config, new_config)
        strategies = [source.current().strategy for source in sources]
        check_strategies(new_config, strategies)
        daemon = build_daemon(new_config, *components)
    except (FinrlPodError, OSError) as error:
        alert("warning", f"the config was not reloaded, and the former one is used: {error}")
        return config
    record_settings(store, dataclasses.replace(new_config, risk=recorded_limits(new_config, strategies)), clock.now())
    process.replace(daemon)
    alert("info", f"the config was reloaded: {'; '.join(changes) or 'nothing has changed'}")
    return new_config


def _is_well(heartbeat: Heartbeat, process: DaemonProcess) -> bool:
    return heartbeat.alive and heartbeat.trading and not process.daemon.in_outage


@contextmanager
def _handle_signals(process: DaemonProcess) -> Iterator[list[int]]:
    """Stop on SIGTERM and SIGINT, reload the config on SIGHUP. Yields the list of the former that were received."""
    received_signals: list[int] = []

    def stop(number: int, _: Any) -> None:
        received_signals.append(number)
        process.stop()

    handlers: dict[int, Any] = dict.fromkeys(STOP_SIGNALS, stop)
    handlers[signal.SIGHUP] = lambda *_: process.reload()
    previous_handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield received_signals
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


@contextmanager
def _halt_thread(store: Store, risk: RiskManager, broker: Broker, clock: Clock, log: Any) -> Iterator[None]:
    """Run a second thread that applies a halt immediately, also while the main loop is busy."""
    stop_event = threading.Event()

    def watch() -> None:
        is_applied = False
        while not stop_event.wait(HALT_POLL):
            try:
                waiting = halt_pending(store)
                if waiting and not is_applied:
                    apply_halt(store, risk, broker, clock)
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
