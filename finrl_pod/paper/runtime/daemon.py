"""Main loop of the daemon: recover, wait for the next trading cycle, trade it, and execute commands meanwhile.

Start-up is recovery, so a killed daemon is simply started again. A broker or feed that does not answer stops the
trading but not the daemon: it keeps polling, alerting and executing commands. Only keys that stay refused, an
unwritable journal and unexpected errors end it, with own orders cancelled.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from finrl_pod.errors import (
    AuthenticationError,
    BrokerError,
    BrokerUnavailable,
    ConfigError,
    DaemonError,
    DataError,
    FinrlPodError,
    JournalError,
)
from finrl_pod.paper.domain.clocks import BrokerTime
from finrl_pod.paper.domain.order_state import OrderState
from finrl_pod.paper.domain.port import Broker, Clock, DataFeed
from finrl_pod.paper.domain.records import SUMMARY, Session
from finrl_pod.paper.domain.schedule import Calendar, TradingCycle, calendar_of
from finrl_pod.paper.execution.account_trader import AccountTrader
from finrl_pod.paper.execution.order_manager import Alert, OrderManager
from finrl_pod.paper.execution.reconcile import MISMATCH_ENTRY, Reconciler
from finrl_pod.paper.execution.risk import RiskManager
from finrl_pod.paper.execution.stream_monitor import STALE_STREAM_SECONDS, StreamMonitor
from finrl_pod.paper.execution.trader import StrategySource, TradingComponents
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import CommandName, RiskState, pending_commands
from finrl_pod.paper.journal.ledger import Ledger
from finrl_pod.paper.journal.store import Store, moment
from finrl_pod.paper.monitoring.health import Heartbeat
from finrl_pod.paper.monitoring.summary import DaySummary, summarise_day
from finrl_pod.paper.runtime.control import SHUTDOWN_SECONDS, CommandHandler
from finrl_pod.paper.settings import PaperConfig, allocations, pack

MAX_CLOCK_DRIFT = 60.0  # seconds of difference to the broker's clock without an alert
COMMAND_POLL = 0.2  # real seconds between two checks for commands while waiting
AUCTION_POLL = 60.0  # seconds between two polls of orders waiting for an auction, if the stream is healthy
CLOCK_CHECK_INTERVAL = timedelta(hours=6)
MAX_DRIFT = timedelta(days=366)  # of the broker clock from this machine's: its answer is not used beyond
MAX_CLOCK_SLIP = 1.0  # seconds that wall and monotonic time may drift apart before the broker clock is queried again
SHUTDOWN_PAUSE = 1.0  # seconds between two attempts to cancel own orders before the exit
SUMMARY_PERIOD = timedelta(hours=3)  # after a summary was due, in which it is still sent
OUTAGE_SECONDS = 120.0  # without success, until an outage is alerted
MAX_RETRY_PAUSE = 60.0  # seconds between two attempts in an outage
REFUSAL_SECONDS = 300.0  # in which refused keys are tried again, at least MIN_REFUSALS times
MIN_REFUSALS = 4
CALENDAR_PAST = timedelta(days=45)  # of the broker's calendar; earlier sessions come from the library


class Daemon:
    """One run on one account. Stop it with `stop` (from a signal handler too)."""

    def __init__(
        self, components: TradingComponents, time: BrokerTime, heartbeat: Heartbeat, control: CommandHandler
    ) -> None:
        self._c = components
        self._time = time
        self._heartbeat = heartbeat
        self._control = control
        self._calendar = components.calendar
        self.trader = AccountTrader(components)
        self._stop = threading.Event()
        self._clock_checked = time.now() - 2 * CLOCK_CHECK_INTERVAL
        self._alerted_drift = 0.0  # seconds of deviation from the broker clock in the last alert
        self._outage_since: float | None = None  # monotonic time of its first failure
        self._outage_alerted = False
        self._refusals: list[float] = []  # monotonic times at which the keys were refused, since they last worked
        self._block = ""  # why the broker takes no orders, in the last alert
        self._recovered = False
        self._last_summary = components.ledger.store.last(schema.alerts, schema.alerts.c.kind == SUMMARY)

    # ------------------------------------------------------------------ start and stop

    def stop(self) -> None:
        """Request a stop: after the current call own orders are cancelled and `run` returns."""
        self._stop.set()

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Run until stopped, or until `until` returns True between two steps, with own orders left as they are.

        Raises AuthenticationError, JournalError and (at the start) ConfigError, and DaemonError for any other error.
        """
        try:
            while not self._stop.is_set() and not until():
                self.step()
            if self._stop.is_set():
                self._cancel_before_exit()
        except AuthenticationError as error:
            self._c.alert("critical", "keys", str(error))
            raise
        except ConfigError as error:
            self._c.alert("critical", "config", f"the daemon does not start: {error}")
            raise
        except JournalError as error:
            self._cancel_unjournaled()
            with contextlib.suppress(JournalError):  # it leaves without the journal
                self._c.alert("critical", "journal", f"the daemon stops, own live orders were cancelled: {error}")
            raise
        except Exception as error:
            orders = "own orders were cancelled" if self._cancel_after_failure() else "own orders may still be live"
            message = f"the daemon failed ({type(error).__name__}: {error}), {orders}"
            with contextlib.suppress(FinrlPodError):  # journal and clock may be unusable
                self._c.alert("critical", "failed", message)
            raise DaemonError(f"{message}. Start it again, and report the traceback in the log.") from error

    def _cancel_before_exit(self) -> None:
        """Cancel own orders, for up to the shutdown timeout; alert if it fails. Raises AuthenticationError."""
        end = self._time.monotonic() + SHUTDOWN_SECONDS
        has_orders = bool(self._c.ledger.live_orders())
        while True:
            try:
                if not self._c.orders.cancel_all(max(end - self._time.monotonic(), 0.0)):
                    self._c.alert("critical", "shutdown", "own orders are still live after the shutdown timeout")
                return
            except AuthenticationError:
                raise
            except BrokerError as error:
                if not has_orders:
                    return
                if self._time.monotonic() >= end:
                    reason = f"the broker did not answer for {SHUTDOWN_SECONDS:g} s ({error})"
                    self._c.alert("critical", "shutdown", f"own orders may still be live: {reason}")
                    return
            self.idle(min(self._c.config.timing.poll, SHUTDOWN_PAUSE))

    @property
    def in_outage(self) -> bool:
        """True while the broker or the prices are unavailable, from the alert on."""
        return self._outage_alerted

    @property
    def trading(self) -> bool:
        """True if orders may be sent: after recovery, without a halt, an outage, a block or a mismatch."""
        is_stopped = self.in_outage or self._block or self._c.reconciler.differences
        return self._recovered and not is_stopped and self._c.risk.state is not RiskState.HALTED

    def step(self) -> None:
        """Run one iteration of the loop: recover if needed, execute commands, do what is due, and wait.

        Raises AuthenticationError once the keys have been refused for REFUSAL_SECONDS.
        """
        try:
            if self._outage_since is not None:
                self._query_clock()  # nothing else is sent before the broker answers
            self._iterate()
        except JournalError:
            raise
        except (BrokerError, DataError, OSError) as error:  # OSError: a folder of runs that is unreadable just now
            if isinstance(error, AuthenticationError):
                self._refusals.append(self._time.monotonic())
                if len(self._refusals) >= MIN_REFUSALS and self._refusals[-1] - self._refusals[0] >= REFUSAL_SECONDS:
                    raise
            self._record_outage(error)
            self.idle(min(self._c.config.timing.poll, MAX_RETRY_PAUSE))

    def _record_outage(self, error: Exception) -> None:
        """Alert an outage once, whatever its causes, after it has lasted for OUTAGE_SECONDS."""
        now = self._time.monotonic()
        if self._outage_since is None:
            self._outage_since = now
        if not self._outage_alerted and now - self._outage_since >= OUTAGE_SECONDS:
            self._outage_alerted = True
            self._c.alert("critical", "unavailable", f"no orders are sent: {error}")

    def _end_outage(self) -> None:
        self._refusals.clear()
        if self._outage_alerted and self._outage_since is not None:
            minutes = (self._time.monotonic() - self._outage_since) / 60.0
            self._c.alert("info", "available", f"the daemon goes on, after {minutes:.0f} minutes without success")
        self._outage_alerted = False
        self._outage_since = None

    def idle(self, seconds: float, *, interruptible: bool = False) -> None:
        """Wait on the daemon clock, keeping the heartbeat alive and applying a halt immediately.

        interruptible: the iteration succeeded; any command, a stop or a step of the host clock ends the wait. It
        ends when monotonic or wall time has passed: while the machine sleeps only wall time advances.
        """
        if interruptible:
            self._end_outage()
        end = self._time.monotonic() + seconds
        end_time = self._time.now() + timedelta(seconds=seconds)
        while (left := min(end - self._time.monotonic(), (end_time - self._time.now()).total_seconds())) > 0:
            self._heartbeat.beat(recovered=self._recovered, trading=self.trading)
            if self._check_commands() and interruptible:
                return
            if interruptible and abs(self._time.clock_slip) > MAX_CLOCK_SLIP:
                return  # the wait may be for the wrong time
            self._time.sleep(left, COMMAND_POLL)

    # ------------------------------------------------------------------ one iteration

    def _iterate(self) -> None:
        self._heartbeat.beat(recovered=self._recovered, trading=self.trading)
        self._check_clock()
        self._check_commands()  # a halt submitted while the daemon was down applies before anything is sent
        if not self._recovered:
            self._recover()
        for command in pending_commands(self._c.ledger.store):
            self._control.execute(command, self.stop)
        if self._stop.is_set():
            return
        now = self._time.now()
        cycle = self._calendar.next_cycle(now, self._c.config)
        has_undecided = now >= cycle.opens and not self.trader.has_decided(cycle)
        is_blocked = (bool(self._c.ledger.open) or has_undecided) and self._is_blocked()
        if self._c.ledger.open:
            is_reconciled = not self._c.reconciler.differences
            self._c.orders.resolve_unknown(self.trader.exposure_of, may_send=is_reconciled and not is_blocked)
            if not is_blocked:
                self.trader.send_due(self._stop.is_set, only_flatten=not is_reconciled)
            self._c.orders.refresh()
        self._c.stream.check()
        self._send_summary(now, cycle)
        if now < cycle.opens:
            return self._wait_for(cycle)
        if not self.trader.has_decided(cycle):
            if cycle.time is not None and self._has_earlier_orders(cycle):
                return self.idle(self._c.config.timing.poll, interruptible=True)
            if self._clock_checked < cycle.opens:
                return self._query_clock()  # the broker clock decides whether the cycle has opened
            if now > cycle.deadline:
                return self.trader.skip(cycle, "missed", self._why_missed())
            if not self._c.reconciler.differences and not is_blocked:
                return self.trader.take_decision(cycle)
        return self.idle(self._seconds_to_poll(cycle), interruptible=True)

    def _why_missed(self) -> str:
        """Return why no decision could be taken before the deadline of a cycle."""
        if self._c.reconciler.differences:
            return f"account and journal differed until its deadline; see {MISMATCH_ENTRY}"
        if self._block:
            return f"the broker took no orders of the account until its deadline ({self._block})"
        return "no decision could be taken before its deadline"

    def _is_blocked(self) -> bool:
        """True if the broker takes no orders of this account; alerted once when it begins and when it ends."""
        block = self._c.broker.account().block
        if block and not self._block:
            message = f"the broker takes no orders of this account ({block}): nothing is sent until it does again"
            self._c.alert("critical", "blocked", message)
        elif self._block and not block:
            self._c.alert("info", "unblocked", "the broker takes orders of this account again")
        self._block = block
        return bool(block)

    def _has_earlier_orders(self, cycle: TradingCycle) -> bool:
        """True if orders of an earlier decision are still live."""
        live = (entry.intent for entry, _ in self._c.ledger.live_orders())
        return any(intent.bar != cycle.id and not intent.flattens for intent in live)

    def _seconds_to_poll(self, cycle: TradingCycle) -> float:
        """Return seconds until the next poll: few while orders may fill, more before their auction or without any."""
        poll = self._c.config.timing.poll
        now = self._time.now()
        if not self.trader.has_decided(cycle):
            return poll
        if not self._c.ledger.open and not self._c.stream.awaiting_report:
            return max((cycle.ends - now).total_seconds(), 0.0) + 1.0
        in_auction = all(
            t.live is not None and t.live.state is OrderState.WORKING and t.intent.ends <= cycle.ends
            for t in self._c.ledger.open.values()
        )
        if in_auction and now < cycle.auction and not self._c.stream.stale:
            return min((cycle.auction - now).total_seconds() + 1.0, max(poll, AUCTION_POLL))
        return poll

    def _send_summary(self, now: datetime, cycle: TradingCycle) -> None:
        """Send the summary of the last session once, some minutes after its close, unless that is long past."""
        minutes = self._c.config.monitoring.summary_minutes
        session = self._calendar.last_closed(now)
        due = session.close + timedelta(minutes=minutes)
        if not minutes or not due <= now < due + SUMMARY_PERIOD:
            return
        if self._last_summary is not None and moment(self._last_summary.at) >= session.close:
            return
        self._c.alert("info", SUMMARY, self.summary(session, cycle.opens).text())
        self._last_summary = self._c.ledger.store.last(schema.alerts, schema.alerts.c.kind == SUMMARY)

    def summary(self, session: Session, next_decision: datetime) -> DaySummary:
        """Summarise a closed session at the latest prices, or at the previous closes if the feed does not answer."""
        c = self._c
        prices: dict[str, Decimal] = {}
        with contextlib.suppress(BrokerError, DataError):
            symbols = {symbol for symbol, shares in self.trader.positions.items() if shares}
            prices = {s: price for s, (price, _) in c.feed.latest(sorted({*c.config.symbols, *symbols})).items()}
        days = self._calendar.sessions(session.date - timedelta(days=14), session.date)
        messages = [difference.message for difference in c.reconciler.differences]
        return summarise_day(c.ledger, c.config, session, days[-2], prices, messages, next_decision)

    def _seconds_to_summary(self, now: datetime) -> float:
        """Seconds until the next summary is due, infinite without one."""
        minutes = self._c.config.monitoring.summary_minutes
        if not minutes:
            return float("inf")
        days = self._calendar.sessions(now.date() - timedelta(days=1), now.date() + timedelta(days=14))
        due = (session.close + timedelta(minutes=minutes) for session in days)
        return next((time - now).total_seconds() for time in due if time > now)

    def _wait_for(self, cycle: TradingCycle) -> None:
        """Wait until the cycle opens or a summary or clock check is due; with open orders only until the next poll."""
        now = self._time.now()
        check = self._clock_checked + CLOCK_CHECK_INTERVAL
        seconds = min((min(cycle.opens, check) - now).total_seconds(), self._seconds_to_summary(now))
        has_open_orders = self._c.ledger.open or self._c.stream.awaiting_report
        self.idle(min(seconds, self._c.config.timing.poll) if has_open_orders else seconds, interruptible=True)

    def _recover(self) -> None:
        c = self._c
        account = c.broker.account()
        c.ledger.store.bind("account", account.id)
        c.ledger.store.bind("run", c.config.name)
        c.orders.check_all_recorded()
        self.trader.check_symbols()
        c.reconciler.initialise()
        c.reconciler.recover()
        for difference in c.reconciler.differences:
            advice = f"trading is stopped until `paper reconcile --acknowledge`, see {MISMATCH_ENTRY}"
            c.alert("critical", "mismatch", f"{difference.message}; {advice}")
        for order in c.reconciler.external_orders:
            c.alert("info", "foreign", f"the account has an external order, which is ignored: {order}")
        self.trader.alert_untraded_positions()
        self._record_missed_decisions()
        c.stream.reset()
        self._recovered = True

    def _record_missed_decisions(self) -> None:
        """Record decisions missed while the daemon was down, except the last one if it is still in time."""
        last = self._c.ledger.store.last(schema.decisions, schema.decisions.c.run == self._c.config.name)
        if last is None:
            return
        now = self._time.now()
        config = self._c.config
        if config.intraday.minutes:
            cycle = self._calendar.next_cycle(now, config)
            if cycle.bar.isoformat() <= last.bar[:10] and cycle.id > last.bar and cycle.time is not None:
                elapsed = cycle.time - datetime.fromisoformat(last.bar).replace(tzinfo=UTC)
                count = elapsed // timedelta(minutes=config.intraday.minutes) - 1
                if count > 0:
                    self._c.alert("warning", "missed", f"{count} decisions were missed while the daemon was down")
            return
        for cycle in self._calendar.cycles_since(last.bar, now, config.schedule):
            if now > cycle.deadline and not self.trader.has_decided(cycle):
                self.trader.skip(cycle, "missed", "the daemon was down")

    def _check_clock(self) -> None:
        """Query clock and calendar of the broker at intervals, and immediately after a clock step or suspend."""
        overdue = self._time.now() - self._clock_checked >= CLOCK_CHECK_INTERVAL
        if overdue or abs(self._time.clock_slip) > MAX_CLOCK_SLIP:
            self._query_clock()

    def _query_clock(self) -> None:
        """Synchronise with clock and calendar of the broker; alert once if the host clock deviates too much."""
        before = self._time.reading()
        broker_now = self._c.broker.clock()
        if abs(broker_now - self._time.now()) > MAX_DRIFT:
            raise BrokerUnavailable(f"the broker's clock shows {broker_now:%Y-%m-%d %H:%M} UTC, which cannot be")
        drift = self._time.set(broker_now, before).total_seconds()
        now = self._time.now()
        self._calendar.query(self._c.broker, (now - CALENDAR_PAST).date(), now)
        record_calendar(self._c.ledger.store, self._calendar, now)
        self._clock_checked = now
        if abs(drift) <= MAX_CLOCK_DRIFT:
            self._alerted_drift = 0.0
        elif abs(drift - self._alerted_drift) > MAX_CLOCK_DRIFT:
            self._alerted_drift = drift
            message = f"this machine's clock is {drift:+.0f} s off the broker's, which is used"
            self._c.alert("warning", "clock", message)

    # ------------------------------------------------------------------ stopping

    def _check_commands(self) -> bool:
        """Apply a pending halt. Returns True if a command is pending, or a stop was requested."""
        commands = pending_commands(self._c.ledger.store)
        if any(command.name is CommandName.HALT for command in commands):
            self._control.set_halted()
        return bool(commands) or self._stop.is_set()

    def _cancel_after_failure(self) -> bool:
        """Cancel own orders as at a stop, or without the journal if that fails too. Returns True if none is live."""
        try:
            return self._c.orders.cancel_all(SHUTDOWN_SECONDS)
        except Exception:  # noqa: BLE001 - the error that ended the daemon may occur again here
            self._cancel_unjournaled()
            return False

    def _cancel_unjournaled(self) -> None:
        """Cancel live own orders without writing to the unwritable journal."""
        for _, order in self._c.ledger.live_orders():
            if order.broker_id:
                with contextlib.suppress(FinrlPodError):
                    self._c.broker.cancel(order.broker_id)


def build_daemon(
    config: PaperConfig, store: Store, broker: Broker, feed: DataFeed, sources: Sequence[StrategySource], clock: Clock,
    heartbeat: Heartbeat, send_alert: Alert,
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
    reconciler = Reconciler(orders, config)
    calendar = calendar_of(config)
    control = CommandHandler(orders, risk, reconciler, config, calendar)
    components = TradingComponents(
        config, broker, feed, sources, ledger, risk, orders, reconciler, stream, time, alert, calendar
    )
    daemon = Daemon(components, time, heartbeat, control)
    idle.append(daemon.idle)
    return daemon


def record_settings(store: Store, config: PaperConfig, now: datetime) -> None:
    """Write the settings to the journal if they differ from the last ones."""
    content = pack(config)
    last = store.last(schema.settings)
    if last is None or last.content != content:
        store.add(schema.settings, now, content=content)


def record_calendar(store: Store, calendar: Calendar, now: datetime) -> None:
    """Write the sessions that the broker reports otherwise than the library to the journal if they have changed."""
    changes = json.dumps(calendar.reported_changes(), sort_keys=True)
    last = store.last(schema.cursors, schema.cursors.c.name == "calendar")
    if changes != ("{}" if last is None else last.value):
        store.add(schema.cursors, now, name="calendar", value=changes)
