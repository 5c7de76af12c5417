"""Fault injection inside the daemon process: kill it at a write, offset its clock, stall its loop."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection


def install(hooks: Mapping[str, Any]) -> None:
    """Install hooks given as {hook name: argument}; see the functions below."""
    for name, argument in hooks.items():
        HOOKS[name](argument)


def die_at_write(where: Mapping[str, Any]) -> None:
    """SIGKILL at write `number` (from 1) since the simulated moment `since`, before or after it is on disk.

    number 0 never kills. counts: file that receives the number of writes so far.
    """
    from finrl_pod.fake_alpaca.scaled_clock import ClockClient
    from finrl_pod.paper.journal.store import Store

    clock, write, seen = ClockClient(Path(where["clock"])), Store.write, [0]

    def die() -> None:
        # Another thread may be writing: time must not jump to the loop's next wake-up.
        clock.wake()
        os.kill(os.getpid(), signal.SIGKILL)

    @contextlib.contextmanager
    def killing_write(store: Store) -> Iterator[Connection]:
        counts = clock.seconds() >= where["since"]
        seen[0] += counts
        fatal = counts and seen[0] == where["number"]
        with write(store) as connection:
            yield connection
            if fatal and where["before"]:
                die()
        if fatal:
            die()
        if counts and where.get("counts"):
            Path(where["counts"]).write_text(str(seen[0]))

    Store.write = killing_write  # type: ignore[method-assign]


def die_before_post(part: str) -> None:
    """SIGKILL just before an order whose client id contains `part` would be sent."""
    from finrl_pod.paper.brokers.alpaca.account import AlpacaAccount

    submit = AlpacaAccount.submit

    def killing_submit(account: AlpacaAccount, request: Any) -> Any:
        if part in request.client_order_id:
            os.kill(os.getpid(), signal.SIGKILL)
        return submit(account, request)

    AlpacaAccount.submit = killing_submit  # type: ignore[method-assign]


def offset_clock(seconds: float) -> None:
    """Set the host clock `seconds` ahead."""
    from finrl_pod.fake_alpaca.scaled_clock import ClockClient

    now: Callable[[ClockClient], datetime] = ClockClient.now
    ClockClient.now = lambda clock: now(clock) + timedelta(seconds=seconds)  # type: ignore[method-assign]


def stall_while(file: str) -> None:
    """Hang in the strategy while `file` exists; the heartbeat becomes stale after 0.5 s."""
    from finrl_pod.paper.monitoring import health
    from tests.paper.process.daemon_main import RandomWeights

    health.STALE_AFTER = 0.5
    target_weights = RandomWeights.target_weights

    def hang_while_file_exists(strategy: RandomWeights, *arguments: Any) -> Any:
        while Path(file).exists():
            time.sleep(0.01)
        return target_weights(strategy, *arguments)

    RandomWeights.target_weights = hang_while_file_exists  # type: ignore[method-assign]


HOOKS: dict[str, Callable[[Any], None]] = {
    f.__name__: f for f in (die_at_write, die_before_post, offset_clock, stall_while)
}
