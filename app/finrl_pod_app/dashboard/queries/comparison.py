"""Backtests side by side: the decisions of a strategy are recorded once, then replayed under any cost.

Statistics against a benchmark: active returns and their growth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from finrl_pod_strategies.baselines import BASELINES, SEEDED_BASELINES

from finrl_pod.evaluate.active_management import BENCHMARK_METRICS, LEVEL, benchmark_metrics
from finrl_pod.evaluate.attribution import attribution, trades_table
from finrl_pod.evaluate.backtest import backtest_result, simulate
from finrl_pod.evaluate.export import bars_table, csv_text, weights_table
from finrl_pod.evaluate.intervals import account_intervals
from finrl_pod.evaluate.metrics import METRIC_NAMES, PERCENT, Metric, bars_per_year, simple_returns
from finrl_pod.evaluate.variations import simulate_recorded
from finrl_pod.settings.run import RunConfig
from finrl_pod.types import BacktestResult, Floats, Tensor, Times
from finrl_pod_app.evaluation.backtests import prepare
from finrl_pod_app.evaluation.sweeps import (
    DecisionTable,
    group_by_market,
    log_and_record_decisions,
    record_decisions,
    replay_job,
)
from finrl_pod_app.report.records import Attribution

STRATEGIES = (*BASELINES, *SEEDED_BASELINES)
SLOW_STRATEGIES = ("mean_variance", "minimum_variance", "hierarchical_risk_parity")  # optimise at every rebalancing
MIN_INTERVAL_RETURNS = 20


@dataclass(frozen=True, eq=False)
class Curve:
    """Equity of an account.

    times, equity: [T], currency at the closes. risk_free: [T-1] or None. metrics: value by name.
    """

    times: Times
    equity: Floats
    risk_free: Floats | None
    metrics: Mapping[str, float]


def strategy_decisions(
    target: str | Path,
    start: str | None,
    end: str | None,
    base: RunConfig | None,
    data: str | None = None,
    *,
    look_recorded: bool = False,
) -> DecisionTable:
    """The decisions of a strategy (by name) or a champion (by its run folder) from `start` to `end`.

    start, end: None for the test period. base: config whose data and rules apply to strategies. data: panel for
    strategies without a base. look_recorded: do not record a further look at this period in the registry. Raises
    FinrlPodError if the target cannot be tested there.
    """
    setup = prepare(target, base=base, data=data, start=start, end=end)
    decisions = record_decisions(setup) if look_recorded else log_and_record_decisions(setup)
    # The replay needs prices and decisions only; features, most of the memory, are dropped.
    bars, assets, _ = decisions.market.shape
    empty = torch.empty(bars, assets, 0)
    market = dataclasses.replace(decisions.market, features=empty, raw_features=empty)
    inputs = dataclasses.replace(decisions.inputs, market=market)
    return dataclasses.replace(decisions, market=market, inputs=inputs)


def account_curves(decisions: Mapping[str, DecisionTable], cost_bps: float | None) -> dict[str, Curve]:
    """The account of each strategy under a proportional cost in basis points; None: the cost of its config."""
    name_of = {id(table): name for name, table in decisions.items()}
    curves: dict[str, Curve] = {}
    for group in group_by_market(list(decisions.values())):
        tables = torch.from_numpy(np.stack([table.table for table in group]))
        jobs = [replay_job(table, i, _cost(table, cost_bps)) for i, table in enumerate(group)]
        simulation = simulate_recorded(group[0].market, tables, jobs, group[0].inputs.config.environment.cash)
        for i, (table, metrics) in enumerate(zip(group, simulation.metrics(), strict=True)):
            first, last = table.inputs.first, table.inputs.last
            times = table.market.times[first : last + 1]
            equity = simulation.equity[i, : len(times)]
            risk_free = simulation.risk_free[i]
            curves[name_of[id(table)]] = Curve(times, equity, risk_free, metrics)
    return {name: curves[name] for name in decisions}


def backtest_of(name: str, decisions: DecisionTable, cost_bps: float | None) -> BacktestResult:
    """The full backtest of recorded decisions, with weights, turnover and costs per bar."""
    table = torch.from_numpy(decisions.table)
    acts = (~torch.isnan(table[:, 0])).tolist()

    def decide(t: int, funds: Tensor, shares: Tensor) -> Tensor | None:  # noqa: ARG001
        return table[t].unsqueeze(0) if acts[t] else None

    job = replay_job(decisions, 0, _cost(decisions, cost_bps))
    cash = decisions.inputs.config.environment.cash
    simulation = simulate(decisions.market, decide, job.first, job.last, job.rules, cash)
    return backtest_result(name, decisions.market, simulation)


def trades_of(name: str, result: BacktestResult, decisions: DecisionTable, cost_bps: float | None) -> pd.DataFrame:
    """The trades of `backtest_of` (see `finrl_pod.evaluate.attribution`), with a first column strategy."""
    trades = trades_table(result, decisions.market, replay_job(decisions, 0, _cost(decisions, cost_bps)).rules)
    trades.insert(0, "strategy", name)
    return trades


def profit_of(result: BacktestResult, decisions: DecisionTable, cost_bps: float | None) -> Attribution:
    """The attribution of `backtest_of`."""
    rules = replay_job(decisions, 0, _cost(decisions, cost_bps)).rules
    profit = attribution(result, decisions.market, rules)
    return Attribution.model_validate({"by_asset": profit.by_asset(), "by_year": profit.by_year()})


def metrics_table(curves: Mapping[str, Curve]) -> pd.DataFrame:
    """One row per strategy: strategy and its metrics."""
    rows = [{"strategy": name, **curve.metrics} for name, curve in curves.items()]
    return pd.DataFrame(rows, columns=["strategy", *METRIC_NAMES])


def intervals_table(curves: Mapping[str, Curve], seed: int) -> pd.DataFrame:
    """Sharpe ratio, CAGR and maximum drawdown of each strategy with their bootstrap confidence intervals.

    Strategies with fewer than 20 returns, constant returns or a ruined account are omitted.
    """
    rows = []
    for name, curve in curves.items():
        returns = simple_returns(curve.equity)
        if len(returns) < MIN_INTERVAL_RETURNS or returns.min() <= -1 or np.ptp(returns) == 0:
            continue
        periods = bars_per_year(curve.times)
        risk_free = curve.risk_free
        intervals = account_intervals(
            returns, LEVEL, seed=seed, draws=500, periods_per_year=periods, risk_free=risk_free
        )._asdict()
        row: dict[str, str | float] = {"strategy": name}
        for metric, interval in intervals.items():
            row |= {f"{metric}_{end}": getattr(interval, end) for end in ("value", "low", "high")}
        rows.append(row)
    return pd.DataFrame(rows)


def table_csv(table: pd.DataFrame) -> str:
    """A table as CSV with formulas escaped."""
    return csv_text(table)


def export_csv(results: Sequence[BacktestResult]) -> tuple[str, str]:
    """Bars and weights of the results as CSV with formulas escaped."""
    by_name = {result.name: result for result in results}
    return csv_text(bars_table(by_name)), csv_text(weights_table(by_name))


def _cost(decisions: DecisionTable, cost_bps: float | None) -> float:
    return decisions.inputs.config.environment.cost_bps if cost_bps is None else cost_bps


ACTIVE_RETURN = Metric(
    "active_return",
    "active",
    "Active return",
    PERCENT,
    "mean return less the return of the benchmark, per year",
    "higher",
)
ACTIVE_METRICS = (ACTIVE_RETURN, *BENCHMARK_METRICS)
COLUMNS = ("strategy", *(metric.name for metric in ACTIVE_METRICS))


def active_table(curves: Mapping[str, Curve], benchmark: str) -> pd.DataFrame:
    """One row per strategy other than the benchmark, and a column for each of `ACTIVE_METRICS`.

    Strategies with other bars than the benchmark are omitted.
    """
    rows = []
    for name, curve in comparable(curves, benchmark).items():
        periods = bars_per_year(curve.times)
        metrics = benchmark_metrics(curve.equity, curves[benchmark].equity, periods, curve.risk_free)
        mean = periods * float(active_returns(curve, curves[benchmark]).mean())
        rows.append({"strategy": name, ACTIVE_RETURN.name: mean, **metrics})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def comparable(curves: Mapping[str, Curve], benchmark: str) -> dict[str, Curve]:
    """The other curves over the same bars as the benchmark, of at least three bars."""
    base = curves[benchmark]
    return {
        name: curve
        for name, curve in curves.items()
        if name != benchmark and len(curve.times) > 2 and np.array_equal(curve.times, base.times)
    }


def active_returns(curve: Curve, base: Curve) -> Floats:
    """Simple returns [T-1] minus the returns of the benchmark."""
    return simple_returns(curve.equity) - simple_returns(base.equity)
