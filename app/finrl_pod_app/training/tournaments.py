"""Run a tournament from a config to its report, for `finrl-pod demo`, `tournament` and `train`."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from finrl_pod.data.splits import Splits, make_splits
from finrl_pod.data.store import Store, describe
from finrl_pod.errors import InputError, Interrupted
from finrl_pod.evaluate.attribution import attribution
from finrl_pod.evaluate.metrics import bars_per_year
from finrl_pod.files import write_json
from finrl_pod.market.rules import rules_of
from finrl_pod.memory import release_freed_memory
from finrl_pod.native.device import restored_threads
from finrl_pod.promotion.trial_log import TrialLog, looks_so_far
from finrl_pod.promotion.trial_registry import TrialRegistry
from finrl_pod.promotion.verdict import significance_per_look
from finrl_pod.rl.networks.policies import LINEAR
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.assignment import groups_of_slots
from finrl_pod.tournament.leaderboard import ancestry
from finrl_pod.tournament.progress import Progress, ProgressCallback
from finrl_pod.tournament.run_directory import START, RunDirectory
from finrl_pod.tournament.selection import ChampionMembers, champion_of
from finrl_pod.tournament.tournament import Outcome, Tournament
from finrl_pod.types import Panel
from finrl_pod.user_files import FOLDER, keep_folder, pinned
from finrl_pod_app.evaluation import promotion
from finrl_pod_app.evaluation.backtests import prepare
from finrl_pod_app.evaluation.champions import open_trial_log
from finrl_pod_app.evaluation.execution_rules import daemon_limits_sentences
from finrl_pod_app.evaluation.finished_backtest import BacktestTerms, FinishedBacktest, run_test
from finrl_pod_app.evaluation.mandate_report import mandate_parts, mandate_period
from finrl_pod_app.prices.market_setup import (
    check_settings,
    make_market,
    make_trainer,
    training_env,
    with_effective_settings,
)
from finrl_pod_app.prices.stored_prices import load_panel, panel_to_resume, with_stored_splits
from finrl_pod_app.report.builder import bootstrap_band, build_report, leaderboard_rows, rule_sentences, subject_of
from finrl_pod_app.report.columns import CHAMPION
from finrl_pod_app.report.html import write_page, write_report
from finrl_pod_app.report.records import REPORT_FILE, Champion, RunReport
from finrl_pod_app.report.verdict_text import few_bars_sentence
from finrl_pod_app.setup.doctor import installed_versions, pick_device
from finrl_pod_app.setup.kernels import compile_kernels
from finrl_pod_app.setup.output_folder import RUN, check_room, locked_folder
from finrl_pod_app.setup.progress_file import live_progress
from finrl_pod_app.training.custom_tournament import run_custom_tournament
from finrl_pod_app.training.engines import LOCAL, EngineOptions, joined_cluster, logged_run, open_executor
from finrl_pod_app.training.resources import Estimate, check_memory, check_ranges
from finrl_pod_app.training.run_clock import Part, RunClock
from finrl_pod_app.training.start_policy import prepare_start


@restored_threads()
def run_tournament(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    device: str = "auto",
    progress: ProgressCallback = lambda _: None,
    engine: EngineOptions = LOCAL,
    test: bool = True,
    on_note: Callable[[str], None] = lambda _: None,
) -> RunReport | dict[str, Any]:
    """Train a population, pick the champion on validation, test it once, and write report.json and report.html.

    test: otherwise the test period stays unseen, and the champion is backtested on validation; resumed with a test, the
    run is tested. on_note: called with warnings before the training.

    Returns the report, or the report of the backtest on validation with champion and leaderboard; on a custom
    environment the contents of result.json. Raises Interrupted on Ctrl-C; finished generations are on disk.
    """
    clock = RunClock()
    engine.check()
    if resume:
        keep_folder(out / FOLDER)
        config = RunDirectory(out).with_tables(config)
    else:
        RunDirectory.check_new(out)  # before prices are read
    check_room(out)
    config, unused_note = with_effective_settings(pinned(with_stored_splits(config, out if resume else None)))
    if unused_note:
        on_note(unused_note)
    if config.environment.kind == "custom":
        if not test:
            raise InputError("a tournament on an environment of your own has no test period; leave out --no-test")
        return run_custom_tournament(config, out, resume=resume, device=device, progress=progress)
    check_ranges(config)
    registry = TrialRegistry()
    registry.check_writable()
    torch_device = pick_device(device)
    saved_panel = panel_to_resume(config, out) if resume else None
    if engine.name != "ray":
        manifest = Store().show(config.data.name) if saved_panel is None else describe(saved_panel)
        check_memory(config, manifest, torch_device, 1 if engine.shards is None else engine.shards)
    _stages(progress)("reading prices and features")
    panel = load_panel(config) if saved_panel is None else saved_panel
    splits = make_splits(panel.times, config.splits)
    promotion.check_lengths(config.gate, len(splits.validation), len(splits.test))
    market = make_market(panel, config, splits)
    check_settings(config, market, splits)
    open_run = RunDirectory.resume if resume else RunDirectory.create
    if engine.name == "ray":
        _stages(progress)("connecting to Ray" if engine.address else "starting Ray")
    context = promotion.EvaluationContext(
        config, panel, splits, market, training_env(config, market, splits, (0,)).last
    )
    try:
        with joined_cluster(engine), locked_folder(out, RUN):
            run = open_run(out, config, panel.sha256)
            if test and (note := _few_bars(config, panel, splits)):
                on_note(note)
            with live_progress(out) as write_progress:
                log = open_trial_log(registry, run, config, panel, market, splits)
                base = log.reference.metrics["sharpe"]
                callback = with_base(both_callbacks(progress, write_progress), base)
                compile_kernels(_stages(callback))
                clock.enter("training")
                outcome, members = train(context, run, log, torch_device, callback, engine)
                if not test:
                    tested = run_test(prepare(out, split="validation"), BacktestTerms())
                    report = _validation_report(context, tested, log, _champion(config, members, outcome), outcome)
                    if not (out / REPORT_FILE).exists():  # of an earlier test
                        write_page(out, report, tested.results)
                    return report
                stage = _stages(callback)

                def on_stage(part: Part, name: str) -> None:
                    clock.enter(part)
                    stage(name, outcome)

                evaluation = promotion.evaluate_champion(context, run, members, registry, log, on_stage)
                on_stage("report", "writing the report")
                strategies = {name: dict(result.metrics) for name, result in evaluation.validation.items()}
                periods = {
                    name: mandate_period(config, results, evaluation.desired_tilts[name])
                    for name, results in (("validation", evaluation.validation), ("test", evaluation.test))
                }
                profit = attribution(evaluation.test[CHAMPION], market, rules_of(config.environment))
                report = build_report(
                    config=config,
                    panel=panel,
                    splits=splits.dates(),
                    results=evaluation.test,
                    versions=installed_versions(),
                    leaderboard=outcome.leaderboard.scores,
                    verdict=evaluation.verdict,
                    cost_curve=evaluation.cost_curve,
                    band=bootstrap_band(evaluation.test[subject_of(evaluation.test)].equity, config.seed),
                    parts={
                        "champion": _champion(config, members, outcome),
                        "rules": [*rule_sentences(config.environment, panel), *daemon_limits_sentences(config)],
                        "timing": clock.timing(outcome),
                        "attribution": {"by_asset": profit.by_asset(), "by_year": profit.by_year()},
                        "score_attribution": evaluation.score_attribution,
                        "validation": {"strategies": strategies},
                        "looks_so_far": looks_so_far(panel, splits.test),
                        "base_score": base,
                        "search": config.tournament.search,
                        **mandate_parts(config, panel, evaluation.test, periods),
                        **promotion.ladder_parts(context, run, members, evaluation),
                    },
                )
                write_report(out, report, evaluation.test)
                report = report.model_copy(update={"timing": clock.timing(outcome)})  # with the seconds of the page
                write_json(out / REPORT_FILE, report.to_dict(), indent=2)
    except KeyboardInterrupt:
        if not (out / "config.json").exists():
            raise
        contents = "no assignment had finished, the settings"
        if (out / "state.json").exists():
            contents = "finished generations"
        elif any((out / "results").glob("*")):
            contents = "finished assignments"
        raise Interrupted(
            f"interrupted; {contents} are kept in {out}. Go on with the same command and --resume --out "
            f"{shlex.quote(str(out))}"
        ) from None
    return report


def _validation_report(
    context: promotion.EvaluationContext, tested: FinishedBacktest, log: TrialLog, champion: Champion, outcome: Outcome
) -> RunReport:
    """The report of a champion whose test is unseen, on validation. tested: its backtest there."""
    splits = context.splits
    period = " to ".join(splits.dates()["validation"])
    accounts = {"validation": promotion.mandate_accounts(context, splits.validation)}
    report = tested.report(with_band=False)
    tracking_error = report.added.tracking_error if report.added else None
    return report.model_copy(
        update={
            "champion": champion,
            "leaderboard": leaderboard_rows(outcome.leaderboard.scores),
            "base_score": log.reference.metrics["sharpe"],
            "mandate_baselines": promotion.mandate_baselines(accounts, {"validation": log.reference}),
            "period": f"Period: validation split, {period}. The test period is unseen.",
            "looks_so_far": looks_so_far(context.panel, splits.test),
            "detectable": promotion.detectable_difference(context, tracking_error),
        }
    )


class Plan(NamedTuple):
    """Resources of a planned tournament. look: number of the next look at test bars, None without a market.

    notes: warnings, such as that the test has few bars.
    """

    estimate: Estimate
    look: int | None
    notes: tuple[str, ...]


def plan_tournament(config: RunConfig, *, device: str = "auto", engine: EngineOptions = LOCAL) -> Plan:
    """Check a config against its prices, and estimate the memory and time of its tournament; nothing is written.

    Raises ConfigError for settings out of range, for splits that do not fit the dates of the panel, and for a run that
    needs more memory than is free; FeatureError for features that the panel does not have or that cannot be computed.
    """
    engine.check()
    config, unused_note = with_effective_settings(pinned(with_stored_splits(config)))
    check_ranges(config)
    shards = 1 if engine.shards is None else engine.shards
    estimate = check_memory(config, Store().show(config.data.name), pick_device(device), shards)
    if config.environment.kind == "custom":
        return Plan(estimate, None, ())
    panel = load_panel(config)
    splits = make_splits(panel.times, config.splits)
    promotion.check_lengths(config.gate, len(splits.validation), len(splits.test))
    check_settings(config, make_market(panel, config, splits), splits)
    notes = [note for note in (unused_note, _few_bars(config, panel, splits)) if note]
    return Plan(estimate, looks_so_far(panel, splits.test) + 1, tuple(notes))


def _few_bars(config: RunConfig, panel: Panel, splits: Splits) -> str:
    """A warning if the test is too short to show an edge at the next look; else empty."""
    level = significance_per_look(config.gate.significance_level, looks_so_far(panel, splits.test) + 1)
    return few_bars_sentence(len(splits.test), bars_per_year(panel.times), level)


def train(
    context: promotion.EvaluationContext,
    run: RunDirectory,
    log: TrialLog,
    device: torch.device,
    progress: ProgressCallback = lambda _: None,
    engine: EngineOptions = LOCAL,
) -> tuple[Outcome, ChampionMembers]:
    """Train a population on the training split and score it on validation; choose its champion."""
    config = context.config
    prepare_start(config, run, context.market, context.splits, progress)
    start = run.snapshot(START).weights[LINEAR] if run.has_start else None
    trainer = partial(make_trainer, config, context.panel, context.market, context.splits, device, start=start)
    try:
        with open_executor(engine, config, context.panel, trainer, device, start) as executor:
            if engine.replay is None:
                outcome = Tournament(config, run, executor, progress, log).run()
            else:
                groups = groups_of_slots(config, logged_run(engine.replay, config).groups)
                # A replay ignores time limits: the log says where the original run stopped.
                outcome = Tournament(config, run, executor, progress, log, groups, clock=lambda: 0.0).run()
    finally:
        release_freed_memory()
    return outcome, champion_of(run, config)


def both_callbacks(first: ProgressCallback, second: ProgressCallback) -> ProgressCallback:
    def report(progress: Progress) -> None:
        first(progress)
        second(progress)

    return report


def with_base(report: ProgressCallback, score: float) -> ProgressCallback:
    """Return a callback that adds the validation score of the base to a progress."""
    return lambda progress: report(dataclasses.replace(progress, base=score))


def _champion(config: RunConfig, members: ChampionMembers, outcome: Outcome) -> Champion:
    slots = {score.id: score.slot for score in outcome.leaderboard.scores}
    algorithms = sorted({START if agent == START else config.agent_of(slots[agent]).algorithm for agent in members.ids})
    return Champion(
        id="+".join(members.ids),
        algorithm=", ".join(algorithms),
        members=members.ids,
        shares=members.ensemble_weights,
        roots=members.roots,
        mean_correlation=members.mean_correlation,
        selection=members.procedure,
        lineage={agent: tuple(ancestry(agent, outcome.parents)) for agent in members.ids},
    )


def _stages(progress: ProgressCallback) -> Callable[..., None]:
    """Return a function that begins a stage other than training: it reports it with the best score so far."""

    def stage(name: str, outcome: Outcome | None = None) -> None:
        release_freed_memory()  # memory of the previous stage
        best = outcome.leaderboard.best if outcome else None
        samples = outcome.samples if outcome else 0
        rate = outcome.samples_per_second if outcome else 0.0
        progress(Progress(name, samples, samples, rate, None if best is None else best.score, None))

    return stage
