"""`finrl-pod paper track`: an account's equity beside the backtest that sends the same orders over the same sessions.

The outcome is kept in a file beside the journal, where the dashboard finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from finrl_pod.data.panel import select
from finrl_pod.data.store import Store as PanelStore
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError
from finrl_pod.evaluate.paper_backtest import PaperBacktest, backtest_paper
from finrl_pod.files import write_json
from finrl_pod.paper.execution.planning import sizing_rules
from finrl_pod.paper.execution.price_check import sound_panel
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.monitoring.status import orders
from finrl_pod.paper.settings import PaperConfig, unpack
from finrl_pod.types import Panel
from finrl_pod_app.paper.replay_report import compare
from finrl_pod_app.paper.sources import strategy_source


def track_file(journal: Path) -> Path:
    """Beside the journal."""
    return journal.with_name(f"{journal.stem}.tracking.json")


@dataclass(frozen=True)
class Track:
    """marks: (session, own equity). tested: the backtest over the same sessions. differences: in sentences."""

    marks: tuple[tuple[date, Decimal], ...]
    tested: PaperBacktest
    differences: list[str]
    panel: Panel


def track(config: PaperConfig, store: Store, panel: Panel) -> Track:
    """Backtest the daemon's present strategy over the journal's sessions, with the orders that the daemon would send.

    panel: prices of config.symbols. Raises InputError where journal or prices have no two sessions in common.
    """
    marks = [(date.fromisoformat(row.session), Decimal(row.equity)) for row in store.rows(schema.equity)]
    days = panel.times.astype("datetime64[D]")
    marks = [mark for mark in marks if days[0] <= np.datetime64(mark[0]) <= days[-1]]
    if len(marks) < 2:
        raise InputError(
            f"the journal has {len(marks)} marks of equity from {days[0]} to {days[-1]}, the days of panel "
            f"{panel.name!r}, two are needed: trade longer, or name other prices with --panel"
        )
    first, last = (int(np.searchsorted(days, np.datetime64(day))) for day in (marks[0][0], marks[-1][0]))
    strategy = strategy_source(config, allow_unpromoted=True).current().strategy
    market = build_market(panel, tuple(strategy.feature_names), (0, len(panel.times) - 1))
    terms = (sizing_rules(config), config.capital, config.schedule.mode)
    tested = backtest_paper(strategy, panel, market, first, last, *terms)
    # The last decision's orders fill after the last mark: the backtest's period ends there.
    sent = [order for order in orders(store) if order["bar"] < marks[-1][0].isoformat()]
    return Track(tuple(marks), tested, compare(marks, tested, sent), panel)


def keep_track(journal: Path, found: Track) -> dict[str, Any]:
    """Write what was found beside the journal; returns it. Equity as floats, one a session that both have."""
    days = [str(day) for day in found.tested.result.times.astype("datetime64[D]")]
    backtest = dict(zip(days, found.tested.equity, strict=True))
    both = [(str(day), equity) for day, equity in found.marks if str(day) in backtest]
    document = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "strategy": found.tested.result.name,
        "prices": {"name": found.panel.name, "source": found.panel.source, "sha256": found.panel.sha256},
        "sessions": [day for day, _ in both],
        "equity": [float(equity) for _, equity in both],
        "backtest": [float(backtest[day]) for day, _ in both],
        "same": not found.differences,
        "differences": found.differences,
    }
    write_json(track_file(journal), document)
    return document


def run_track(config: PaperConfig, panel: str = "") -> dict[str, Any]:
    """Track the journal of a config. panel: a name in the store; without one the daemon's own feed is asked.

    Returns plain values. Raises FinrlPodError.
    """
    journal = Path(config.journal)
    store = Store.open(journal)
    try:
        prices = select(PanelStore().load(panel), config.symbols) if panel else _from_feed(config, store)
        return keep_track(journal, track(config, store, prices))
    finally:
        store.close()


def kept_config(journal: Path) -> PaperConfig:
    """The settings that the daemon wrote into its journal. Raises JournalError, or InputError where there are none."""
    from finrl_pod.paper.journal.reading import read

    rows: Sequence[Any] = read(
        journal, lambda c: c.execute("SELECT content FROM settings ORDER BY id DESC LIMIT 1").fetchall()
    )
    if not rows:
        raise InputError(f"journal {journal} holds no settings yet: start its daemon once, or name the config instead")
    return unpack(rows[0][0])


def _from_feed(config: PaperConfig, store: Store) -> Panel:
    """The journal's sessions and the window before them, as the feed has them today."""
    from finrl_pod.paper.brokers.factory import open_broker, open_clock

    first, last = (store.rows(schema.equity)[at].session for at in (0, -1)) if store.count(schema.equity) else ("", "")
    if not first:
        raise InputError("the journal has no mark of equity yet: trade first")
    # Sessions are at most seven calendar days for five, and there are holidays.
    before = timedelta(days=config.data.window * 3 // 2 + 30) if config.data.window else timedelta(days=3650)
    broker, feed = open_broker(config.broker, open_clock(config.broker))
    try:
        bars = feed.bars(config.symbols, date.fromisoformat(first) - before, date.fromisoformat(last), "all")
    finally:
        broker.close()
    return sound_panel(bars)
