"""Walk-forward: retrain on every fold with several seeds and test on the bars that follow.

Each fold and seed is an ordinary run in OUT/fold-01/seed-0; plan.json has the settings that a resumed one must repeat.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from finrl_pod_strategies.baselines import run_baselines
from finrl_pod_strategies.policy import PolicyStrategy
from finrl_pod_strategies.scheduled import ScheduledStrategy

from finrl_pod.data.dates import stamp
from finrl_pod.data.splits import Fold, Span, make_splits, walk_forward_folds
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError, Interrupted, RunError
from finrl_pod.evaluate.active_management import LEVEL, annual_mean
from finrl_pod.evaluate.audit.sensitivity import break_even_cost
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.metrics import bars_per_year, simple_returns, summary
from finrl_pod.evaluate.variations import backtest_recorded
from finrl_pod.files import read_json, to_plain, write_json, write_text
from finrl_pod.promotion.dataset_fingerprint import is_demonstration
from finrl_pod.promotion.gate import (
    BREAK_EVEN_COST_MULTIPLE,
    CHAMPION,
    REFERENCE,
    PromotionEvidence,
    active_returns,
    apply_gate,
)
from finrl_pod.promotion.trial_log import span_dates
from finrl_pod.promotion.trial_registry import Look, TrialRegistry
from finrl_pod.promotion.verdict import Verdict, write_verdict
from finrl_pod.settings.run import MAX_SEED, RunConfig, SplitConfig
from finrl_pod.tournament.leaderboard import Leaderboard
from finrl_pod.tournament.progress import Progress, ProgressCallback
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.selection import ChampionMembers
from finrl_pod.tournament.tournament import Outcome
from finrl_pod.types import BacktestResult, Floats, Panel
from finrl_pod.user_files import pinned
from finrl_pod_app.evaluation.audit import AuditScope, audit_champion
from finrl_pod_app.evaluation.champions import (
    DECISIONS,
    load_champion,
    member_curves,
    open_trial_log,
    period_of,
    reference_base,
    reference_strategy,
)
from finrl_pod_app.evaluation.mandate_report import attribution_of
from finrl_pod_app.evaluation.promotion import EvaluationContext, check_lengths
from finrl_pod_app.prices.market_setup import check_settings, make_market, training_env, with_effective_settings
from finrl_pod_app.prices.stored_prices import load_panel, with_stored_splits
from finrl_pod_app.report.builder import build_report
from finrl_pod_app.report.html import write_report
from finrl_pod_app.setup.doctor import installed_versions, pick_device
from finrl_pod_app.setup.output_folder import KINDS, RUN, WALK_FORWARD, locked_folder
from finrl_pod_app.setup.progress_file import live_progress
from finrl_pod_app.training.run_clock import Part, RunClock
from finrl_pod_app.training.tournaments import both_callbacks, train

FOLDS, SEEDS = 6, 3
PROBES = 2  # of the audit of each run
FILE, CURVES = "walkforward.json", "curves.csv"
OnStage = Callable[[Part, str], None]  # a part of the run, and what it does


def run_walkforward(
    config: RunConfig,
    out: Path,
    *,
    folds: int = FOLDS,
    seeds: int = SEEDS,
    resume: bool = False,
    device: str = "auto",
    progress: ProgressCallback = lambda _: None,
) -> dict[str, Any]:
    """Train every fold with every seed, test each on its fold, and apply the gate to the combined equity curve.

    The bars from the start of the validation split to the end of the test split are cut into test spans. Each fold
    validates on as many bars before its test as the validation split of the config has, and trains on all bars before
    that. Returns the object of walkforward.json. Raises Interrupted if the user stops it, keeping finished generations.
    """
    if seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {seeds}")
    if config.seed + seeds - 1 > MAX_SEED:
        raise InputError(f"the last of {seeds} seeds must be at most {MAX_SEED}, got {config.seed + seeds - 1}")
    clock = RunClock()
    registry = TrialRegistry()
    registry.check_writable()
    if resume:
        config = RunDirectory(_run_folder(out, 1, config.seed)).with_tables(config)
    config, _ = with_effective_settings(pinned(with_stored_splits(config)))
    panel = load_panel(config)
    planned_folds = plan(config, panel, folds)
    test_bars = planned_folds[-1].test.last - planned_folds[0].test.first + 1
    check_lengths(config.gate, len(planned_folds[0].validation), test_bars)
    torch_device = pick_device(device)
    try:
        with locked_folder(out, WALK_FORWARD):
            open_plan(out, WALK_FORWARD, config, panel, {"folds": folds, "seeds": seeds}, resume=resume)
            fold_runs = []
            for fold, i in itertools.product(planned_folds, range(seeds)):
                prefix = f"fold {fold.number} of {folds}, seed {i + 1} of {seeds}"
                callback = partial(report_with_prefix, progress, prefix)
                clock.enter("preparation")
                context = fold_context(fold_config(config, panel, fold, config.seed + i), panel)
                folder = _run_folder(out, fold.number, config.seed + i)
                clock.enter("training")
                fold_runs.append(train_fold(context, fold, folder, registry, torch_device, callback))

            def on_stage(part: Part, name: str) -> None:
                clock.enter(part)
                progress(Progress(name, 0, 0, 0.0, None, None))

            return report_walkforward(config, panel, fold_runs, out, registry, on_stage, clock)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; finished generations are kept in {out}. Resume with --resume --out {shlex.quote(str(out))}"
        ) from None


def report_with_prefix(progress: ProgressCallback, prefix: str, update: Progress) -> None:
    progress(dataclasses.replace(update, stage=f"{prefix}: {update.stage}"))


def plan(config: RunConfig, panel: Panel, folds: int) -> tuple[Fold, ...]:
    """Cut the validation and test bars of a config into folds."""
    splits = make_splits(panel.times, config.splits)
    bounds = (splits.train.first, splits.validation.first, splits.test.last)
    return walk_forward_folds(*bounds, folds, len(splits.validation), config.splits.embargo)


def fold_config(config: RunConfig, panel: Panel, fold: Fold, seed: int) -> RunConfig:
    """Config of the run of one fold: `make_splits` returns the bars of the fold for it."""

    def day(bar: int) -> str:
        return stamp(panel.times[bar], panel.bar).removesuffix("Z")

    # `make_splits` takes the embargo off the end of train and validation: their dates reach to the next split.
    dates = SplitConfig(
        train=(day(fold.train.first), day(fold.validation.first - 1)),
        validation=(day(fold.validation.first), day(fold.test.first - 1)),
        test=(day(fold.test.first), day(fold.test.last)),
        embargo=config.splits.embargo,
    )
    return dataclasses.replace(config, seed=seed, splits=dates)


def fold_context(config: RunConfig, panel: Panel) -> EvaluationContext:
    """Splits and market of the run of one fold. config: result of `fold_config`."""
    splits = make_splits(panel.times, config.splits)
    market = make_market(panel, config, splits)
    check_settings(config, market, splits)
    return EvaluationContext(config, panel, splits, market, training_env(config, market, splits, (0,)).last)


def train_fold(
    context: EvaluationContext,
    fold: Fold,
    folder: Path,
    registry: TrialRegistry,
    device: torch.device,
    progress: ProgressCallback,
) -> FoldRun:
    """Train one fold with the seed of its config, or resume its run in `folder`."""
    config = context.config
    panel = context.panel
    opener = RunDirectory.resume if (folder / RUN).exists() else RunDirectory.create
    run = opener(folder, config, panel.sha256)
    log = open_trial_log(registry, run, config, panel, context.market, context.splits)
    with live_progress(folder) as live_callback:
        outcome, members = train(context, run, log, device, both_callbacks(progress, live_callback))
    return FoldRun(fold, config.seed, context, run, outcome, members)


def _run_folder(out: Path, fold: int, seed: int) -> Path:
    return out / f"fold-{fold:02d}" / f"seed-{seed}"


def open_plan(
    out: Path, marker: str, config: RunConfig, panel: Panel, plan: Mapping[str, int | Sequence[str]], *, resume: bool
) -> None:
    """Start a series of runs in a new folder, or check that the series to resume has the same plan.

    marker: file of the plan, one of `KINDS`. plan: number of runs and the like.
    """
    settings = {"config_sha256": config.sha256, "data_sha256": panel.sha256, **plan}
    kind = KINDS[marker]
    file = out / marker
    if not resume:
        if file.exists():
            raise RunError(f"{out} already holds {kind}; add --resume to continue it, or choose another --out")
        write_json(file, {**settings, "config": dataclasses.asdict(config)})
        return
    if not file.exists():
        raise RunError(f"there is no {kind.partition(' ')[2]} to resume in {out}; start it without --resume")
    saved_settings = read_json(file)
    for name, value in settings.items():
        if saved_settings.get(name) != to_plain(value):
            setting = name.removesuffix("_sha256")
            raise RunError(
                f"the {kind.partition(' ')[2]} in {out} was started with other {setting}; resume it with the original "
                f"{setting}"
            )


@dataclass(frozen=True, eq=False)
class FoldRun:
    """One fold trained with one seed. outcome: outcome of the run. members: members of the champion."""

    fold: Fold
    seed: int
    context: EvaluationContext
    run: RunDirectory
    outcome: Outcome
    members: ChampionMembers

    @property
    def board(self) -> Leaderboard:
        """Leaderboard of the run."""
        return self.outcome.leaderboard

    def champion(self) -> PolicyStrategy:
        return load_champion(self.run, self.members)


def report_walkforward(
    config: RunConfig,
    panel: Panel,
    fold_runs: Sequence[FoldRun],
    out: Path,
    registry: TrialRegistry,
    on_stage: OnStage,
    clock: RunClock,
) -> dict[str, Any]:
    """Backtest the scheduled champions over all tests, apply the gate, and write the results into `out`.

    The champion of a fold averages the champions of its seeds. The schedule of each seed is tested too. Returns the
    object of walkforward.json.
    """
    on_stage("backtests", "testing the champions of all folds")
    span = Span(fold_runs[0].fold.test.first, max(fold_run.fold.test.last for fold_run in fold_runs))
    names = fold_runs[0].champion().feature_names
    market = build_market(panel, names, (0, len(panel.times) - 1), config.environment.fill)
    period = period_of(market, span, config)
    seeds = sorted({fold_run.seed for fold_run in fold_runs})
    first, last = span_dates(panel, span)
    look = Look(panel.sha256, _identity(config, fold_runs), first, last, f"walk-forward of {len(seeds)} seeds in {out}")
    verdict = registry.verdict(look)
    failures, warnings = ((), ()) if verdict else _audit_messages(fold_runs, on_stage)
    on_stage("backtests", "testing the champions of all folds")
    looks = registry.look(look, panel)
    champions = _schedule(panel, [(fold, _fold_champion(fold_runs, fold)) for fold in _folds(fold_runs)])
    result, decisions = backtest_recorded(champions, panel, period)
    by_seed = {
        seed: backtest(
            _schedule(panel, [(run.fold, run.champion()) for run in fold_runs if run.seed == seed]), panel, period
        )
        for seed in seeds
    }
    reference = reference_strategy(config)
    reference_result, base_decisions = backtest_recorded(reference, panel, period)
    results = {CHAMPION: result, **run_baselines(panel, period), reference.name: reference_result}
    if verdict is None:
        highest = BREAK_EVEN_COST_MULTIPLE * config.environment.cost_bps
        evidence = PromotionEvidence(
            validation=None,
            test=results,
            trials=_trial_returns(fold_runs, reference_result, span),
            counts=registry.counts(panel.sha256),
            looks=looks,
            cost_bps=config.environment.cost_bps,
            break_even=break_even_cost(decisions, base_decisions, period, at_least=highest),
            failures=failures,
            warnings=warnings,
            seed=config.seed,
            reference=reference.name,
            base=reference_base(config),
            where="out of sample",
            is_demonstration=is_demonstration(panel),
        )
        verdict = registry.save_verdict(look, apply_gate(evidence, config.gate))
    write_verdict(out, verdict)
    on_stage("report", "writing the report")
    timing = clock.timing(*(fold_run.outcome for fold_run in fold_runs))
    document = to_plain(_document(config, panel, fold_runs, by_seed, results, reference.name, span, verdict))
    document["timing"] = timing.model_dump()
    write_json(out / FILE, document, indent=2)
    curves = {**results, **{f"champion of seed {seed}": seed_result for seed, seed_result in by_seed.items()}}
    index = pd.Index([stamp(time, "1m").removesuffix("T00:00Z") for time in result.times], name="time")
    equity = pd.DataFrame({name: curve.equity for name, curve in curves.items()}, index)
    write_text(out / CURVES, equity.to_csv(float_format="%.2f"))
    report = build_report(
        config=config,
        panel=panel,
        splits={"test": [first, last]},
        results=results,
        versions=installed_versions(),
        verdict=verdict,
        parts={
            "active_attribution": attribution_of(result, reference_result, panel, config.seed),
            "timing": timing,
        },
    )
    write_report(out, report, results)
    return dict(document)


def _folds(fold_runs: Sequence[FoldRun]) -> list[Fold]:
    return list({fold_run.fold.number: fold_run.fold for fold_run in fold_runs}.values())


def _fold_champion(fold_runs: Sequence[FoldRun], fold: Fold) -> PolicyStrategy:
    """Ensemble of the champions of all seeds of a fold, with equal weights."""
    runs_of_fold = [fold_run for fold_run in fold_runs if fold_run.fold == fold]
    snapshots = [fold_run.run.snapshot(agent) for fold_run in runs_of_fold for agent in fold_run.members.ids]
    weights = [weight / len(runs_of_fold) for fold_run in runs_of_fold for weight in fold_run.members.ensemble_weights]
    return PolicyStrategy(snapshots, weights, rule=runs_of_fold[0].members.rule)


def _schedule(panel: Panel, champions: Sequence[tuple[Fold, PolicyStrategy]]) -> ScheduledStrategy:
    return ScheduledStrategy([(panel.times[fold.test.first], champion) for fold, champion in champions])


def _audit_messages(fold_runs: Sequence[FoldRun], on_stage: OnStage) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Audit the champion of every fold and seed; returns the messages of failures, and each warning once."""
    failures: list[str] = []
    warnings: dict[str, None] = {}
    for fold_run in fold_runs:
        label = f"fold {fold_run.fold.number}, seed {fold_run.seed}"
        on_stage("audit", f"auditing {label}")
        context = fold_run.context
        subject = (fold_run.run, context.panel, context.config, fold_run.members, context.market, context.last_decision)
        audit = audit_champion(*subject, AuditScope(PROBES), costs=False)
        failures += [f"{label}: {finding.message}" for finding in audit.findings if finding.status == "fail"]
        warnings |= dict.fromkeys(finding.message for finding in audit.findings if finding.status == "warn")
    return tuple(failures), tuple(warnings)


def _trial_returns(fold_runs: Sequence[FoldRun], reference: BacktestResult, span: Span) -> Floats:
    """Out-of-sample active returns [T, N]: for each seed, one column per rank of its leaderboards.

    Each fold starts from cash. Ranks that some leaderboard of the seed lacks are left out.
    """
    base = simple_returns(reference.equity)
    columns = []
    for seed in sorted({fold_run.seed for fold_run in fold_runs}):
        runs_of_seed = [run for run in fold_runs if run.seed == seed]
        ranks = min(len(run.board.scores) for run in runs_of_seed)
        returns = [_ranked_returns(run, ranks, min(run.fold.test.last + 1, span.last)) for run in runs_of_seed]
        columns.append(np.concatenate(returns) - base[:, None])
    return np.concatenate(columns, axis=1)


def _ranked_returns(fold_run: FoldRun, ranks: int, last: int) -> Floats:
    """Simple returns [bars, ranks] of the best agents of a leaderboard, from the start of the test to bar `last`."""
    agents = [fold_run.run.snapshot(score.id) for score in fold_run.board.scores[:ranks]]
    context = fold_run.context
    columns = [np.empty(0)] * ranks
    for members, curves in member_curves(agents, context.market, context.config, fold_run.fold.test.first, last):
        for i, equity in zip(members, curves.equity.cpu().numpy().T, strict=True):
            columns[i] = simple_returns(equity)
    return np.stack(columns, 1)


def _identity(config: RunConfig, fold_runs: Sequence[FoldRun]) -> str:
    """Identity of a walk-forward: hash of its config, the version and the weights of all champions."""
    digest = hashlib.sha256(repr((config.sha256, DECISIONS)).encode())
    for fold_run in fold_runs:
        digest.update(repr((fold_run.fold.number, fold_run.seed, fold_run.members.ensemble_weights)).encode())
        for agent in fold_run.members.ids:
            weights = fold_run.run.snapshot(agent).weights
            for name in sorted(weights):
                digest.update(np.ascontiguousarray(weights[name].numpy()).tobytes())
    return digest.hexdigest()


def _document(
    config: RunConfig,
    panel: Panel,
    fold_runs: Sequence[FoldRun],
    by_seed: Mapping[int, BacktestResult],
    results: Mapping[str, BacktestResult],
    reference: str,
    span: Span,
    verdict: Verdict,
) -> dict[str, Any]:
    """The object of walkforward.json: results by fold and seed, difference to the base, baselines, and the verdict."""

    def days(bars: Span) -> list[str]:
        return list(span_dates(panel, bars))

    folds = _folds(fold_runs)
    same_close = config.environment.fill == "same_close"
    runs = [
        {
            "fold": fold_run.fold.number,
            "seed": fold_run.seed,
            **_fold_metrics(by_seed[fold_run.seed], fold_run.fold, span, same_close=same_close),
            "members": list(fold_run.members.ids),
            "validation_sharpe": fold_run.board.scores[0].score,
        }
        for fold_run in fold_runs
    ]
    year = bars_per_year(panel.times)
    active = active_returns(results, reference)  # of the mean of the seeds: the unit of the intervals is the bar
    return {
        "config_sha256": config.sha256,
        "data": {"name": panel.name, "sha256": panel.sha256},
        "out_of_sample": days(span),
        "folds": [
            {
                "fold": fold.number,
                **{name: days(getattr(fold, name)) for name in ("train", "validation", "test")},
                "equal_weight_sharpe": _fold_metrics(results[REFERENCE], fold, span, same_close=same_close)["sharpe"],
                "difference": annual_mean(active[_fold_bars(fold, span)], LEVEL, year)._asdict(),
            }
            for fold in folds
        ],
        "runs": runs,
        "seeds": [{"seed": seed, **to_plain(result.metrics)} for seed, result in by_seed.items()],
        "difference": annual_mean(active, LEVEL, year)._asdict(),
        "strategies": {name: to_plain(result.metrics) for name, result in results.items()},
        "verdict": verdict.to_dict(),
    }


def _fold_bars(fold: Fold, span: Span) -> slice:
    """The returns of a result that are inside the test of a fold. span: bars of the whole result."""
    return slice(fold.test.first - span.first, min(fold.test.last + 1, span.last) - span.first)


def _fold_metrics(result: BacktestResult, fold: Fold, span: Span, *, same_close: bool) -> dict[str, float | None]:
    """Metrics of the part of a result inside the test of a fold."""
    bars = _fold_bars(fold, span)
    rows = slice(bars.start, bars.stop + 1)
    cash = None if result.risk_free is None else result.risk_free[bars]
    turnover, costs = result.turnover[rows].copy(), result.costs[rows].copy()
    # The bar where two folds meet is in both; its trades belong to the fold that decided them.
    if same_close:
        if bars.stop < span.last - span.first:
            turnover[-1] = costs[-1] = 0.0
    elif bars.start > 0:
        turnover[0] = costs[0] = 0.0
    return dict(to_plain(summary(result.equity[rows], turnover, costs, bars_per_year(result.times), cash)))
