"""Strategies side by side: each is asked once for a period, then its books are kept under any cost at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from finrl_pod_strategies.baselines import BASELINES, SEEDED_BASELINES

from finrl_pod.evaluate.backtest import backtest_result
from finrl_pod.evaluate.export import bars_table, csv_text, weights_table
from finrl_pod.evaluate.intervals import account_intervals
from finrl_pod.evaluate.metrics import METRICS, bars_per_year, simple_returns
from finrl_pod.evaluate.simulate import simulate
from finrl_pod.evaluate.tearsheet import BAND_LEVEL, MIN_BAND_RETURNS, equity_band
from finrl_pod.evaluate.variations import replay
from finrl_pod.files import to_plain
from finrl_pod.settings.run import RunConfig
from finrl_pod.types import BacktestResult, Floats, Tensor, Times
from finrl_pod_app.services.backtests import prepare
from finrl_pod_app.services.sweeps import DecisionTable, ask, group_by_market, record_decisions, replay_job

STRATEGIES = (*BASELINES, *SEEDED_BASELINES)
SLOW = ("mean_variance", "minimum_variance", "hierarchical_risk_parity")  # they solve a problem at every rebalancing
DUST = 1e-9  # of the equity: a trade below it is rounding
INTERVAL = 0.95


@dataclass(frozen=True, eq=False)
class Curve:
    """An account's course. times, equity: [T] currency at the closes; risk_free: [T-1] or None; metrics by name."""

    times: Times
    equity: Floats
    risk_free: Floats | None
    metrics: Mapping[str, float]


def ask_strategy(
    target: str | Path,
    start: str | None,
    end: str | None,
    base: RunConfig | None,
    data: str | None = None,
    *,
    counted: bool = False,
) -> DecisionTable:
    """What a strategy (its name) or a run's champion (the run's folder) decides from `start` to `end`, or in its test
    years. base: the config whose data and rules hold for a strategy beside runs. data: other prices, for strategies
    alone. counted: the look at these bars is in the register already, which is then left alone. Raises FinrlPodError
    where it cannot be tested there."""
    prepared = prepare(target, data, start, end, base=base)
    asked = record_decisions(prepared) if counted else ask(prepared)
    # Only prices and decisions are looked at from here on: features are most of the memory.
    bars, assets, _ = asked.market.shape
    bare = torch.empty(bars, assets, 0)
    slim = dataclasses.replace(asked.market, features=bare, raw_features=bare)
    return dataclasses.replace(asked, market=slim, prepared=dataclasses.replace(asked.prepared, market=slim))


def curves(asked: Mapping[str, DecisionTable], cost_bps: float | None) -> dict[str, Curve]:
    """The account of each strategy, by its name, with the cost of a trade in basis points; None: its own config's."""
    names = {id(one): name for name, one in asked.items()}
    found: dict[str, Curve] = {}
    for group in group_by_market(list(asked.values())):
        tables = torch.from_numpy(np.stack([one.table for one in group]))
        jobs = [replay_job(one, place, _cost(one, cost_bps)) for place, one in enumerate(group)]
        done = replay(group[0].market, tables, jobs, group[0].prepared.config.environment.cash)
        for place, (one, metrics) in enumerate(zip(group, done.metrics(), strict=True)):
            first, last = one.prepared.first, one.prepared.last
            times = one.market.times[first : last + 1]
            found[names[id(one)]] = Curve(times, done.equity[place, : len(times)], done.risk_free[place], metrics)
    return {name: found[name] for name in asked}


def account(name: str, asked: DecisionTable, cost_bps: float | None) -> BacktestResult:
    """The same account with all that happened in it, bar by bar."""
    table = torch.from_numpy(asked.table)
    acts = (~torch.isnan(table[:, 0])).tolist()

    def decide(t: int, cash: Tensor, shares: Tensor) -> Tensor | None:  # noqa: ARG001
        return table[t].unsqueeze(0) if acts[t] else None

    job = replay_job(asked, 0, _cost(asked, cost_bps))
    cash = asked.prepared.config.environment.cash
    return backtest_result(name, asked.market, simulate(asked.market, decide, job.first, job.last, job.rules, cash))


def trades(result: BacktestResult, asked: DecisionTable) -> pd.DataFrame:
    """Every fill: time (of the bar it filled in), symbol, side, shares, price, value in currency and weight after."""
    first, last = asked.prepared.first, asked.prepared.last
    close, fill = (x.numpy()[first : last + 1] for x in (asked.market.close, asked.market.fill))
    held = result.weights * result.equity[:, None] / close
    change = np.diff(held, axis=0, prepend=0.0)
    price = fill
    if asked.market.fill_rule != "same_close":  # the decision of the bar before fills in this one
        price = np.concatenate([close[:1], fill[:-1]])
    bars, assets = np.nonzero(np.abs(change * price) > DUST * np.abs(result.equity[:, None]))
    shares, prices = change[bars, assets], price[bars, assets]
    return pd.DataFrame(
        {
            "time": result.times[bars],
            "symbol": np.array(result.symbols, dtype=object)[assets],
            "side": np.where(shares > 0, "buy", "sell"),
            "shares": np.abs(shares),
            "price": prices,
            "value": np.abs(shares) * prices,
            "weight": result.weights[bars, assets],
        }
    )


def metrics_table(found: Mapping[str, Curve]) -> pd.DataFrame:
    """A row for each strategy: its name and the metrics."""
    rows = [{"strategy": name, **{key: curve.metrics[key] for key in METRICS}} for name, curve in found.items()]
    return pd.DataFrame(rows, columns=["strategy", *METRICS])


def intervals_table(found: Mapping[str, Curve], seed: int) -> pd.DataFrame:
    """Sharpe ratio, return a year and drawdown of each strategy with the ends of their bootstrap intervals; strategies
    whose returns allow none (too few, constant, ruined) are left out."""
    rows = []
    for name, curve in found.items():
        returns = simple_returns(curve.equity)
        if len(returns) < 20 or returns.min() <= -1 or np.ptp(returns) == 0:
            continue
        periods, cash = bars_per_year(curve.times), curve.risk_free
        intervals = account_intervals(
            returns, INTERVAL, seed=seed, draws=500, periods_per_year=periods, risk_free=cash
        )._asdict()
        ends = {f"{key}_{end}": getattr(one, end) for key, one in intervals.items() for end in ("value", "low", "high")}
        rows.append({"strategy": name, **ends})
    return pd.DataFrame(rows)


def band_of(equity: Floats) -> dict[str, Any] | None:
    """`equity_band`, or None for a curve that is too short, flat or ruined to have one."""
    if len(equity) <= MIN_BAND_RETURNS or (equity <= 0).any() or np.ptp(equity) == 0:
        return None
    return equity_band(equity)


def table_csv(table: pd.DataFrame) -> str:
    """A table as CSV that no spreadsheet takes for formulas."""
    return csv_text({str(name): table[name].to_numpy() for name in table.columns})


def export_csv(results: Sequence[BacktestResult]) -> tuple[str, str]:
    """Bars and holdings as CSV that no spreadsheet takes for formulas."""
    named = {result.name: result for result in results}
    return csv_text(bars_table(named)), csv_text(weights_table(named))


def export_html(results: Sequence[BacktestResult], asked: DecisionTable, cost_bps: float | None) -> str:
    """The report of the comparison: one page that needs no network. asked: the first one, whose rules it states."""
    from finrl_pod_app.report.document import build_document
    from finrl_pod_app.report.html import render
    from finrl_pod_app.services.doctor import installed_versions

    named = {result.name: result for result in results}
    config = asked.prepared.config
    environment = dataclasses.replace(config.environment, cost_bps=_cost(asked, cost_bps))
    days = [str(result.times[place].astype("datetime64[D]")) for result in results[:1] for place in (0, -1)]
    document = build_document(
        config=dataclasses.replace(config, environment=environment),
        panel=asked.prepared.panel,
        splits={"test": days},
        results=named,
        versions=installed_versions(),
    )
    band = band_of(results[0].equity)
    document["test"]["band"] = None if band is None else {"level": BAND_LEVEL, **band}
    plain: dict[str, Any] = to_plain(document)
    return render(plain, named)


def _cost(asked: DecisionTable, cost_bps: float | None) -> float:
    return asked.prepared.config.environment.cost_bps if cost_bps is None else cost_bps
