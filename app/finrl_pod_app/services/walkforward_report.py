"""What a walk-forward has shown: its champions one after another on one account, beside everything that was tried."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from finrl_pod_strategies.baselines import make_baseline, run_baselines
from finrl_pod_strategies.policy import PolicyStrategy
from finrl_pod_strategies.scheduled import ScheduledStrategy

from finrl_pod import __version__
from finrl_pod.data.dates import stamp
from finrl_pod.data.splits import Span
from finrl_pod.data.tensor import build_market
from finrl_pod.evaluate.audit.sensitivity import break_even_cost
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.folds import Fold
from finrl_pod.evaluate.metrics import bars_per_year, simple_returns, summary
from finrl_pod.evaluate.seed_statistics import (
    interquartile_mean,
    interquartile_mean_interval,
    probability_of_improvement,
)
from finrl_pod.evaluate.variations import backtest_recorded
from finrl_pod.files import to_plain, write_text
from finrl_pod.market.rules import rules_of
from finrl_pod.promotion.gate import CHAMPION, REFERENCE, PromotionEvidence
from finrl_pod.promotion.trial_registry import Look, TrialRegistry
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.leaderboard import ChampionMembers, Leaderboard
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.types import BacktestResult, Floats, Panel
from finrl_pod_app.report.document import build_document, write_json
from finrl_pod_app.report.html import write_report
from finrl_pod_app.services.audit import audit_champion
from finrl_pod_app.services.champions import load_champion, member_ledgers
from finrl_pod_app.services.doctor import installed_versions
from finrl_pod_app.services.promotion import EvaluationContext
from finrl_pod_app.services.trial_log import dates
from finrl_pod_app.services.verdict import Judged, verdict, write_verdict

PROBES = 2  # of the audit of each run
WHERE = ("out of sample", "out of sample")
FILE, CURVES = "walkforward.json", "curves.csv"


@dataclass(frozen=True, eq=False)
class FoldRun:
    """A fold trained by one seed. board: its leaderboard. members: of its champion."""

    fold: Fold
    seed: int
    context: EvaluationContext
    run: RunDirectory
    board: Leaderboard
    members: ChampionMembers

    def champion(self) -> PolicyStrategy:
        """The ensemble of this fold_run."""
        return load_champion(self.run, self.members)


def report_walkforward(
    config: RunConfig,
    panel: Panel,
    fold_runs: Sequence[FoldRun],
    out: Path,
    registry: TrialRegistry,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Run the relay of champions and each seed's alone over all tests, judge it, and write what came out."""
    span = Span(fold_runs[0].fold.test.first, max(fold_run.fold.test.last for fold_run in fold_runs))
    names = fold_runs[0].champion().feature_names
    market = build_market(panel, names, (0, len(panel.times) - 1), config.environment.fill)
    terms = (panel, market, span.first, span.last, rules_of(config.environment), config.environment.cash)
    seeds = sorted({fold_run.seed for fold_run in fold_runs})
    first, last = dates(panel, span)
    look = Look(panel.sha256, _subject(config, fold_runs), first, last, f"walk-forward of {len(seeds)} seeds")
    kept = registry.verdict(look)
    audits = [] if kept else _audit(fold_runs, tell)
    tell("stitching the champions of all folds")
    looks = registry.look(look, panel)
    result, watched = backtest_recorded(
        _scheduled(panel, [_together(fold_runs, fold) for fold in _folds(fold_runs)]), *terms
    )
    alone = {
        seed: backtest(
            _scheduled(
                panel, [(fold_run.fold, fold_run.champion()) for fold_run in fold_runs if fold_run.seed == seed]
            ),
            *terms,
        )
        for seed in seeds
    }
    results = {CHAMPION: result, **run_baselines(*terms)}
    if kept is None:
        evidence = PromotionEvidence(
            validation=results,
            test=results,
            trials=_trials(fold_runs, results[REFERENCE], span),
            counts=registry.counts(panel.sha256),
            looks=looks,
            cost_bps=config.environment.cost_bps,
            break_even=break_even_cost(
                watched,
                backtest_recorded(make_baseline(REFERENCE), *terms)[1],
                *terms[1:],
                at_least=config.gate.break_even_cost_multiple * config.environment.cost_bps,
            ),
            faults=tuple(audits),
            seed=config.seed,
            where=WHERE,
        )
        kept = registry.save_verdict(look, verdict(evidence, config.gate).plain())
    judged = Judged.from_plain(kept)
    write_verdict(out, judged)
    tell("writing the report")
    document = to_plain(_document(config, panel, fold_runs, alone, results, span, judged))
    write_json(out / FILE, document)
    write_text(out / CURVES, _csv(results, alone))
    page = build_document(
        config=config,
        panel=panel,
        splits={"test": [first, last]},
        results=results,
        versions=installed_versions(),
        verdict=judged,
    )
    write_report(out, page, results)
    return dict(document)


# ---------------------------------------------------------------------- pieces


def _folds(fold_runs: Sequence[FoldRun]) -> list[Fold]:
    return list({fold_run.fold.number: fold_run.fold for fold_run in fold_runs}.values())


def _together(fold_runs: Sequence[FoldRun], fold: Fold) -> tuple[Fold, PolicyStrategy]:
    """The champions of all seeds of a fold as one: their weights are averaged."""
    own = [fold_run for fold_run in fold_runs if fold_run.fold == fold]
    snapshots = [fold_run.run.snapshot(agent) for fold_run in own for agent in fold_run.members.ids]
    shares = [share / len(own) for fold_run in own for share in fold_run.members.shares]
    return fold, PolicyStrategy(snapshots, shares, rule=own[0].members.rule)


def _scheduled(panel: Panel, runners: Sequence[tuple[Fold, PolicyStrategy]]) -> ScheduledStrategy:
    return ScheduledStrategy([(panel.times[fold.test.first], champion) for fold, champion in runners])


def _audit(fold_runs: Sequence[FoldRun], tell: Callable[[str], None]) -> list[str]:
    """Faults in every fold's and seed's way from prices to decisions."""
    faults = []
    for fold_run in fold_runs:
        where = f"fold {fold_run.fold.number}, seed {fold_run.seed}"
        tell(f"auditing {where}")
        context = fold_run.context
        found = audit_champion(
            fold_run.run,
            context.panel,
            context.config,
            fold_run.members,
            context.last_decision,
            costs=False,
            probes=PROBES,
        )
        faults += [f"{where}: {finding.message}" for finding in found.findings if finding.status == "fail"]
    return faults


def _trials(fold_runs: Sequence[FoldRun], reference: BacktestResult, span: Span) -> Floats:
    """[T, N] returns over equal weight out of sample: for each seed, who stood first, second, ... on its leaderboards.

    Each fold starts from cash; a place that some leaderboard does not have is left out.
    """
    equal = simple_returns(reference.equity)
    columns = []
    for seed in sorted({fold_run.seed for fold_run in fold_runs}):
        own = [fold_run for fold_run in fold_runs if fold_run.seed == seed]
        places = min(len(fold_run.board.scores) for fold_run in own)
        parts = [_members_returns(fold_run, places, min(fold_run.fold.test.last + 1, span.last)) for fold_run in own]
        columns.append(np.concatenate(parts) - equal[:, None])
    return np.concatenate(columns, axis=1)


def _members_returns(fold_run: FoldRun, places: int, last: int) -> Floats:
    """[bars, places] simple returns of the best of a leaderboard from the first bar of the fold's test to `last`."""
    agents = [fold_run.run.snapshot(score.id) for score in fold_run.board.scores[:places]]
    context, columns = fold_run.context, [np.empty(0)] * places
    for members, ledger in member_ledgers(
        agents, context.market, context.config.environment, fold_run.fold.test.first, last
    ):
        for i, equity in zip(members, ledger.equity.cpu().numpy().T, strict=True):
            columns[i] = simple_returns(equity)
    return np.stack(columns, 1)


def _document(
    config: RunConfig,
    panel: Panel,
    fold_runs: Sequence[FoldRun],
    alone: Mapping[int, BacktestResult],
    results: Mapping[str, BacktestResult],
    span: Span,
    judged: Judged,
) -> dict[str, Any]:
    """Every fold's and seed's part of its own stitched curve, the baselines', and what seeds say together."""

    def part(result: BacktestResult, fold: Fold) -> dict[str, float | None]:
        begin, end = fold.test.first - span.first, min(fold.test.last + 1, span.last) - span.first
        rows = slice(begin, end + 1)
        cash = None if result.risk_free is None else result.risk_free[begin:end]
        turnover, costs = result.turnover[rows].copy(), result.costs[rows].copy()
        # A bar where folds meet is in both; what was traded there belongs to the one that decided it.
        if config.environment.fill == "same_close":
            if end < span.last - span.first:
                turnover[-1] = costs[-1] = 0.0
        elif begin > 0:
            turnover[0] = costs[0] = 0.0
        columns = (result.equity[rows], turnover, costs)
        return dict(to_plain(summary(*columns, bars_per_year(result.times), cash)))

    def days(of: Span) -> list[str]:
        return list(dates(panel, of))

    folds = _folds(fold_runs)
    runs = [
        {
            "fold": fold_run.fold.number,
            "seed": fold_run.seed,
            **part(alone[fold_run.seed], fold_run.fold),
            "members": list(fold_run.members.ids),
            "validation_sharpe": fold_run.board.scores[0].score,
        }
        for fold_run in fold_runs
    ]
    scores = np.array(
        [[row["sharpe"] for row in runs if row["seed"] == seed] for seed in alone], dtype=np.float64
    )  # [seeds, folds]
    equal = np.array([[part(results[REFERENCE], fold)["sharpe"] for fold in folds]], dtype=np.float64)
    together: dict[str, Any] = {"interquartile_mean": interquartile_mean(scores)}
    if len(alone) > 1:
        together["interval"] = interquartile_mean_interval(scores, seed=config.seed)._asdict()
        improvement = probability_of_improvement(scores, equal, seed=config.seed)
        together["improvement_over_equal_weight"] = improvement._asdict()
    return {
        "config_sha256": config.sha256,
        "data": {"name": panel.name, "sha256": panel.sha256},
        "out_of_sample": days(span),
        "folds": [
            {
                "fold": fold.number,
                **{name: days(getattr(fold, name)) for name in ("train", "validation", "test")},
                "equal_weight_sharpe": float(equal[0, i]),
            }
            for i, fold in enumerate(folds)
        ],
        "runs": runs,
        "seeds": [{"seed": seed, **to_plain(result.metrics)} for seed, result in alone.items()],
        "seeds_together": together,
        "strategies": {name: to_plain(result.metrics) for name, result in results.items()},
        "verdict": judged.plain(),
    }


def _csv(results: Mapping[str, BacktestResult], alone: Mapping[int, BacktestResult]) -> str:
    """A line a bar: its time, and the equity of every curve. Names are our own, so no cell is a formula."""
    curves = {**results, **{f"champion of seed {seed}": result for seed, result in alone.items()}}
    lines = [",".join(["time", *curves])]
    for t, time in enumerate(results[CHAMPION].times):
        values = (f"{result.equity[t]:.2f}" for result in curves.values())
        lines.append(",".join([stamp(time, "1m").removesuffix("T00:00Z"), *values]))
    return "\n".join(lines) + "\n"


def _subject(config: RunConfig, fold_runs: Sequence[FoldRun]) -> str:
    """What names a walk-forward: its config, its version, and the very weights of all its champions."""
    digest = hashlib.sha256(repr((config.sha256, __version__)).encode())
    for fold_run in fold_runs:
        digest.update(repr((fold_run.fold.number, fold_run.seed, fold_run.members.shares)).encode())
        for agent in fold_run.members.ids:
            weights = fold_run.run.snapshot(agent).weights
            for name in sorted(weights):
                digest.update(np.ascontiguousarray(weights[name].numpy()).tobytes())
    return digest.hexdigest()
