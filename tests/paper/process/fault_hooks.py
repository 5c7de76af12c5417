"""What a test does to a daemon from inside its process: end it at a write, set its clock wrong, stall its loop."""

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
    """{name: its argument}, see the functions."""
    for name, argument in hooks.items():
        HOOKS[name](argument)


def die_at_write(where: Mapping[str, Any]) -> None:
    """SIGKILL at write `number` (from 1) since the simulated moment `since`, before or after it is on disk.

    number 0 never dies. counts: a file that is told how many writes there were.
    """
    from finrl_pod.fake_alpaca.scaled_clock import ClockClient
    from finrl_pod.paper.journal.store import Store

    clock, write, seen = ClockClient(Path(where["clock"])), Store.write, [0]

    def die() -> None:
        # The write may be another thread's: time must not fly on to where the loop would have woken up.
        clock.wake()
        os.kill(os.getpid(), signal.SIGKILL)

    @contextlib.contextmanager
    def deadly(store: Store) -> Iterator[Connection]:
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

    Store.write = deadly  # type: ignore[method-assign]


def die_before_post(part: str) -> None:
    """SIGKILL where an order whose name contains `part` was written down and would be sent next."""
    from finrl_pod.paper.brokers.alpaca.account import AlpacaAccount

    submit = AlpacaAccount.submit

    def deadly(account: AlpacaAccount, request: Any) -> Any:
        if part in request.client_order_id:
            os.kill(os.getpid(), signal.SIGKILL)
        return submit(account, request)

    AlpacaAccount.submit = deadly  # type: ignore[method-assign]


def wrong_clock(seconds: float) -> None:
    """The machine's clock is that far ahead."""
    from finrl_pod.fake_alpaca.scaled_clock import ClockClient

    right: Callable[[ClockClient], datetime] = ClockClient.now
    ClockClient.now = lambda clock: right(clock) + timedelta(seconds=seconds)  # type: ignore[method-assign]


def stall_while(file: str) -> None:
    """The loop hangs in its strategy as long as the file is there; a beat counts as stale after half a second."""
    from finrl_pod.paper.monitoring import health
    from tests.paper.process.daemon_main import RandomWeights

    health.STALE_AFTER = 0.5
    think = RandomWeights.target_weights

    def slowly(strategy: RandomWeights, *arguments: Any) -> Any:
        while Path(file).exists():
            time.sleep(0.01)
        return think(strategy, *arguments)

    RandomWeights.target_weights = slowly  # type: ignore[method-assign]


HOOKS: dict[str, Callable[[Any], None]] = {
    f.__name__: f for f in (die_at_write, die_before_post, wrong_clock, stall_while)
}
