"""The benchmark of a backtest: a symbol, index values, a baseline, or a strategy of one's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import cast

import numpy as np
import pandas as pd
from finrl_pod_strategies.baselines import (
    BASELINES,
    SEEDED_BASELINES,
    BuyAndHold,
    index_rules,
    make_baseline,
    run_baseline,
)
from finrl_pod_strategies.user_strategy import load_user_strategy, strategy_hash

from finrl_pod.data.dates import stamp
from finrl_pod.data.panel import select
from finrl_pod.data.store import Store
from finrl_pod.data.tensor import Fill, build_market
from finrl_pod.errors import DataError, InputError, shown
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.market.execution import MarketPeriod
from finrl_pod.protocols import Strategy
from finrl_pod.types import BacktestResult, Panel, Times
from finrl_pod.user_files import is_file_reference

Benchmark = str | pd.Series


@dataclass(frozen=True, eq=False)
class BenchmarkAccount:
    """The strategy of a benchmark.

    subject: its identity in the registry of looks, None for baselines, symbols and indices. prices: of a symbol that is
    not traded, or of an index.
    """

    strategy: Strategy
    subject: str | None = None
    prices: Panel | None = None

    def result(self, panel: Panel, period: MarketPeriod) -> BacktestResult:
        """Backtest it, traded to exact weights. Raises InputError without an index, or without a price on a bar."""
        strategy = self.strategy
        fill = cast(Fill, period.market.fill_rule)
        if self.prices is not None:
            missing = np.flatnonzero(~self.prices.tradable[period.bars, 0])
            if len(missing):
                day = stamp(panel.times[period.bars][missing[0]], panel.bar)
                raise InputError(
                    f"the benchmark {strategy.name} has no price on {day} ({len(missing):,} bars lack one): complete "
                    "it, or choose other dates"
                )
            market = build_market(self.prices, (), (period.first, period.last), fill)
            return backtest(strategy, self.prices, replace(period, market=market, rules=index_rules(period.rules)))
        if strategy.name in BASELINES and self.subject is None:
            return run_baseline(strategy.name, panel, period)
        if not set(strategy.feature_names) <= set(period.market.feature_names):
            market = build_market(panel, strategy.feature_names, (0, len(panel.times) - 1), fill)
            period = replace(period, market=market)
        return backtest(strategy, panel, period)


def find_benchmark(benchmark: Benchmark, tested_name: str, panel: Panel) -> BenchmarkAccount:
    """The benchmark of a strategy: a symbol of the panel, or of the stored one that it was selected from, index values
    by time, a baseline by name, or `file.py:Class`.

    tested_name: name of the strategy in results. Raises InputError for an unknown name, for index values that are none,
    and for the tested strategy itself.
    """
    if isinstance(benchmark, pd.Series):
        prices = _index_prices(benchmark, panel)
        return BenchmarkAccount(BuyAndHold(prices.symbols[0]), prices=prices)
    name = benchmark
    if is_file_reference(name):
        account = BenchmarkAccount(load_user_strategy(name, None), strategy_hash(name, None))
    elif name in panel.symbols:
        account = BenchmarkAccount(BuyAndHold(name))
    elif name in BASELINES or name in SEEDED_BASELINES:
        account = BenchmarkAccount(make_baseline(name))
    elif (stored := _stored(panel)) is not None and name in stored.symbols:
        account = BenchmarkAccount(BuyAndHold(name), prices=select(stored, (name,)))
    else:
        names = (*BASELINES, *SEEDED_BASELINES, *(panel if stored is None else stored).symbols)
        close = get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]}?" if close else "give a symbol of the panel, a baseline, or file.py:Class"
        raise InputError(f"unknown benchmark {name!r}: {hint}")
    if account.strategy.name == tested_name:
        raise InputError(f"the benchmark {name!r} is the tested strategy: choose another")
    return account


def _stored(panel: Panel) -> Panel | None:
    """The stored panel of that name with the same bars; None without one."""
    try:
        stored = Store().load(panel.name) if panel.name else None
    except DataError:
        return None
    return stored if stored is not None and np.array_equal(stored.times, panel.times) else None


def _index_prices(values: pd.Series, panel: Panel) -> Panel:
    """Values of an index as the closes of one symbol on the bars of a panel, not tradable where there are none.

    Raises InputError for values that are no levels at dates.
    """
    name = "benchmark" if values.name is None else str(values.name)
    if name in BASELINES or name in SEEDED_BASELINES or name in panel.symbols:
        raise InputError(f"the benchmark is named {name!r} as a baseline or a symbol: rename the Series")
    try:
        if pd.api.types.is_numeric_dtype(values.index):
            raise ValueError
        times = _times(values.index, panel.times)
        levels = values.to_numpy(dtype=np.float64)
    except (ValueError, TypeError):
        raise InputError(
            f"the benchmark must be a Series of numbers with dates as its index, got {shown(values.index[:1].tolist())}"
        ) from None
    if times.has_duplicates or not (levels[np.isfinite(levels)] > 0).all():
        raise InputError("the benchmark must be a Series of levels above zero, one for each date, no returns")
    close = pd.Series(levels, times).reindex(pd.DatetimeIndex(panel.times)).to_numpy(dtype=np.float64, copy=True)
    close[~np.isfinite(close)] = np.nan
    return Panel(
        times=panel.times,
        symbols=(name,),
        close=close[:, None],
        tradable=np.isfinite(close)[:, None],
        bar=panel.bar,
        name=name,
        cash_rates=panel.cash_rates,
    )


def _times(index: pd.Index, bars: Times) -> pd.DatetimeIndex:
    """The dates of an index in UTC; without their time of day for daily bars. Raises ValueError for others."""
    times = pd.DatetimeIndex(index)
    is_daily = bool((bars == bars.astype("datetime64[D]")).all())
    if is_daily:
        return times.tz_localize(None).normalize()
    return times if times.tz is None else times.tz_convert("UTC").tz_localize(None)
