"""Baselines that a champion is compared with: their registry, and backtests of them under one set of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import cast

import numpy as np

from finrl_pod.data.tensor import Fill, build_market
from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.market.costs import HalfSpread
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.protocols import Strategy
from finrl_pod.types import BacktestResult, MarketTensor, Panel
from finrl_pod_strategies import check_strategy_name
from finrl_pod_strategies.optimised import OPTIMISED
from finrl_pod_strategies.rule_based import EqualWeight, Index, Momentum, RandomWeights

_BUY_AND_HOLD = EqualWeight("equal_weight_buy_and_hold", rebalance=False)
_UNSEEDED: tuple[Strategy, ...] = (EqualWeight(), _BUY_AND_HOLD, Index(), *OPTIMISED, Momentum())
BASELINES: dict[str, Strategy] = {strategy.name: strategy for strategy in _UNSEEDED}
# Random strategies show the results of chance; a champion is not compared with them.
SEEDED_BASELINES: dict[str, Callable[[int], Strategy]] = {"random_weights": RandomWeights}


def make_baseline(name: str, seed: int | None = None) -> Strategy:
    """The strategy of `BASELINES` or `SEEDED_BASELINES` with this name.

    Raises InputError for an unknown name, and for a seed if the strategy takes none.
    """
    if name in SEEDED_BASELINES:
        return SEEDED_BASELINES[name](seed or 0)
    if name not in BASELINES:
        check_strategy_name(name)
        raise InputError(f"strategy {name!r} is not a baseline; known are {', '.join((*BASELINES, *SEEDED_BASELINES))}")
    if seed is not None:
        raise InputError(f"strategy {name} uses no random numbers; leave out the seed")
    return BASELINES[name]


def run_baseline(name: str, panel: Panel, period: MarketPeriod) -> BacktestResult:
    """Backtest one baseline.

    The index runs on a separate market with the same bars and fill rule, without the costs that need a volume or a
    number of shares (`index_rules`).
    """
    strategy = make_baseline(name)
    if name == "index":
        panel, market = index_market(panel, period.market.fill_rule)
        period = replace(period, market=market, rules=index_rules(period.rules))
    return backtest(strategy, panel, period)


def run_baselines(
    panel: Panel,
    period: MarketPeriod,
    names: Iterable[str] | None = None,
) -> dict[str, BacktestResult]:
    """Backtest the named baselines, or all (the index only if the panel has one), under one set of rules."""
    if names is None:
        names = [name for name in BASELINES if name != "index" or panel.benchmark is not None]
    return {name: run_baseline(name, panel, period) for name in names}


# ---------------------------------------------------------------------- the index as a market of one asset


def index_panel(panel: Panel) -> Panel:
    """A panel with the benchmark as its only symbol: same bars, closes only. Raises InputError without a benchmark."""
    benchmark = panel.benchmark
    if benchmark is None:
        raise InputError(f"panel {panel.name or panel.source or 'given'} has no index; leave out the index baseline")
    close = np.asarray(benchmark.close, dtype=np.float64)[:, None].copy()
    flaws = (f"{benchmark.name} is a price index: its dividends are left out",) if benchmark.price_only else ()
    return Panel(
        times=panel.times,
        symbols=(benchmark.name,),
        close=close,
        tradable=np.isfinite(close),
        adjusted=not benchmark.price_only,
        bar=panel.bar,
        name=benchmark.name,
        source=panel.source,
        flaws=flaws,
    )


def index_market(panel: Panel, fill: str = "next") -> tuple[Panel, MarketTensor]:
    """Panel and market of the benchmark only, without features.

    An index has no opening price: with fill="next" it fills at the next close even if stocks fill at an open.
    """
    index = index_panel(panel)
    return index, build_market(index, (), (0, len(index.times) - 1), cast(Fill, fill))


def index_rules(rules: ExecutionRules) -> ExecutionRules:
    """The rules without costs that an index cannot pay.

    An index level has neither volume, quoted spread nor a number of shares: constant proportional costs, interest and
    delay remain.
    """
    frictions = rules.frictions
    if frictions is None:
        return rules
    spreads = tuple(model for model in frictions.costs if isinstance(model, HalfSpread))
    return replace(rules, frictions=replace(frictions, costs=spreads, participation=0.0))
