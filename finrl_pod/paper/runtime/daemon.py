"""The daemon: one loop that recovers, waits for the next round, trades it, and serves commands all the while.

Start-up is recovery, so a daemon that was killed is simply started again. Whatever cannot be known stops the trading,
not the daemon: it goes on polling, telling, and serving commands. Only refused keys, a journal that cannot
be written, and what nobody foresaw end it, with own orders cancelled.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from finrl_pod.errors import AuthenticationError, BrokerError, DaemonError, DataError, FinrlPodError, JournalError
from finrl_pod.paper.execution.order_state import OrderState
from finrl_pod.paper.execution.trading_cycle import Parts, Trader
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import CommandName, pending
from finrl_pod.paper.records import BrokerClock
from finrl_pod.paper.runtime.clocks import BrokerTime
from finrl_pod.paper.runtime.control import Control
from finrl_pod.paper.runtime.schedule import Calendar, Round

SLICE = 0.2  # real seconds between two looks at the commands while waiting
BEFORE_AUCTION = 60.0  # seconds between two looks at orders that wait for an auction, where the stream is alive
CLOCK_CHECK = timedelta(hours=6)
# Seconds by which the host's clock may move otherwise than time passes before the broker is asked for the time again.
SLIP = 1.0
TOLD_AGAIN = 300.0  # seconds between two alerts of an outage at least, however often its cause changes
_ADDRESS = re.compile(r"0x[0-9a-f]+")  # of an object, which differs at every try


class Watch(Protocol):
    """Sees from outside that the loop is alive."""

    def beat(self, *, trading: bool) -> None:
        """Called from the loop at least every few real seconds."""
        ...


class Daemon:
    """One run on one account. Stop it with `stop` (from a signal handler too)."""

    def __init__(self, parts: Parts, time: BrokerTime, watch: Watch, control: Control) -> None:
        self._p = parts
        self._time = time
        self._watch = watch
        self._control = control
        self._calendar = Calendar()
        self.trader = Trader(parts)
        self._stop = threading.Event()
        self._checked_clock = time.now() - 2 * CLOCK_CHECK
        self._told_off = 0.0  # seconds off the broker's clock that were told
        self._failing = ""  # the cause of the outage that was told, while it lasts
        self._told_failing = float("-inf")
        self.trading = False

    # ------------------------------------------------------------------ life

    def stop(self) -> None:
        """End after the call that is under way: own orders are cancelled first."""
        self._stop.set()

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Work until stopped, or until `until` says so between two steps.

        Raises AuthenticationError and JournalError, and DaemonError for anything unforeseen.
        """
        try:
            while not self._stop.is_set() and not until():
                self.step()
            if self._stop.is_set() and not self._p.desk.cancel_all(self._p.config.timing.shutdown):
                self._p.alert("critical", "shutdown", "own orders are still live at the broker after the time allowed")
        except AuthenticationError as error:
            self._p.alert("critical", "keys", str(error))
            raise
        except JournalError:
            self._cancel_unwritten()
            raise
        except Exception as error:
            left = "own orders were cancelled" if self._cancel_after_failure() else "own orders may still be live"
            message = f"the daemon failed ({type(error).__name__}: {error}), {left}"
            with contextlib.suppress(FinrlPodError):  # neither journal nor clock need work any more
                self._p.alert("critical", "failed", message)
            raise DaemonError(f"{message}: start it again, and report what the log says") from error

    def step(self) -> None:
        """One turn of the loop: recover if needed, serve commands, do what is due, and wait."""
        try:
            self._turn()
            self._failing = ""
        except (AuthenticationError, JournalError):
            raise
        except (BrokerError, DataError, OSError) as error:  # OSError: a folder of runs that cannot be read just now
            self._tell_failing(error)
            self.idle(self._p.config.timing.poll)

    def _tell_failing(self, error: Exception) -> None:
        """Alert once for each cause, not at every try."""
        sentence, now = _ADDRESS.sub("", str(error)), self._time.monotonic()
        cause = f"{type(error).__name__}: {sentence}"
        if cause != self._failing and now - self._told_failing >= TOLD_AGAIN:
            self._p.alert("critical", "unavailable", f"nothing new is sent: {sentence}")
            self._failing, self._told_failing = cause, now

    def idle(self, seconds: float, *, wakeful: bool = False) -> None:
        """Wait on the daemon's clock, beating, and obeying what cannot wait: a halt.

        wakeful: any command or a stop ends the wait; without it a wait between two questions to the broker is kept.
        It is over when the time has passed, or when the clock says so: while a machine sleeps only the clock goes on.
        """
        end, until = self._time.monotonic() + seconds, self._time.now() + timedelta(seconds=seconds)
        while (left := min(end - self._time.monotonic(), (until - self._time.now()).total_seconds())) > 0:
            self._watch.beat(trading=self.trading)
            if self._urgent() and wakeful:
                return
            self._time.sleep(left, SLICE)

    # ------------------------------------------------------------------ one turn

    def _turn(self) -> None:
        self._watch.beat(trading=self.trading)
        self._set_clock()
        self._urgent()  # a halt that was given while we were down holds before anything is sent
        if not self.trading:
            self._recover()
        for command in pending(self._p.book.store):
            self._control.serve(command, self)
        if self._stop.is_set():
            return
        now = self._time.now()
        round_ = self._calendar.rounds(now, self._p.config.schedule)[0]
        if self._p.book.open:
            agreed = not self._p.reconciler.differences
            self._p.desk.settle(self.trader.exposure_of, may_send=agreed)
            if agreed:
                self.trader.send_due(self._stop.is_set)
            self._p.desk.refresh()
        self._p.stream.look()
        if now < round_.opens:
            return self._wait_for(round_)
        if not self.trader.decided(round_):
            if self._checked_clock < round_.opens:
                return self._ask_clock()  # the round may begin once the broker says that it does
            if now <= round_.deadline and not self._p.reconciler.differences:
                self.trader.take_decision(round_)
                return None
            if now > round_.deadline:
                self.trader.write_off(round_, "missed", "no decision could be taken before its deadline")
                return None
        return self.idle(self._pause(round_), wakeful=True)

    def _pause(self, round_: Round) -> float:
        """Until the next look: short while orders may fill, longer before their auction, else the round's end."""
        poll, now = self._p.config.timing.poll, self._time.now()
        if not self.trader.decided(round_):
            return poll
        if not self._p.book.open and not self._p.stream.doubtful:
            return max((round_.ends - now).total_seconds(), 0.0) + 1.0
        in_auction = all(
            t.live is not None and t.live.view.state is OrderState.WORKING and t.intent.ends <= round_.ends
            for t in self._p.book.open.values()
        )
        if in_auction and now < round_.auction and not self._p.stream.stale:
            return min((round_.auction - now).total_seconds() + 1.0, max(poll, BEFORE_AUCTION))
        return poll

    def _wait_for(self, round_: Round) -> None:
        """Until the round begins; with open orders only until the next look at them."""
        seconds = (round_.opens - self._time.now()).total_seconds()
        soon = self._p.book.open or self._p.stream.doubtful
        self.idle(min(seconds, self._p.config.timing.poll) if soon else seconds, wakeful=True)

    def _recover(self) -> None:
        p = self._p
        account = p.broker.account()
        p.book.store.bind("account", account.id)
        p.book.store.bind("run", p.config.name)
        p.reconciler.first_start()
        p.reconciler.recover()
        for difference in p.reconciler.differences:
            p.alert("critical", "mismatch", f"{difference.sentence}; trading waits for `paper reconcile --acknowledge`")
        for order in p.reconciler.foreign_orders:
            p.alert("info", "foreign", f"the account has an order that is not ours and is left alone: {order}")
        self.trader.tell_left_out()
        self._skip_missed()
        p.stream.forget()
        self.trading = True

    def _skip_missed(self) -> None:
        """Journal the decisions that were missed while the daemon was down. The last one may still be in time."""
        last = self._p.book.store.last(schema.decisions, schema.decisions.c.run == self._p.config.name)
        if last is None:
            return
        now = self._time.now()
        for round_ in self._calendar.rounds_since(last.bar, now, self._p.config.schedule):
            if now > round_.deadline and not self.trader.decided(round_):
                self.trader.write_off(round_, "missed", "the daemon was down")

    def _set_clock(self) -> None:
        """Follow the broker's clock, anew where the host's was set or slept."""
        if self._time.now() - self._checked_clock >= CLOCK_CHECK or abs(self._time.slipped) > SLIP:
            self._ask_clock()

    def _ask_clock(self) -> None:
        """Take the broker's time; tell once that the host's clock is off."""
        asked = self._time.reading()
        answer: BrokerClock = self._p.broker.clock()
        off = self._time.set(answer.now, asked).total_seconds()
        self._checked_clock = self._time.now()
        most = self._p.config.timing.drift
        if abs(off) <= most:
            self._told_off = 0.0
        elif abs(off - self._told_off) > most:
            self._told_off = off
            self._p.alert("warning", "clock", f"this machine's clock is {off:+.0f} s off the broker's, which rules")

    # ------------------------------------------------------------------ stopping

    def _urgent(self) -> bool:
        """Obey a halt at once; whether anything waits to be served."""
        commands = pending(self._p.book.store)
        if any(command.name is CommandName.HALT for command in commands):
            self._control.halt_now()
        return bool(commands) or self._stop.is_set()

    def _cancel_after_failure(self) -> bool:
        """Cancel own orders as at a stop, or unwritten where that fails in its turn. True when none is live."""
        try:
            return self._p.desk.cancel_all(self._p.config.timing.shutdown)
        except Exception:  # noqa: BLE001 - whatever ended the daemon may be met again here
            self._cancel_unwritten()
            return False

    def _cancel_unwritten(self) -> None:
        """Nothing can be written: nothing is sent any more, and what is live is cancelled, unwritten."""
        for _, order in self._p.book.live_orders():
            if order.view.broker_id:
                with contextlib.suppress(FinrlPodError):
                    self._p.broker.cancel(order.view.broker_id)
