"""Backtest many variations of recorded decisions at once: other costs, other periods, other seeds.

`RecordingStrategy` records decisions of a strategy in one backtest; `simulate_recorded` simulates accounts that
follow them under any number of rule sets, in a compiled kernel where possible.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from finrl_pod.data.tensor import cut_market
from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import backtest, check_cash, simulate
from finrl_pod.evaluate.intrabar_orders import OrderRules
from finrl_pod.evaluate.metrics import bars_per_year, summary
from finrl_pod.market.costs import Frictions, HalfSpread, QuotedHalfSpread
from finrl_pod.market.execution import WEIGHT_TOLERANCE, ExecutionRules, MarketPeriod
from finrl_pod.market.venue import cash_returns, known_half_spreads
from finrl_pod.native.library import argument_struct, load
from finrl_pod.protocols import Strategy
from finrl_pod.types import BacktestResult, Floats, MarketTensor, Panel, Positions, Tensor, Times, Window


class RecordingStrategy:
    """Wrap a strategy and record its decisions."""

    def __init__(self, inner: Strategy) -> None:
        self.inner = inner
        self.name = inner.name
        self.feature_names = inner.feature_names
        self.lookback: int | None = getattr(inner, "lookback", None)
        self.feature_lookback: int = getattr(inner, "feature_lookback", 1)
        self.orders: OrderRules | None = getattr(inner, "orders", None)
        self._decision_log: list[tuple[np.datetime64, Any]] = []
        self._assets = 0

    def record(self, times: Times, targets: Floats) -> None:
        """Record decisions that were made elsewhere: target weights [K, N] at the bars `times`, NaN rows for none."""
        self._assets = targets.shape[1]
        rows = (None if np.isnan(row[0]) else row for row in targets)
        self._decision_log += list(zip(times, rows, strict=True))

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        # before the strategy can change its copy
        time = window.times[-1]
        self._assets = len(window.symbols)
        weights = self.inner.target_weights(window, positions)
        self._decision_log.append((time, None if weights is None else np.array(weights)))
        return weights

    @property
    def decisions(self) -> list[Floats | None]:
        """Target weights [N], or None, of each bar in order."""
        return [None if weights is None else np.array(weights, dtype=np.float64) for _, weights in self._decision_log]

    def table(self, times: Times) -> Floats:
        """Target weights [T, N] at the bars `times`; NaN rows where the strategy returned None or was not called."""
        table = np.full((len(times), self._assets), np.nan)
        for time, weights in self._decision_log:
            if weights is not None:
                table[np.searchsorted(times, time)] = weights
        return table


def backtest_recorded(
    strategy: Strategy, panel: Panel, period: MarketPeriod
) -> tuple[BacktestResult, RecordingStrategy]:
    """Run `backtest` and return its result with the recorded decisions."""
    recording = RecordingStrategy(strategy)
    return backtest(recording, panel, period), recording


class Job(NamedTuple):
    """One variation: index of a target table, first and last bar, and the rules."""

    table: int
    first: int
    last: int
    rules: ExecutionRules


@dataclass(frozen=True, eq=False)
class RecordedBacktest:
    """Accounts of V jobs that follow recorded decisions.

    equity: [V, L] currency at the closes first..last of each job, NaN beyond its last bar. turnover: [V], sum over
    the bars of value traded, both sides, over equity. costs: [V] currency. risk_free: return of cash [L_v - 1] of each
    job, or None.
    """

    jobs: tuple[Job, ...]
    equity: Floats
    turnover: Floats
    costs: Floats
    risk_free: tuple[Floats | None, ...]
    bars_per_year: float

    def metrics(self) -> list[dict[str, float]]:
        """Metrics of each job, as `finrl_pod.evaluate.metrics.summary`."""
        rows = []
        for v, job in enumerate(self.jobs):
            equity = self.equity[v, : job.last - job.first + 1]
            traded_fractions = np.zeros(len(equity))
            traded_fractions[-1] = self.turnover[v]  # the metric only uses the sum
            costs = self.costs[v : v + 1]
            rows.append(summary(equity, traded_fractions, costs, self.bars_per_year, self.risk_free[v]))
        return rows


def simulate_recorded(market: MarketTensor, tables: Tensor, jobs: Sequence[Job], cash: float) -> RecordedBacktest:
    """Simulate every job; each account starts with `cash` at the first bar of the job.

    tables: [W, T, N] float64 or float32 target weights on the bars of `market`, NaN rows where nothing is decided.
    Uses a compiled kernel for proportional costs (if a compiler is available), otherwise `simulate` with all accounts
    of the same period, rules and decision bars in one batch. Raises InputError as `simulate`.
    """
    _check(market, tables, jobs, cash)
    kernel = kernel_for(market)
    rates = [proportional_rate(job.rules) for job in jobs]
    if kernel is not None and all(rate is not None for rate in rates):
        native_results = simulate_recorded_native(kernel, market, tables, jobs, [rate or 0.0 for rate in rates], cash)
        if native_results is not None:
            returns = cash_returns(market.times, market.cash_rates)
            risk_free = tuple(None if returns is None else returns[job.first : job.last] for job in jobs)
            return RecordedBacktest(tuple(jobs), *native_results, risk_free, bars_per_year(market.times))
    return _simulate_in_torch(market, tables, jobs, cash)


def _simulate_in_torch(market: MarketTensor, tables: Tensor, jobs: Sequence[Job], cash: float) -> RecordedBacktest:
    length = max(job.last - job.first for job in jobs) + 1
    equity = np.full((len(jobs), length), np.nan)
    turnover = np.zeros(len(jobs))
    costs = np.zeros(len(jobs))
    risk_free: list[Floats | None] = [None] * len(jobs)
    decides = ~torch.isnan(tables[..., 0]).cpu()  # [W, T]
    batches: dict[tuple[int, int, ExecutionRules, bytes], list[int]] = defaultdict(list)
    for v, job in enumerate(jobs):
        decision_bars = decides[job.table, job.first : job.last].numpy().tobytes()
        batches[job.first, job.last, job.rules, decision_bars].append(v)
    for (first, last, rules, _), members in batches.items():
        table_numbers = torch.tensor([jobs[v].table for v in members])
        acts = decides[table_numbers[0]].tolist()

        def decide(t: int, _cash: Tensor, _shares: Tensor, numbers: Tensor = table_numbers, acts: Any = acts) -> Any:
            return tables[numbers, t].double() if acts[t] else None

        ledger = simulate(market, decide, first, last, rules, cash, batch=len(members))
        equity[members, : last - first + 1] = ledger.equity.T.cpu().numpy()
        turnover[members] = ledger.turnover.sum(0).cpu().numpy()
        costs[members] = ledger.costs.sum(0).cpu().numpy()
        if ledger.risk_free is not None:
            cash_returns = ledger.risk_free.cpu().numpy()
            for v in members:
                risk_free[v] = cash_returns
    return RecordedBacktest(tuple(jobs), equity, turnover, costs, tuple(risk_free), bars_per_year(market.times))


def _check(market: MarketTensor, tables: Tensor, jobs: Sequence[Job], cash: float) -> None:
    check_cash(cash)
    bars, assets, _ = market.shape
    if tables.ndim != 3 or tuple(tables.shape[1:]) != (bars, assets):
        raise InputError(f"tables of targets must have shape [W, {bars}, {assets}], got {tuple(tables.shape)}")
    count = len(tables)
    for job in jobs:
        if not 0 <= job.table < count:
            raise InputError(f"a job needs a table of targets from 0 to {count - 1}, got {job.table}")
        if not 0 <= job.first < job.last < bars:
            raise InputError(f"a job needs bars 0 <= first < last < {bars}, got {job.first} and {job.last}")


SOURCE = Path(__file__).with_name("variations.cpp")


def proportional_rate(rules: ExecutionRules) -> float | None:
    """Proportional cost rate of a rule set if the kernel supports it (long-only, fractions, scaled buys), else None.

    Quoted spreads are not part of it; the kernel supports them too.
    """
    if rules.whole_shares or rules.short or rules.leverage != 1 or rules.buy_allocation != "proportional":
        return None
    frictions = rules.frictions or Frictions()
    if any(type(model) not in (HalfSpread, QuotedHalfSpread) for model in frictions.costs):
        return None
    if frictions.participation or frictions.cash_rates or frictions.delisting_return or frictions.delay != 1:
        return None
    # Long-only accounts never pay the borrow fee.
    return rules.cost_rate + sum(model.share for model in frictions.costs if isinstance(model, HalfSpread))


def kernel_for(market: MarketTensor) -> ctypes.CDLL | None:
    """The compiled kernel, or None without a compiler, for a market that is not on the CPU or pays dividends."""
    is_supported = market.close.device.type == "cpu" and market.dividends is None
    return load(SOURCE) if is_supported else None


def simulate_recorded_native(
    kernel: ctypes.CDLL, market: MarketTensor, tables: Tensor, jobs: Sequence[Job], rates: Sequence[float], cash: float
) -> tuple[Floats, Floats, Floats] | None:
    """Simulate every job in the kernel: equity [V, L] (NaN beyond the last bar of a job), turnover [V], costs [V].

    None if the targets of some job are invalid; `simulate` then raises the error that describes them. Raises InputError
    if a job charges quoted spreads that the market lacks.
    """
    bars, assets, _ = market.shape
    close = _doubles(market.close)
    fill = _doubles(market.fill)
    inverse = 1 / close
    fillable = np.ascontiguousarray(market.fillable.numpy(), dtype=np.uint8)
    delisted = np.ascontiguousarray(market.delisted.numpy(), dtype=np.uint8)
    all_fillable = np.ascontiguousarray(fillable.all(1), dtype=np.uint8)
    targets = tables if tables.dtype in (torch.float32, torch.float64) else tables.double()
    targets = targets.cpu().contiguous()
    spans = np.array([(job.table, job.first, job.last) for job in jobs], dtype=np.int64)
    marks = int((spans[:, 2] - spans[:, 1]).max()) + 1
    rate = np.asarray(rates, dtype=np.float64)
    pays_spread = np.array(
        [job.rules.frictions is not None and job.rules.frictions.needs_spread for job in jobs], dtype=np.float64
    )
    half_spread = _doubles(known_half_spreads(market)) if pays_spread.any() else None
    equity = np.empty((len(jobs), marks))
    for v in np.flatnonzero(spans[:, 2] - spans[:, 1] + 1 < marks):
        equity[v, spans[v, 2] - spans[v, 1] + 1 :] = np.nan
    turnover = np.empty(len(jobs))
    costs = np.empty(len(jobs))
    replay_market = argument_struct(SOURCE, "ReplayMarket")(
        *(array.ctypes.data for array in (close, inverse, fill)),
        None if half_spread is None else half_spread.ctypes.data,
        *(array.ctypes.data for array in (fillable, delisted, all_fillable)),
        *(bars, assets, market.fill_rule == "same_close"),
    )
    replay_jobs = argument_struct(SOURCE, "ReplayJobs")(
        *(targets.data_ptr(), *(array.ctypes.data for array in (spans, rate, pays_spread, equity, turnover, costs))),
        *(targets.dtype == torch.float32, len(jobs), marks, torch.get_num_threads()),
        *(cash, WEIGHT_TOLERANCE),
    )
    kernel.replay.restype = ctypes.c_int64
    faulty_job = kernel.replay(ctypes.byref(replay_market), ctypes.byref(replay_jobs))
    return None if faulty_job >= 0 else (equity, turnover, costs)


def _doubles(prices: Tensor) -> Floats:
    return np.ascontiguousarray(prices.double().numpy())


COSTS_BPS = (0.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
CURVE_METRICS = ("cumulative_return", "annual_return", "sharpe", "max_drawdown", "costs_paid")


def cost_curve(
    recording: RecordingStrategy, period: MarketPeriod, costs_bps: Sequence[float] = COSTS_BPS
) -> list[dict[str, float]]:
    """Metrics of recorded decisions at several proportional costs: one row per cost in basis points, ascending.

    The proportional cost of the rules is always among them. Other cost models stay unchanged.
    """
    costs_bps = sorted({*map(float, costs_bps), round(1e4 * period.rules.cost_rate, 9)})
    cut = cut_market(period.market, period.first, period.last)
    tables = torch.from_numpy(recording.table(cut.times)).unsqueeze(0)
    jobs = [Job(0, 0, period.last - period.first, replace(period.rules, cost_rate=cost / 1e4)) for cost in costs_bps]
    simulation = simulate_recorded(cut, tables, jobs, period.cash)
    simulation = replace(simulation, bars_per_year=bars_per_year(period.market.times))
    return [
        {"cost_bps": cost, **{name: metrics[name] for name in CURVE_METRICS}}
        for cost, metrics in zip(costs_bps, simulation.metrics(), strict=True)
    ]
