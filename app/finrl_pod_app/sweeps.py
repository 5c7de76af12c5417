"""Many backtests at once: strategies, costs, periods and seeds, each combination a row."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from finrl_pod_strategies.index import index_market, index_rules

from finrl_pod.config import RunConfig
from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.export import write_table
from finrl_pod.evaluate.metrics import METRICS, to_json
from finrl_pod.evaluate.replay import Job, Recording, replay
from finrl_pod.market.rules import rules_of
from finrl_pod.types import Floats, MarketTensor
from finrl_pod_app.backtests import Prepared, prepare
from finrl_pod_app.report.document import rule_sentences, to_plain, write_json
from finrl_pod_app.terms import with_terms

Period = tuple[str | None, str | None]
KEYS = ("strategy", "seed", "start", "end", "cost_bps", "in_sample")
MOST = 100_000  # combinations: beyond it a slip of the pen is likelier than a purpose


@dataclasses.dataclass(frozen=True, eq=False)
class Asked:
    """What a strategy decided with one seed in one period. table: [T, N] as `Recording.table`, on the bars of `market`,
    which is the index's own market for the index."""

    prepared: Prepared
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
) -> dict[str, Any]:
    """Backtest every combination of targets (as `run_backtest` takes them), costs in basis points, periods and seeds.

    Each strategy is asked once for a seed and a period, under the config's own costs; the other costs are charged on
    the same decisions; a run is asked once for a period, and where there are several, its rows have its folder's name.
    Beside a run, strategies are tested under its config. Returns {"rows": [...], "in_sample": [...], "rules": [...],
    "seconds": ...}; with `out` the rows are written as sweep.json, sweep.parquet and sweep.csv.
    """
    if not targets:
        raise InputError("a sweep needs a strategy at least: name one with --strategy, or a run with --run")
    count = len(targets) * max(len(costs), 1) * max(len(periods), 1) * max(len(seeds), 1)
    if count > MOST:
        raise InputError(f"a sweep of {count:,} combinations is too large, {MOST:,} are the most: leave some out")
    for cost in costs:
        with_terms(RunConfig(), cost_bps=cost)  # refused before anything is asked
    base = _config_of_first_run(targets)
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    asked: list[Asked] = []
    runs = [target for target in targets if isinstance(target, Path)]
    if seeds and len(runs) == len(targets):
        raise InputError("a run's champion takes no seed: leave the seeds out, or name a strategy that takes one")
    for target in targets:
        for seed in seeds if seeds and not isinstance(target, Path) else (None,):
            for start, end in periods or ((None, None),):
                prepared = prepare(target, data, start, end, None, cash, settings, seed, base)
                if len(runs) > 1 and isinstance(target, Path):  # each has a champion
                    prepared = dataclasses.replace(prepared, name=str(target))
                asked.append(ask(prepared, seed))
    decided = time.perf_counter()
    # Different strategies share the books where they share the prices: all do but the index, and runs on other data.
    for group in by_prices(asked):
        rows += _rows(group, costs)
    rows.sort(key=lambda row: (row["strategy"], row["seed"] or 0, row["start"], row["end"], row["cost_bps"]))
    document = {
        "rows": rows,
        "rules": rule_sentences(asked[0].prepared.config.environment, asked[0].prepared.panel)[1:],
        "in_sample": list(
            dict.fromkeys(f"{one.prepared.name}: {one.prepared.in_sample}" for one in asked if one.prepared.in_sample)
        ),
        "note": "Each strategy was asked once for a seed and a period; the costs are charged on the same decisions.",
        "seconds": {"decisions": decided - began, "books": time.perf_counter() - decided},
    }
    plain: dict[str, Any] = to_plain(document)
    if out is not None:
        write_json(out / "sweep.json", plain)
        write_table(out / "sweep", {key: [row[key] for row in rows] for key in (*KEYS, *METRICS)})
    return plain


def _config_of_first_run(targets: Sequence[str | Path]) -> RunConfig | None:
    """Strategies beside runs are tested on the data, in the period and under the rules of the first of them."""
    runs = [target for target in targets if isinstance(target, Path)]
    if not runs:
        return None
    from finrl_pod.pod.run_directory import RunDirectory

    return RunDirectory.open(runs[0]).config


def ask(prepared: Prepared, seed: int | None = None) -> Asked:
    """Have the strategy decide at every bar, on an account under the config's own costs; that is a look at them."""
    prepared.log_look()
    return decisions_of(prepared, seed)


def decisions_of(prepared: Prepared, seed: int | None = None) -> Asked:
    """The same for bars that the strategy is known to have been looked at on: by its verdict, or being a baseline."""
    panel, market = prepared.panel, prepared.market
    first, last, rules, cash = prepared.terms
    if prepared.name == "index":
        panel, market = index_market(panel, market.fill_rule)
        rules = index_rules(rules)
    strategy = Recording(prepared.strategy)
    backtest(strategy, panel, market, first, last, rules, cash)
    return Asked(prepared, market, strategy.table(market.times), seed)


def by_prices(asked: Sequence[Asked]) -> list[list[Asked]]:
    """Those that share prices, fill rule and starting cash together: one replay does each group."""
    groups: dict[tuple[str, tuple[str, ...], str, float], list[Asked]] = {}
    for one in asked:
        cash = one.prepared.config.environment.cash
        key = (one.prepared.panel.sha256, one.market.symbols, one.market.fill_rule, cash)
        groups.setdefault(key, []).append(one)
    return list(groups.values())


def job_of(asked: Asked, place: int, cost_bps: float) -> Job:
    """The books of its decisions under another cost. place: of its table among those that are replayed."""
    prepared = asked.prepared
    rules = rules_of(with_terms(prepared.config, cost_bps=cost_bps).environment)
    return Job(place, prepared.first, prepared.last, index_rules(rules) if prepared.name == "index" else rules)


def _rows(group: Sequence[Asked], costs: Sequence[float]) -> list[dict[str, Any]]:
    tables = torch.from_numpy(np.stack([one.table for one in group]))
    jobs, heads = [], []
    for place, one in enumerate(group):
        prepared = one.prepared
        for cost in costs or (prepared.config.environment.cost_bps,):
            jobs.append(job_of(one, place, cost))
            start, end = (str(prepared.panel.times[i].astype("datetime64[D]")) for i in (prepared.first, prepared.last))
            head = (prepared.name, one.seed, start, end, cost, prepared.in_sample is not None)
            heads.append(dict(zip(KEYS, head, strict=True)))
    done = replay(group[0].market, tables, jobs, group[0].prepared.config.environment.cash)
    return [{**head, **to_json(metrics)} for head, metrics in zip(heads, done.metrics(), strict=True)]
