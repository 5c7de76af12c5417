"""Replay of a past period through the daemon, with a simulated broker and clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from finrl_pod.errors import InputError
from finrl_pod.paper.brokers.simulated import SimulatedBroker
from finrl_pod.paper.domain.clocks import ManualClock
from finrl_pod.paper.domain.schedule import AUCTION_GRACE, calendar_of
from finrl_pod.paper.execution.mandate_limits import check_strategies, recorded_limits
from finrl_pod.paper.execution.trader import StrategySource
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.decision_state import largest_distance
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.monitoring.health import Heartbeat
from finrl_pod.paper.runtime.daemon import build_daemon, record_settings
from finrl_pod.paper.settings import PaperConfig, allocations, require_daily_decisions
from finrl_pod.types import Panel


@dataclass(frozen=True)
class ReplayResult:
    """Result of a replay.

    first, last: first and last session. equity: (session, own equity at its close). orders, fills, alerts: counts.
    final_positions: own shares by symbol at the end. strategies: equity as above of each of several strategies by name.
    distance_to_target: largest share of equity that was missing when a target ended.
    """

    first: date
    last: date
    equity: tuple[tuple[date, Decimal], ...]
    orders: int
    fills: int
    alerts: int
    final_positions: dict[str, Decimal]
    strategies: dict[str, tuple[tuple[date, Decimal], ...]]
    distance_to_target: float


def replay(
    config: PaperConfig, panel: Panel, sources: Sequence[StrategySource], start: date, end: date, journal: Path,
    progress: Callable[[date], None] = lambda _: None,
) -> ReplayResult:  # fmt: skip
    """Run the daemon on `panel` from the close of `start` to the close of `end`, with a new journal.

    The first decision is taken on the first session from `start` on, the last on the session before the last one.
    Raises InputError for a period of fewer than two sessions, or an existing journal, and ConfigError for risk limits
    that contradict the strategy mandate.
    """
    if journal.exists():
        raise InputError(f"{journal} already exists. Choose another journal for the replay.")
    require_daily_decisions(config, "a replay")
    strategies = [source.current().strategy for source in sources]
    check_strategies(config, strategies)
    calendar = calendar_of(config)
    sessions = calendar.sessions(start, end)
    if len(sessions) < 2:
        raise InputError(f"a replay needs at least two sessions, {start} to {end} has {len(sessions)}")
    first, last = sessions[0], sessions[-1]
    days_of_panel = set(panel.times.astype("datetime64[D]").tolist())
    if calendar.continuous and (missing := [s.date for s in sessions if s.date not in days_of_panel]):
        raise InputError(
            f"panel {panel.name!r} has no bar of {missing[0]} and {len(missing) - 1} other days; crypto needs one of "
            "every day. Set broker.panel to such a panel."
        )
    if config.schedule.mode == "open" and panel.open is None:
        raise InputError(
            f'panel {panel.name!r} has no opening prices. Set schedule.mode = "close", or use another panel.'
        )
    # After the closing auction; a market that never closes decides two minutes after its session.
    grace = timedelta(0) if calendar.continuous else AUCTION_GRACE
    clock = ManualClock(first.close + grace + timedelta(minutes=1))
    cost = Decimal(str(config.broker.cost_bps)) / 10_000
    broker = SimulatedBroker(panel, clock, Decimal(str(config.capital)), cost, calendar=calendar)
    store = Store.create_or_open(journal)
    try:
        # A replay writes no heartbeat (the file belongs to the real daemon) and sends no summaries.
        monitoring = dataclasses.replace(config.monitoring, heartbeat="", summary_minutes=0)
        config = dataclasses.replace(config, monitoring=monitoring)
        limits = recorded_limits(config, strategies)
        record_settings(store, dataclasses.replace(config, journal=str(journal), risk=limits), clock.now())
        daemon = build_daemon(config, store, broker, broker, sources, clock, Heartbeat(), lambda *_: None)
        days: list[date] = []

        def is_finished() -> bool:
            now = clock.now()
            if days[-1:] != [now.date()]:
                days.append(now.date())
                progress(now.date())
            return now > last.close + grace

        daemon.run(until=is_finished)
        next_session = calendar.sessions(last.date, last.date + timedelta(days=14))[1]
        daemon.trader.record_prices(calendar.cycle(next_session, last, config.schedule))
        marks = _marks(store.rows(schema.equity))
        run = schema.strategy_equity.c.run
        marks_by_strategy = {
            strategy.name: _marks(store.rows(schema.strategy_equity, run == allocation.name))
            for strategy, allocation in zip(config.strategies, allocations(config), strict=False)
        }
        orders, fills, alerts = (store.count(table) for table in (schema.orders, schema.fills, schema.alerts))
        positions = {symbol: shares for symbol, shares in daemon.trader.positions.items() if shares}
        distance = largest_distance(store)
        return ReplayResult(first.date, last.date, marks, orders, fills, alerts, positions, marks_by_strategy, distance)
    finally:
        store.close()


def _marks(rows: Sequence[Any]) -> tuple[tuple[date, Decimal], ...]:
    return tuple((date.fromisoformat(row.session), Decimal(row.equity)) for row in rows)
