"""`finrl-pod paper replay` and `track`: an account compared with the backtest that sends the same orders.

The result of `track` is saved in a file next to the journal, where the dashboard reads it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np

from finrl_pod.data.panel import select
from finrl_pod.data.sources.feature_tables import with_newest_tables
from finrl_pod.data.store import Store as PanelStore
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError
from finrl_pod.evaluate.audit.pipeline import fresh_copy
from finrl_pod.evaluate.metrics import bars_per_year, summary
from finrl_pod.evaluate.paper_backtest import PaperBacktest, TradedPrices, backtest_paper
from finrl_pod.files import record_values, write_json
from finrl_pod.masking import environment_mask
from finrl_pod.paper.domain.records import Side
from finrl_pod.paper.domain.schedule import order_hours
from finrl_pod.paper.execution.mandate_limits import risk_limits
from finrl_pod.paper.execution.price_check import valid_panel
from finrl_pod.paper.execution.sizing import sizing_rules
from finrl_pod.paper.execution.trader import StrategySource
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.row_check import open_checked
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.monitoring.status import OrderStatusRow, orders
from finrl_pod.paper.runtime.replay import replay
from finrl_pod.paper.settings import PaperConfig, allocations, require_daily_decisions, unpack
from finrl_pod.types import Panel
from finrl_pod_app.paper.account_history import account_history, daily_terms, traded_prices
from finrl_pod_app.paper.attribution import CAUSES, Cause, attribute
from finrl_pod_app.paper.sources import strategy_sources

CENT = Decimal("0.01")
MAX_UNEXPLAINED = 0.001  # share of equity; a larger unexplained difference from the backtest is an alarm


def difference_file(journal: Path) -> Path:
    """Return the path of the saved result, next to the journal."""
    return journal.with_name(f"{journal.stem}.tracking.json")


@dataclass(frozen=True)
class PriceSource:
    """Name, source and hash of the panel that a comparison used."""

    name: str
    source: str
    sha256: str


@dataclass(frozen=True)
class TrackedStrategy:
    """Final equity of one strategy and of its backtest, and the causes of their difference, in currency."""

    strategy: str
    equity: float
    backtest: float
    attribution: Mapping[str, float]
    by_symbol: Mapping[str, Mapping[str, float]]
    by_session: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class TrackReport:
    """Result of `paper track`. equity, backtest: values at sessions that both have. attribution: currency by cause.

    alarm: the unexplained difference of a strategy is above unexplained_limit, in currency.
    """

    made: str
    strategy: str
    prices: PriceSource
    sessions: Sequence[str]
    equity: Sequence[float]
    backtest: Sequence[float]
    same: bool
    differences: Sequence[str]
    attribution: Mapping[str, float]
    unexplained_limit: float
    alarm: bool
    strategies: Mapping[str, TrackedStrategy]


def compare_with_backtest(config: PaperConfig, store: Store, panel: Panel) -> TrackReport:
    """Backtest the current strategies of the daemon over the journal sessions, with the orders that it would send.

    panel: prices of config.symbols, adjusted for corporate actions until any later day. Orders are sized and filled at
    the prices that the journal decisions saw. Raises InputError if journal and prices have fewer than two sessions
    in common.
    """
    require_daily_decisions(config, "the backtest of `paper track`")
    marks = [(date.fromisoformat(row.session), Decimal(row.equity)) for row in store.rows(schema.equity)]
    days = panel.times.astype("datetime64[D]")
    marks = [mark for mark in marks if days[0] <= np.datetime64(mark[0]) <= days[-1]]
    if len(marks) < 2:
        raise InputError(
            f"the journal has {len(marks)} equity values from {days[0]} to {days[-1]}, the days of panel "
            f"{panel.name!r}; two are needed. Trade longer, or choose other prices with --panel."
        )
    first, last = (int(np.searchsorted(days, np.datetime64(day))) for day in (marks[0][0], marks[-1][0]))
    close = build_market(panel, (), (0, len(days) - 1)).close.double().cpu().numpy()
    prices = traded_prices(store, panel, close)
    sources = strategy_sources(config, allow_unpromoted=True)
    backtests = backtest_account(config, sources, panel, first, last, prices)
    terms = daily_terms(panel, close, prices, config.schedule.mode)
    names = [allocation.name for allocation in config.strategies] or [config.name]
    strategies = {}
    marks_by_strategy = {}
    for name, allocation, source in zip(names, allocations(config), sources, strict=True):
        history = account_history(store, allocation.name, has_strategies=bool(config.strategies))
        rules = sizing_rules(allocation, risk_limits(allocation, source.current().strategy))
        own_marks = zip(map(date.fromisoformat, history.sessions), history.equity, strict=True)
        marks_by_strategy[name] = [mark for mark in own_marks if marks[0][0] <= mark[0] <= marks[-1][0]]
        backtest = backtests[allocation.name]
        causes = attribute(history, backtest, terms, rules)
        strategies[name] = TrackedStrategy(
            strategy=backtest.result.name,
            equity=float(marks_by_strategy[name][-1][1]),
            backtest=float(backtest.equity[-1]),
            attribution=causes.total,
            by_symbol={symbol: {c.value: v for c, v in row.items()} for symbol, row in causes.by_symbol.items()},
            by_session={c.value: [float(v) for v in values] for c, values in causes.by_session.items()},
        )
    # Orders of the last decision fill after the last mark: the backtest period ends there.
    sent_orders = [order for order in orders(store) if order.bar < marks[-1][0].isoformat()]
    if config.strategies:
        differences = compare_account(config, marks, marks_by_strategy, backtests, sent_orders)
    else:
        differences = compare(marks, backtests[config.name], sent_orders)
    expected_equity = dict(zip(days[first : last + 1].astype(object), account_equity(config, backtests), strict=True))
    common_marks = [(day, equity) for day, equity in marks if day in expected_equity]
    limit = MAX_UNEXPLAINED * float(marks[-1][1])
    return TrackReport(
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        strategy=", ".join(strategy.strategy for strategy in strategies.values()),
        prices=PriceSource(panel.name, panel.source, panel.sha256),
        sessions=[str(day) for day, _ in common_marks],
        equity=[float(equity) for _, equity in common_marks],
        backtest=[float(expected_equity[day]) for day, _ in common_marks],
        same=not differences,
        differences=differences,
        attribution={c.value: sum(s.attribution[c] for s in strategies.values()) for c in CAUSES},
        unexplained_limit=limit,
        alarm=any(abs(strategy.attribution[Cause.UNEXPLAINED]) > limit for strategy in strategies.values()),
        strategies=strategies,
    )


def save_difference(journal: Path, report: TrackReport) -> None:
    """Write the result next to the journal."""
    write_json(difference_file(journal), environment_mask().value(record_values(report)))


def compare_journal(config: PaperConfig, panel: str = "") -> TrackReport:
    """Compare the journal of a config with the backtest, save the result and return it.

    panel: name of stored prices; empty for the feed of the daemon. Raises FinrlPodError.
    """
    journal = Path(config.journal)
    with closing(open_checked(journal)) as store:
        prices = _stored_prices(panel, config.symbols) if panel else _fetch_prices(config, store)
        report = compare_with_backtest(config, store, prices)
    save_difference(journal, report)
    return report


def recorded_settings(journal: Path) -> PaperConfig:
    """Return the settings that the daemon recorded in its journal. Raises JournalError, or InputError if none are."""
    with closing(open_checked(journal)) as store:
        row = store.last(schema.settings)
    if row is None:
        raise InputError(f"journal {journal} has no settings yet. Start its daemon once, or name the config instead.")
    return unpack(row.content)


def _stored_prices(name: str, symbols: Sequence[str]) -> Panel:
    """Stored prices of symbols; the daemon trades them whether or not they are members of a universe."""
    return dataclasses.replace(select(PanelStore().load(name), symbols), members=None)


def _fetch_prices(config: PaperConfig, store: Store) -> Panel:
    """Fetch prices of the journal sessions and the window before them from the daemon feed."""
    from finrl_pod.paper.brokers.factory import open_broker, open_clock

    sessions = [row.session for row in store.rows(schema.equity)]
    if not sessions:
        raise InputError("the journal has no equity yet: trade for at least two sessions first")
    # Five sessions span at least seven calendar days; plus a margin for holidays.
    margin = timedelta(days=config.data.window * 3 // 2 + 30) if config.data.window else timedelta(days=3650)
    broker, feed = open_broker(config.broker, open_clock(config.broker))
    try:
        first, last = (date.fromisoformat(sessions[index]) for index in (0, -1))
        bars = feed.bars(config.symbols, first - margin, last, "all")
    finally:
        broker.close()
    return valid_panel(bars)


@dataclass(frozen=True)
class ReplayedStrategy:
    """Final equity of one of several strategies, in the replay and in the backtest. share: share of the capital."""

    strategy: str
    share: float
    equity: Decimal
    backtest_equity: Decimal


@dataclass(frozen=True)
class ReplayReport:
    """A replay and its differences from the backtest. alerts: warnings of the daemon. journal: None if temporary."""

    strategy: str
    first: str
    last: str
    sessions: int
    orders: int
    fills: int
    equity: Decimal
    backtest_equity: Decimal
    strategies: Mapping[str, ReplayedStrategy]
    distance_to_target: float
    same: bool
    differences: Sequence[str]
    alerts: Sequence[str]
    journal: str | None
    metrics: Mapping[str, float]


def run_replay(
    config: PaperConfig, start: date, end: date, journal: Path, progress: Callable[[date], None] = lambda _: None
) -> ReplayReport:
    """Replay a period, run the equivalent backtest, and compare orders, fills, and equity to the cent."""
    panel = _stored_prices(config.broker.panel, config.symbols)
    first, last = _bar_range(panel, start, end)
    # A champion that was not promoted may be replayed: no order leaves this machine.
    sources = strategy_sources(config, allow_unpromoted=True)
    result = replay(config, panel, sources, start, end, journal, progress)
    backtests = backtest_account(config, sources, panel, first, last)
    with closing(Store.open(journal)) as store:
        sent_orders = orders(store)
        warnings = [row.message for row in store.rows(schema.alerts, schema.alerts.c.level != "info")]
    if config.strategies:
        differences = compare_account(config, result.equity, result.strategies, backtests, sent_orders)
    else:
        differences = compare(result.equity, backtests[config.name], sent_orders)
    total = account_equity(config, backtests)
    metrics = backtests[config.name].result.metrics if not config.strategies else _metrics(panel, total, backtests)
    strategies = {
        strategy.name: ReplayedStrategy(
            strategy=backtests[allocation.name].result.name,
            share=strategy.share,
            equity=result.strategies[strategy.name][-1][1].quantize(CENT),
            backtest_equity=backtests[allocation.name].equity[-1].quantize(CENT),
        )
        for strategy, allocation in zip(config.strategies, allocations(config), strict=False)
    }
    return ReplayReport(
        strategy=", ".join(backtest.result.name for backtest in backtests.values()),
        first=str(result.first),
        last=str(result.last),
        sessions=len(result.equity),
        orders=result.orders,
        fills=result.fills,
        equity=result.equity[-1][1].quantize(CENT),
        backtest_equity=total[-1].quantize(CENT),
        strategies=strategies,
        distance_to_target=result.distance_to_target,
        same=not differences,
        differences=differences,
        alerts=warnings,
        journal=str(journal),
        metrics={k: float(v) for k, v in metrics.items() if np.isfinite(v)},
    )


def _metrics(panel: Panel, total: Sequence[Decimal], backtests: Mapping[str, PaperBacktest]) -> Mapping[str, float]:
    """Return the metrics of the equity of an account by bar, with the trades of all strategies."""
    values = np.array([float(x) for x in total])
    results = [backtest.result for backtest in backtests.values()]
    turnover = np.sum([result.turnover * result.equity for result in results], axis=0)
    costs = np.sum([result.costs for result in results], axis=0)
    return summary(values, turnover / values, costs, bars_per_year(panel.times))


def backtest_account(
    config: PaperConfig, sources: Sequence[StrategySource], panel: Panel, first: int, last: int,
    prices: TradedPrices | None = None,
) -> dict[str, PaperBacktest]:  # fmt: skip
    """Return the backtest of each strategy of an account, with its part of the capital, by run.

    prices: prices of sizing, fills and valuation; None for the prices of the panel.
    """
    backtests = {}
    for allocation, source in zip(allocations(config), sources, strict=True):
        strategy = fresh_copy(source.current().strategy)
        prices_with_tables = with_newest_tables(panel, strategy)
        market = build_market(prices_with_tables, tuple(strategy.feature_names), (0, len(panel.times) - 1))
        rules = sizing_rules(allocation, risk_limits(allocation, strategy))
        terms = (first, last, rules, allocation.capital, allocation.schedule.mode)
        backtests[allocation.name] = backtest_paper(strategy, panel, market, *terms, prices, order_hours(config))
    return backtests


def account_equity(config: PaperConfig, backtests: Mapping[str, PaperBacktest]) -> list[Decimal]:
    """Return the equity of the account by bar: its strategies, and the capital that none of them has."""
    capitals = [Decimal(str(backtest.capital)) for backtest in allocations(config)]
    idle = Decimal(str(config.capital)) - sum(capitals)
    return [idle + sum(bar) for bar in zip(*(backtest.equity for backtest in backtests.values()), strict=True)]


def compare_account(
    config: PaperConfig, marks: Iterable[tuple[date, Decimal]], marks_by_strategy: Mapping[str, Iterable[tuple[date,
    Decimal]]], backtests: Mapping[str, PaperBacktest], sent_orders: Sequence[OrderStatusRow],
) -> list[str]:  # fmt: skip
    """Return all differences of several strategies and of their sum as sentences. marks_by_strategy: equity by name."""
    differences = []
    for strategy, allocation in zip(config.strategies, allocations(config), strict=True):
        own_orders = [order for order in sent_orders if order.run == allocation.name]
        sentences = compare(marks_by_strategy[strategy.name], backtests[allocation.name], own_orders)
        differences += [f"{strategy.name}: {sentence}" for sentence in sentences]
    days = [str(d) for d in next(iter(backtests.values())).result.times.astype("datetime64[D]")]
    expected_equity = dict(zip(days, account_equity(config, backtests), strict=True))
    for session, equity in marks:
        expected = expected_equity.get(str(session))
        if expected is not None and abs(equity - expected) >= CENT / 2:
            differences.append(
                f"{session}: equity is {equity:.2f} in the journal, {expected:.2f} in the backtests together"
            )
    return differences


def _bar_range(panel: Panel, start: date, end: date) -> tuple[int, int]:
    if start > end:
        raise InputError(f"END {end} is before START {start}: swap the dates")
    days = panel.times.astype("datetime64[D]")
    if np.datetime64(end) > days[-1] or np.datetime64(start) < days[0]:
        raise InputError(f"{start} to {end} is outside of panel {panel.name!r} ({days[0]} to {days[-1]})")
    rows = np.flatnonzero((days >= np.datetime64(start)) & (days <= np.datetime64(end)))
    if len(rows) < 2:
        raise InputError(f"a replay needs 2 bars or more, panel {panel.name!r} has {len(rows)} from {start} to {end}")
    return int(rows[0]), int(rows[-1])


def compare(
    marks: Iterable[tuple[date, Decimal]], backtest: PaperBacktest, sent_orders: Iterable[OrderStatusRow]
) -> list[str]:
    """Return all differences as sentences. marks: equity by session. sent_orders: rows of `status.orders`."""
    differences = []
    days = [str(day) for day in backtest.result.times.astype("datetime64[D]")]
    remaining_equity = dict(zip(days, backtest.equity, strict=True))
    for session, equity in marks:
        expected = remaining_equity.pop(str(session), None)
        if expected is None:
            differences.append(f"{session}: the journal has an equity value, the backtest has none")
        elif abs(equity - expected) >= CENT / 2:
            differences.append(f"{session}: equity is {equity:.2f} in the journal, {expected:.2f} in the backtest")
    differences += [
        f"{session}: the backtest has an equity value, the journal has none" for session in remaining_equity
    ]
    journal_orders = {
        (o.bar, o.symbol): (Side(o.side).sign * o.quantity, Side(o.side).sign * o.filled) for o in sent_orders
    }
    backtest_orders = {(str(o.bar.astype("datetime64[D]")), o.symbol): (o.quantity, o.filled) for o in backtest.orders}
    for key in sorted({*journal_orders, *backtest_orders}):
        if journal_orders.get(key) != backtest_orders.get(key):
            differences.append(
                f"{key[0]} {key[1]}: (sent, filled) is {_format_pair(journal_orders.get(key))} in the journal, "
                f"{_format_pair(backtest_orders.get(key))} in the backtest"
            )
    return differences


def _format_pair(pair: tuple[Decimal, Decimal] | None) -> str:
    return "none" if pair is None else f"({pair[0]}, {pair[1]})"
