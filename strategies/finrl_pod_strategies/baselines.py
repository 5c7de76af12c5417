"""What a champion has to beat: the registry of baselines, and one call that runs them all under the same rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches

from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.protocols import Strategy
from finrl_pod.types import BacktestResult, MarketTensor, Panel
from finrl_pod_strategies.index import index_market, index_rules
from finrl_pod_strategies.optimised import hierarchical_risk_parity, mean_variance, minimum_variance
from finrl_pod_strategies.rule_based import EqualWeight, Index, Momentum, RandomWeights


def equal_weight() -> EqualWeight:
    """Equal weight, rebalanced monthly."""
    return EqualWeight()


def equal_weight_buy_and_hold() -> EqualWeight:
    """Equal weight, bought at the first bar and left alone."""
    return EqualWeight("equal_weight_buy_and_hold", rebalance=False)


BASELINES: dict[str, Callable[[], Strategy]] = {
    "equal_weight": equal_weight,
    "equal_weight_buy_and_hold": equal_weight_buy_and_hold,
    "index": Index,
    "minimum_variance": minimum_variance,
    "mean_variance": mean_variance,
    "hierarchical_risk_parity": hierarchical_risk_parity,
    "momentum_12_1": Momentum,
}


# Strategies that draw random numbers: yardsticks of luck, which no champion is held against.
SEEDED_BASELINES: dict[str, Callable[[int], Strategy]] = {"random_weights": RandomWeights}


def make(name: str, seed: int | None = None) -> Strategy:
    """Create a strategy of `BASELINES` or `SEEDED_BASELINES` by name.

    Raises InputError for an unknown name, and for a seed where the strategy takes none.
    """
    if name in SEEDED_BASELINES:
        return SEEDED_BASELINES[name](seed or 0)
    if name not in BASELINES:
        if name.endswith(".py"):
            raise InputError(f"strategy {name!r} is a file: name the class in it too, as {name}:MyStrategy")
        known = (*BASELINES, *SEEDED_BASELINES)
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(known)}"
        raise InputError(f"unknown strategy {name!r}; {hint}")
    if seed is not None:
        raise InputError(f"strategy {name} draws no random numbers; leave the seeds out")
    return BASELINES[name]()


def run_baseline(
    name: str, panel: Panel, market: MarketTensor, first: int, last: int, rules: ExecutionRules, cash: float
) -> BacktestResult:
    """Backtest one baseline; the index runs on its own one-asset market of the same bars and fill rule, where costs
    that need a volume or count shares are not charged (`index_rules`)."""
    strategy = make(name)
    if name == "index":
        panel, market = index_market(panel, market.fill_rule)
        rules = index_rules(rules)
    return backtest(strategy, panel, market, first, last, rules, cash)


def run_baselines(
    panel: Panel,
    market: MarketTensor,
    first: int,
    last: int,
    rules: ExecutionRules,
    cash: float,
    names: Iterable[str] | None = None,
) -> dict[str, BacktestResult]:
    """Backtest baselines under one set of rules: those named, or all (the index only where the panel has one)."""
    if names is None:
        names = [name for name in BASELINES if name != "index" or panel.benchmark is not None]
    return {name: run_baseline(name, panel, market, first, last, rules, cash) for name in names}
