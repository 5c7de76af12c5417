"""The benchmark of a backtest: a baseline, a symbol that is bought and held, or another strategy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches

from finrl_pod_strategies.baselines import BASELINES, SEEDED_BASELINES, BuyAndHold, make_baseline, run_baseline
from finrl_pod_strategies.user_strategy import load_user_strategy, strategy_hash

from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.market.execution import MarketPeriod
from finrl_pod.protocols import Strategy
from finrl_pod.types import BacktestResult, Panel
from finrl_pod.user_files import is_file_reference


@dataclass(frozen=True, eq=False)
class BenchmarkAccount:
    """The strategy of a benchmark. subject: its identity in the registry of looks, None for baselines and symbols."""

    strategy: Strategy
    subject: str | None = None

    def result(self, panel: Panel, period: MarketPeriod) -> BacktestResult:
        """Backtest it, traded to exact weights. Raises InputError without an index."""
        strategy = self.strategy
        if strategy.name in BASELINES and self.subject is None:
            return run_baseline(strategy.name, panel, period)
        if not set(strategy.feature_names) <= set(period.market.feature_names):
            fit = (0, len(panel.times) - 1)
            market = build_market(panel, strategy.feature_names, fit, period.market.fill_rule)  # type: ignore[arg-type]
            period = replace(period, market=market)
        return backtest(strategy, panel, period)


def find_benchmark(name: str, tested_name: str, panel: Panel) -> BenchmarkAccount:
    """The benchmark of a strategy: a symbol of the panel, a baseline by name, or `file.py:Class`.

    tested_name: name of the strategy in results. Raises InputError for an unknown name, and for the tested strategy
    itself.
    """
    if is_file_reference(name):
        account = BenchmarkAccount(load_user_strategy(name, None), strategy_hash(name, None))
    elif name in panel.symbols:
        account = BenchmarkAccount(BuyAndHold(name))
    elif name in BASELINES or name in SEEDED_BASELINES:
        account = BenchmarkAccount(make_baseline(name))
    else:
        names = (*BASELINES, *SEEDED_BASELINES, *panel.symbols)
        close = get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]}?" if close else "give a symbol of the panel, a baseline, or file.py:Class"
        raise InputError(f"unknown benchmark {name!r}: {hint}")
    if account.strategy.name == tested_name:
        raise InputError(f"the benchmark {name!r} is the tested strategy: choose another")
    return account
