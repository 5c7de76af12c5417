"""Many backtests at once: strategies, costs, periods and seeds, each combination a row."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from finrl_pod_strategies.baselines import index_market, index_rules

from finrl_pod.errors import InputError, Interrupted
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.export import write_table
from finrl_pod.evaluate.metrics import METRICS
from finrl_pod.evaluate.variations import Job, RecordingStrategy, replay
from finrl_pod.files import to_plain
from finrl_pod.market.rules import rules_of
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.progress import Progress, ProgressCallback
from finrl_pod.types import Floats, MarketTensor
from finrl_pod_app.report.document import rule_sentences, write_json
from finrl_pod_app.services.backtests import PreparedBacktest, prepare, with_seed
from finrl_pod_app.services.output_folder import SWEEP, rewritable_folder
from finrl_pod_app.services.overrides import override_config

Period = tuple[str | None, str | None]
KEYS = ("strategy", "seed", "start", "end", "cost_bps", "in_sample")
MOST = 100_000  # combinations: beyond it a slip of the pen is likelier than a purpose
KEPT_BYTES = 2**27  # of decisions at a time, before their books are kept and they are let go


@dataclasses.dataclass(frozen=True, eq=False)
class DecisionTable:
    """Decisions of one strategy with one seed over one period.

    table: [T, N] as `RecordingStrategy.table`, on the bars of `market` (the index has a one-asset market).
    """

    prepared: PreparedBacktest
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
    cash: float | None = None,
    settings: Sequence[str] = (),
    out: Path | None = None,
    progress: ProgressCallback = lambda _: None,
) -> dict[str, Any]:
    """Backtest every combination of targets (as `run_backtest` takes them), costs in basis points, periods and seeds.

    Each strategy is asked once for a seed and a period, under the config's own costs; the other costs are charged on
    the same decisions; a run is asked once for a period, and where there are several, its rows have its folder's name.
    Beside a run, strategies are tested under its config. Returns {"rows": [...], "in_sample": [...], "rules": [...],
    "seconds": ...}; with `out` the rows are written as sweep.json, sweep.parquet and sweep.csv. Raises Interrupted when
    the user stopped it and the rows that were done are written, as they are where the folder holds no earlier sweep.
    """
    if not targets:
        raise InputError("a sweep needs a strategy at least: name one with --strategy, or a run with --run")
    runs = [target for target in targets if isinstance(target, Path)]
    seeded = (len(targets) - len(runs)) * max(len(seeds), 1)
    count = (len(runs) + seeded) * max(len(costs), 1) * max(len(periods), 1)
    if count > MOST:
        raise InputError(f"a sweep of {count:,} combinations is too large, {MOST:,} are the most: leave some out")
    for cost in costs:
        override_config(RunConfig(), cost_bps=cost)  # refused before anything is asked
    if seeds and len(runs) == len(targets):
        raise InputError("a run's champion takes no seed: leave the seeds out, or name a strategy that takes one")
    base = _config_of_first_run(targets)
    done = _Done(costs)
    with rewritable_folder(out, SWEEP):
        try:
            for prepared, seed in _each(targets, periods, seeds, data, cash, settings, base):
                progress(done.told(count))
                done.take(ask(prepared, seed))
        except KeyboardInterrupt:
            plain = done.document(count)
            if out is None or not done.rows or (out / SWEEP.marker).exists():
                raise
            _write(out, plain)
            raise Interrupted(f"interrupted: {len(done.rows):,} of {count:,} rows are kept in {out}") from None
        plain = done.document(count)
        if out is not None:
            _write(out, plain)
    return plain


class _Done:
    """What a sweep has come to. Decisions are let go once their books are kept: many are large."""

    def __init__(self, costs: Sequence[float]) -> None:
        self.rows: list[dict[str, Any]] = []
        self._costs, self._asked = costs, list[DecisionTable]()
        self._rules: list[str] = []
        self._in_sample: dict[str, None] = {}
        self._books, self._began = 0.0, time.perf_counter()

    def take(self, one: DecisionTable) -> None:
        prepared = one.prepared
        self._rules = self._rules or rule_sentences(prepared.config.environment, prepared.panel)[1:]
        if prepared.in_sample:
            self._in_sample[f"{prepared.name}: {prepared.in_sample}"] = None
        self._asked.append(one)
        if sum(asked.table.nbytes for asked in self._asked) >= KEPT_BYTES:
            self._keep_books()

    def told(self, count: int) -> Progress:
        """How many rows of `count` are decided on."""
        decided = len(self.rows) + len(self._asked) * max(len(self._costs), 1)
        spent = time.perf_counter() - self._began
        left = spent / decided * (count - decided) if decided else None
        return Progress("backtesting", decided, count, 0.0, None, left)

    def document(self, count: int) -> dict[str, Any]:
        """The object of sweep.json. count: of the rows that were asked for."""
        self._keep_books()
        spent = time.perf_counter() - self._began
        self.rows.sort(key=lambda row: (row["strategy"], row["seed"] or 0, row["start"], row["end"], row["cost_bps"]))
        missing = count - len(self.rows)
        plain: dict[str, Any] = to_plain(
            {
                "rows": self.rows,
                "rules": self._rules,
                "in_sample": list(self._in_sample),
                "note": "Each strategy was asked once for a seed and a period; the costs are charged on the same "
                "decisions." + (f" It was interrupted: {missing:,} of {count:,} rows are missing." if missing else ""),
                "seconds": {"decisions": spent - self._books, "books": self._books},
            }
        )
        return plain

    def _keep_books(self) -> None:
        began = time.perf_counter()
        # Different strategies share the books where they share the prices: all do but the index, and runs on other
        # data.
        for group in group_by_market(self._asked):
            self.rows += _rows(group, self._costs)
        self._asked.clear()
        self._books += time.perf_counter() - began


def _each(
    targets: Sequence[str | Path],
    periods: Sequence[Period],
    seeds: Sequence[int],
    data: str | None,
    cash: float | None,
    settings: Sequence[str],
    base: RunConfig | None,
) -> Iterator[tuple[PreparedBacktest, int | None]]:
    """Every strategy with every period and seed. The prices of a strategy in a period are read once for all seeds."""
    several = sum(isinstance(target, Path) for target in targets) > 1
    for target in targets:
        for start, end in periods or ((None, None),):
            if isinstance(target, Path):
                prepared = prepare(target, data, start, end, None, cash, settings)
                # Each run's is called champion.
                yield (dataclasses.replace(prepared, name=str(target)) if several else prepared), None
                continue
            first, *others = seeds or (None,)
            prepared = prepare(target, data, start, end, None, cash, settings, first, base)
            yield prepared, first
            for seed in others:
                yield with_seed(prepared, target, seed), seed


def _write(out: Path, plain: dict[str, Any]) -> None:
    write_json(out / "sweep.json", plain)
    write_table(out / "sweep", {key: [row[key] for row in plain["rows"]] for key in (*KEYS, *METRICS)})


def _config_of_first_run(targets: Sequence[str | Path]) -> RunConfig | None:
    """Strategies beside runs are tested on the data, in the period and under the rules of the first of them."""
    runs = [target for target in targets if isinstance(target, Path)]
    if not runs:
        return None
    from finrl_pod.tournament.run_directory import RunDirectory

    return RunDirectory.open(runs[0]).config


def ask(prepared: PreparedBacktest, seed: int | None = None) -> DecisionTable:
    """Have the strategy decide at every bar, on an account under the config's own costs; that is a look at them."""
    prepared.log_look()
    return record_decisions(prepared, seed)


def record_decisions(prepared: PreparedBacktest, seed: int | None = None) -> DecisionTable:
    """The same for bars that the strategy is known to have been looked at on: by its verdict, or being a baseline."""
    panel, market = prepared.panel, prepared.market
    first, last, rules, cash = prepared.terms
    if prepared.name == "index":
        panel, market = index_market(panel, market.fill_rule)
        rules = index_rules(rules)
    strategy = RecordingStrategy(prepared.strategy)
    backtest(strategy, panel, market, first, last, rules, cash)
    return DecisionTable(prepared, market, strategy.table(market.times), seed)


def group_by_market(asked: Sequence[DecisionTable]) -> list[list[DecisionTable]]:
    """Those that share prices, fill rule and starting cash together: one replay does each group."""
    groups: dict[tuple[str, tuple[str, ...], str, float], list[DecisionTable]] = {}
    for one in asked:
        cash = one.prepared.config.environment.cash
        key = (one.prepared.panel.sha256, one.market.symbols, one.market.fill_rule, cash)
        groups.setdefault(key, []).append(one)
    return list(groups.values())


def replay_job(asked: DecisionTable, place: int, cost_bps: float) -> Job:
    """The books of its decisions under another cost. place: of its table among those that are replayed."""
    prepared = asked.prepared
    rules = rules_of(override_config(prepared.config, cost_bps=cost_bps).environment)
    return Job(place, prepared.first, prepared.last, index_rules(rules) if prepared.name == "index" else rules)


def _rows(group: Sequence[DecisionTable], costs: Sequence[float]) -> list[dict[str, Any]]:
    tables = torch.from_numpy(np.stack([one.table for one in group]))
    jobs, heads = [], []
    for place, one in enumerate(group):
        prepared = one.prepared
        for cost in costs or (prepared.config.environment.cost_bps,):
            jobs.append(replay_job(one, place, cost))
            start, end = (str(prepared.panel.times[i].astype("datetime64[D]")) for i in (prepared.first, prepared.last))
            head = (prepared.name, one.seed, start, end, cost, prepared.in_sample is not None)
            heads.append(dict(zip(KEYS, head, strict=True)))
    done = replay(group[0].market, tables, jobs, group[0].prepared.config.environment.cash)
    return [{**head, **to_plain(metrics)} for head, metrics in zip(heads, done.metrics(), strict=True)]
