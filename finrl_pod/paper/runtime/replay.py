"""A past period through the very same daemon: simulated broker, simulated clock, as fast as it goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

from finrl_pod.errors import InputError
from finrl_pod.paper.brokers.simulated import SimulatedBroker
from finrl_pod.paper.execution.trading_cycle import StrategySource
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.runtime.build import assemble, keep
from finrl_pod.paper.runtime.clocks import ManualClock
from finrl_pod.paper.runtime.schedule import SETTLE, Calendar, round_of
from finrl_pod.paper.settings import PaperConfig
from finrl_pod.types import Panel


@dataclass(frozen=True)
class Replayed:
    """days: sessions of the period. equity: (session, own equity at its close). orders, fills: how many."""

    first: date
    last: date
    equity: tuple[tuple[date, Decimal], ...]
    orders: int
    fills: int
    alerts: int
    final_positions: dict[str, Decimal]


class _NoWatch:
    def beat(self, *, trading: bool) -> None:
        pass


def replay(
    config: PaperConfig, panel: Panel, source: StrategySource, start: date, end: date, journal: Path,
    progress: Callable[[date], None] = lambda _: None,
) -> Replayed:  # fmt: skip
    """Run the daemon from the close of `start` to that of `end` on `panel`, into a new journal.

    The first decision is taken on the first session from `start` on, the last on the one before the last session up
    to `end`. Raises InputError for a period without two sessions, or a journal that exists.
    """
    if journal.exists():
        raise InputError(f"{journal} exists already and is left as it is: name another journal for the replay")
    sessions = Calendar().sessions(start, end)
    if len(sessions) < 2:
        raise InputError(f"a replay needs two sessions at least, {start} to {end} has {len(sessions)}: widen the dates")
    first, last = sessions[0], sessions[-1]
    if config.schedule.mode == "open" and panel.open is None:
        raise InputError(
            f'panel {panel.name!r} has no opening prices: set schedule.mode = "close", or take other prices'
        )
    clock = ManualClock(first.close + SETTLE + timedelta(minutes=1))
    cost = Decimal(str(config.broker.cost_bps)) / 10_000
    broker = SimulatedBroker(panel, clock, Decimal(str(config.capital)), cost)
    store = Store.create_or_open(journal)
    try:
        # A replay shows no sign of life: the heartbeat in the config is that of the daemon itself.
        outside = dataclasses.replace(config.outside, heartbeat="")
        keep(store, dataclasses.replace(config, journal=str(journal), outside=outside), clock.now())
        daemon = assemble(config, store, broker, broker, source, clock, _NoWatch(), lambda *_: None)
        seen: list[date] = []

        def over() -> bool:
            if not seen or seen[-1] != clock.now().date():
                seen.append(clock.now().date())
                progress(clock.now().date())
            return clock.now() > last.close + SETTLE

        daemon.run(until=over)
        after = next(s for s in Calendar().sessions(last.date, last.date + timedelta(days=14)) if s.date > last.date)
        daemon.trader.mark(round_of(after, last, config.schedule))
        marks = tuple((date.fromisoformat(row.session), Decimal(row.equity)) for row in store.rows(schema.equity))
        counts = [store.count(table) for table in (schema.orders, schema.fills, schema.alerts)]
        held = {symbol: shares for symbol, shares in daemon.trader.positions.items() if shares}
        return Replayed(first.date, last.date, marks, counts[0], counts[1], counts[2], held)
    finally:
        store.close()
