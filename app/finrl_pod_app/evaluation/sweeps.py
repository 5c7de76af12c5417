"""Sweeps: backtest every combination of strategies, costs, periods and seeds."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from finrl_pod_strategies.baselines import index_market, index_rules

from finrl_pod.errors import InputError, Interrupted
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.export import write_table
from finrl_pod.evaluate.intrabar_orders import orders_of
from finrl_pod.evaluate.metrics import METRIC_NAMES
from finrl_pod.evaluate.variations import Job, RecordingStrategy, simulate_recorded
from finrl_pod.files import to_plain, write_json
from finrl_pod.market.rules import rules_of
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.progress import Progress, ProgressCallback
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.types import Floats, MarketTensor
from finrl_pod.user_files import is_custom
from finrl_pod_app.evaluation.backtests import BacktestOptions, prepare, with_seed
from finrl_pod_app.evaluation.finished_backtest import BacktestInputs, SplitName, period_sentence
from finrl_pod_app.report.builder import rule_sentences
from finrl_pod_app.setup.output_folder import SWEEP, rewritable_folder
from finrl_pod_app.setup.overrides import override_config

Period = tuple[str | None, str | None]
KEYS = ("strategy", "seed", "start", "end", "cost_bps", "in_sample")
MAX_COMBINATIONS = 100_000  # a larger sweep is probably a mistake
MAX_TABLE_BYTES = 2**27  # of recorded decisions in memory, before they are simulated and freed


@dataclasses.dataclass(frozen=True)
class SweepRow:
    """One backtest of a sweep. in_sample: whether it was trained or selected on some of the bars."""

    strategy: str
    seed: int | None
    start: str
    end: str
    cost_bps: float
    in_sample: bool
    metrics: Mapping[str, float]

    def to_dict(self) -> dict[str, str | float | None]:
        values: dict[str, str | float | None] = to_plain({**{key: getattr(self, key) for key in KEYS}, **self.metrics})
        return values


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The contents of sweep.json. rules, in_sample, periods, note: sentences."""

    rows: Sequence[SweepRow]
    rules: Sequence[str]
    in_sample: Sequence[str]
    periods: Sequence[str]
    note: str

    def to_dict(self) -> dict[str, Any]:
        rows = [row.to_dict() for row in self.rows]
        return dict(to_plain({**vars(self), "rows": rows}))


@dataclasses.dataclass(frozen=True, eq=False)
class DecisionTable:
    """Decisions of one strategy with one seed over one period.

    table: [T, N] as `RecordingStrategy.table`, on the bars of `market` (the index has a one-asset market).
    """

    inputs: BacktestInputs
    market: MarketTensor
    table: Floats
    seed: int | None


def run_sweep(
    targets: Sequence[str | Path],
    *,
    costs: Sequence[float] = (),
    periods: Sequence[Period] = (),
    seeds: Sequence[int] = (),
    data: str | None = None,
    split: SplitName | None = None,
    cash: float | None = None,
    settings: Sequence[str] = (),
    out: Path | None = None,
    progress: ProgressCallback = lambda _: None,
) -> Sweep:
    """Backtest every combination of targets (as `run_backtest` takes them), costs in basis points, periods and seeds.

    split: bars to test on where there are no periods; by default validation for all targets if one of them is a custom
    strategy, else as in `run_backtest`. Each strategy runs once per seed and period, under the costs of the config; the
    other costs are applied to the same decisions. The champion of a run runs once per period; with several runs, the
    strategy of a row is the run folder. Next to a run, strategies are tested under its config.

    With `out` the result is written as sweep.json, sweep.parquet and sweep.csv. If the user stops the sweep, finished
    rows are written unless the folder already holds a sweep, and Interrupted is raised.
    """
    if not targets:
        raise InputError("a sweep needs at least one strategy: name one with --strategy, or a run with --run")
    runs = [target for target in targets if isinstance(target, Path)]
    seeded_count = (len(targets) - len(runs)) * max(len(seeds), 1)
    count = (len(runs) + seeded_count) * max(len(costs), 1) * max(len(periods), 1)
    if count > MAX_COMBINATIONS:
        raise InputError(f"a sweep of {count:,} combinations is too large; the maximum is {MAX_COMBINATIONS:,}")
    for cost in costs:
        override_config(RunConfig(), cost_bps=cost)  # raises for invalid costs before anything runs
    if seeds and len(runs) == len(targets):
        raise InputError("the champion of a run takes no seed; leave out the seeds, or name a strategy that takes one")
    # Strategies next to runs use the data, period and rules of the first one.
    base = RunDirectory.open(runs[0]).config if runs else None
    if split is None and any(isinstance(target, str) and is_custom(target) for target in targets):
        split = "validation"
    sweep = _Sweep(costs)
    with rewritable_folder(out, SWEEP):
        try:
            for inputs, seed in _prepared_backtests(targets, periods, seeds, data, split, cash, settings, base):
                progress(sweep.progress(count))
                sweep.add(log_and_record_decisions(inputs, seed))
        except KeyboardInterrupt:
            result = sweep.result(count)
            if out is None or not sweep.rows or (out / SWEEP.marker).exists():
                raise
            _write(out, result)
            raise Interrupted(f"interrupted: {len(sweep.rows):,} of {count:,} rows are kept in {out}") from None
        result = sweep.result(count)
        if out is not None:
            _write(out, result)
    return result


class _Sweep:
    """Rows of a sweep in progress. Decisions are freed once they are simulated, because they may be large."""

    def __init__(self, costs: Sequence[float]) -> None:
        self.rows: list[SweepRow] = []
        self._costs = costs
        self._tables = list[DecisionTable]()
        self._rules: list[str] = []
        self._in_sample: dict[str, None] = {}
        self._periods: dict[str, None] = {}
        self._start_time = time.perf_counter()

    def add(self, table: DecisionTable) -> None:
        inputs = table.inputs
        self._rules = self._rules or rule_sentences(inputs.config.environment, inputs.panel)[1:]
        self._periods[period_sentence(inputs)] = None
        if inputs.in_sample:
            self._in_sample[f"{inputs.name}: {inputs.in_sample}"] = None
        self._tables.append(table)
        if sum(waiting.table.nbytes for waiting in self._tables) >= MAX_TABLE_BYTES:
            self._replay_decisions()

    def progress(self, count: int) -> Progress:
        """Progress in rows out of `count`."""
        row_count = len(self.rows) + len(self._tables) * max(len(self._costs), 1)
        seconds = time.perf_counter() - self._start_time
        seconds_left = seconds / row_count * (count - row_count) if row_count else None
        return Progress("backtesting", row_count, count, 0.0, None, seconds_left)

    def result(self, count: int) -> Sweep:
        """The sweep so far. count: number of requested rows."""
        self._replay_decisions()
        self.rows.sort(key=lambda row: (row.strategy, row.seed or 0, row.start, row.end, row.cost_bps))
        missing = count - len(self.rows)
        note = "Each strategy ran once per seed and period; the costs are applied to the same decisions."
        if missing:
            note += f" Interrupted: {missing:,} of {count:,} rows are missing."
        return Sweep(self.rows, self._rules, list(self._in_sample), list(self._periods), note)

    def _replay_decisions(self) -> None:
        # Tables of one market are simulated together. Only the index and runs on other data have markets of their own.
        for group in group_by_market(self._tables):
            self.rows += _rows(group, self._costs)
        self._tables.clear()


def _prepared_backtests(
    targets: Sequence[str | Path],
    periods: Sequence[Period],
    seeds: Sequence[int],
    data: str | None,
    split: SplitName | None,
    cash: float | None,
    settings: Sequence[str],
    base: RunConfig | None,
) -> Iterator[tuple[BacktestInputs, int | None]]:
    """Every strategy with every period and seed. Prices are read once per strategy and period."""
    has_several_runs = sum(isinstance(target, Path) for target in targets) > 1
    for target in targets:
        for start, end in periods or ((None, None),):
            options: BacktestOptions = {
                "data": data, "split": split, "start": start, "end": end, "cash": cash, "settings": settings,
            }  # fmt: skip
            if isinstance(target, Path):
                inputs = prepare(target, **options)
                # All champions have the same name.
                yield (dataclasses.replace(inputs, name=str(target)) if has_several_runs else inputs), None
                continue
            first, *other_seeds = seeds or (None,)
            options["seed"] = first
            inputs = prepare(target, base=base, **options)
            yield inputs, first
            for seed in other_seeds:
                yield with_seed(inputs, target, seed), seed


def _write(out: Path, sweep: Sweep) -> None:
    write_json(out / "sweep.json", sweep.to_dict(), indent=2)
    rows = [row.to_dict() for row in sweep.rows]
    write_table(out / "sweep", pd.DataFrame({key: [row[key] for row in rows] for key in (*KEYS, *METRIC_NAMES)}))


def log_and_record_decisions(inputs: BacktestInputs, seed: int | None = None) -> DecisionTable:
    """Log a look at the bars of a backtest and record the decisions."""
    inputs.log_look()
    return record_decisions(inputs, seed)


def record_decisions(inputs: BacktestInputs, seed: int | None = None) -> DecisionTable:
    """Record the decisions of a strategy at every bar under the costs of the config, without logging a look.

    For baselines, and for champions whose verdict already counted the look.
    """
    panel = inputs.panel
    period = inputs.market_period
    if inputs.name == "index":
        panel, market = index_market(panel, period.market.fill_rule)
        period = dataclasses.replace(period, market=market, rules=index_rules(period.rules))
    strategy = RecordingStrategy(inputs.strategy)
    if orders_of(strategy) is not None:
        raise InputError(f"a sweep repeats decisions without stops and limits; {inputs.name} has some: use backtest")
    backtest(strategy, panel, period)
    return DecisionTable(inputs, period.market, strategy.table(period.market.times), seed)


def group_by_market(tables: Sequence[DecisionTable]) -> list[list[DecisionTable]]:
    """Group tables by prices, fill rule and starting cash; one replay handles each group."""
    groups: dict[tuple[str, tuple[str, ...], str, float], list[DecisionTable]] = {}
    for table in tables:
        cash = table.inputs.config.environment.cash
        key = (table.inputs.panel.sha256, table.market.symbols, table.market.fill_rule, cash)
        groups.setdefault(key, []).append(table)
    return list(groups.values())


def replay_job(table: DecisionTable, index: int, cost_bps: float) -> Job:
    """Simulation job of recorded decisions at another cost. index: number of the table in the simulation."""
    inputs = table.inputs
    rules = rules_of(override_config(inputs.config, cost_bps=cost_bps).environment)
    return Job(index, inputs.first, inputs.last, index_rules(rules) if inputs.name == "index" else rules)


def _rows(group: Sequence[DecisionTable], costs: Sequence[float]) -> list[SweepRow]:
    tables = torch.from_numpy(np.stack([table.table for table in group]))
    combinations = [
        (index, table, cost)
        for index, table in enumerate(group)
        for cost in costs or (table.inputs.config.environment.cost_bps,)
    ]
    jobs = [replay_job(table, index, cost) for index, table, cost in combinations]
    simulation = simulate_recorded(group[0].market, tables, jobs, group[0].inputs.config.environment.cash)
    rows = []
    for (_, table, cost), metrics in zip(combinations, simulation.metrics(), strict=True):
        inputs = table.inputs
        start, end = (str(inputs.panel.times[i].astype("datetime64[D]")) for i in (inputs.first, inputs.last))
        rows.append(SweepRow(inputs.name, table.seed, start, end, cost, inputs.in_sample is not None, metrics))
    return rows
