"""Run a tournament from a config to its report, for `finrl-pod demo`, `tournament` and `train`."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from finrl_pod_envs.market_env import MarketEnv
from finrl_pod_envs.trading_envs import make_env
from finrl_pod_strategies.base_portfolios import with_base

from finrl_pod.data.splits import Splits, make_splits
from finrl_pod.data.tensor import build_market, to_device
from finrl_pod.data.worlds import REWARD_LAG, TrainingWorlds, check_augmentation, make_worlds
from finrl_pod.errors import Interrupted
from finrl_pod.files import to_plain
from finrl_pod.promotion.trial_log import TrialLog
from finrl_pod.promotion.trial_registry import TrialRegistry
from finrl_pod.rl.algorithms.registry import validate as validate_agent
from finrl_pod.settings.run import RunConfig, validate_tournament
from finrl_pod.tournament.leaderboard import ancestry
from finrl_pod.tournament.progress import Progress, ProgressCallback
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.tournament.scoring import MarketScorer
from finrl_pod.tournament.selection import ChampionMembers, champion_of
from finrl_pod.tournament.tournament import Outcome, Tournament
from finrl_pod.types import MarketTensor, Normaliser, Panel
from finrl_pod_app.report.document import Champion, Timing, bootstrap_band, build_document, subject_of
from finrl_pod_app.report.html import write_report
from finrl_pod_app.services.custom_tournament import run_custom_tournament
from finrl_pod_app.services.doctor import installed_versions, pick_device
from finrl_pod_app.services.mandate_report import mandate_parts, mandate_period
from finrl_pod_app.services.output_folder import RUN, locked_folder
from finrl_pod_app.services.prices import load_panel
from finrl_pod_app.services.progress_file import live_progress
from finrl_pod_app.services.promotion import ChampionEvaluation, EvaluationContext, evaluate_champion
from finrl_pod_app.services.promotion import check as check_verdict
from finrl_pod_app.services.trial_log import open_trial_log


def run_tournament(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    device: str = "auto",
    progress: ProgressCallback = lambda _: None,
) -> dict[str, Any]:
    """Train a population, pick the champion on validation, test it once, and write report.json and report.html.

    Returns the contents of report.json; on an environment without a market those of result.json
    (`custom_tournament`). Raises Interrupted on Ctrl-C; finished generations are on disk.
    """
    start = time.perf_counter()
    if resume:
        config = RunDirectory.config_to_resume(out, config)
    if config.environment.kind == "custom":
        return run_custom_tournament(config, out, resume=resume, device=device, progress=progress)
    _stages(progress)("reading prices and features")
    torch_device = pick_device(device)
    panel = load_panel(config)
    splits = make_splits(panel.times, config.splits)
    check_verdict(config, splits)
    market = make_market(panel, config, splits)
    check_settings(config, market, splits)
    open_run = RunDirectory.resume if resume else RunDirectory.create
    context = EvaluationContext(config, panel, splits, market, training_env(config, market, splits, (0,)).last)
    try:
        with locked_folder(out, RUN):
            run = open_run(out, config, panel.sha256)
            with live_progress(out) as write_progress:
                callback = both_callbacks(progress, write_progress)
                outcome, members, evaluation = compete(context, run, TrialRegistry(), torch_device, callback)
                _stages(callback)("writing the report", outcome)
                document = build_document(
                    config=config,
                    panel=panel,
                    splits=splits.dates(),
                    results=evaluation.test,
                    versions=installed_versions(),
                    champion=_described(config, members, outcome),
                    leaderboard=outcome.leaderboard.scores,
                    verdict=evaluation.verdict,
                    timing=_timing(outcome, time.perf_counter() - start),
                    cost_curve=evaluation.cost_curve,
                )
                document |= to_plain(_mandate_parts(context, evaluation))
                strategies = {name: to_plain(result.metrics) for name, result in evaluation.validation.items()}
                document["validation"] = {"strategies": strategies}
                document["test"]["band"] = bootstrap_band(
                    evaluation.test[subject_of(evaluation.test)].equity, config.seed
                )
                write_report(out, document, evaluation.test)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; finished generations are kept in {out}. Resume with --resume --out {shlex.quote(str(out))}"
        ) from None
    return document


def compete(
    context: EvaluationContext,
    run: RunDirectory,
    registry: TrialRegistry,
    device: torch.device,
    progress: ProgressCallback = lambda _: None,
) -> tuple[Outcome, ChampionMembers, ChampionEvaluation]:
    """Train a population, record every trial in the registry, and evaluate its champion."""
    stage = _stages(progress)
    outcome, members, log = train(context, run, registry, device, progress)
    return outcome, members, evaluate_champion(context, run, members, registry, log, lambda name: stage(name, outcome))


def train(
    context: EvaluationContext,
    run: RunDirectory,
    registry: TrialRegistry,
    device: torch.device,
    progress: ProgressCallback = lambda _: None,
) -> tuple[Outcome, ChampionMembers, TrialLog]:
    """Train a population and choose its champion, without evaluating it."""
    config, splits = context.config, context.splits
    log = open_trial_log(registry, run, config, context.panel, context.market, splits)
    tournament = tournament_of(config, context.panel, context.market, splits, run, device, progress, log)
    outcome = tournament.run()
    return outcome, champion_of(run, config), log


def tournament_of(
    config: RunConfig,
    panel: Panel,
    market: MarketTensor,
    splits: Splits,
    run: RunDirectory,
    device: torch.device,
    progress: ProgressCallback,
    log: TrialLog,
) -> Tournament:
    """Return a tournament that trains on the training split and scores on the validation split, on a device."""
    moved = to_device(market, device)
    worlds = training_worlds(config, panel, market, splits, device)
    return Tournament(
        config,
        lambda members: training_env(config, moved, splits, members, worlds),
        MarketScorer(moved, config, (splits.validation.first, splits.validation.last)),
        run,
        panel.sha256,
        progress,
        log,
    )


def make_market(panel: Panel, config: RunConfig, splits: Splits) -> MarketTensor:
    """Return the market of a panel, its features normalised by statistics of the training split only."""
    return _build(panel, config, (splits.train.first, splits.train.last))


def training_worlds(
    config: RunConfig, panel: Panel, market: MarketTensor, splits: Splits, device: torch.device
) -> TrainingWorlds | None:
    """Return the worlds that agents train on, on a device, or None if they train on the training split as it is."""
    made = make_worlds(
        panel,
        splits.train,
        market,
        lambda varied: _build(varied, config, market.normaliser),
        config.augmentation,
        config.seed,
    )
    return None if made is None else dataclasses.replace(made, market=to_device(made.market, device))


def training_env(
    config: RunConfig,
    market: MarketTensor,
    splits: Splits,
    members: Sequence[int],
    worlds: TrainingWorlds | None = None,
) -> MarketEnv:
    """Return environments on the training split, or on its variations if `worlds` are given.

    The last decision is two bars before the end, so that its fill and its reward lie inside the split.
    """
    if worlds is None:
        last = splits.train.last - REWARD_LAG
        return make_env(
            market,
            config.environment,
            members=members,
            first=splits.train.first,
            last=last,
            mandate=config.mandate,
        )
    window = worlds.window(config.environment.window)
    return make_env(
        worlds.market,
        dataclasses.replace(config.environment, window=window),
        members=members,
        first=worlds.first,
        last=worlds.last,
        mandate=config.mandate,
        starts=[worlds.starts(member, window) for member in members],
    )


def check_settings(config: RunConfig, market: MarketTensor, splits: Splits) -> None:
    """Raise ConfigError for settings that a tournament cannot run with, before anything is written."""
    validate_tournament(config.tournament, cohorts=1 + len(config.cohorts))
    env = training_env(config, market, splits, (0,))
    check_augmentation(config.augmentation, config.environment, env.last - env.first - env.episode_bars + 2)
    for agent in (config.agent, *config.cohorts):
        validate_agent(agent, env)


def _build(panel: Panel, config: RunConfig, fit: tuple[int, int] | Normaliser) -> MarketTensor:
    environment = config.environment
    turbulence = environment.turbulence_limit > 0
    market = build_market(panel, config.features.names, fit, environment.fill, turbulence=turbulence)
    return with_base(market, panel, config.mandate)


def both_callbacks(first: ProgressCallback, second: ProgressCallback) -> ProgressCallback:
    """Return a callback that calls two."""

    def report(progress: Progress) -> None:
        first(progress)
        second(progress)

    return report


def _mandate_parts(context: EvaluationContext, evaluation: ChampionEvaluation) -> dict[str, Any]:
    """The report's parts on the mandate, on validation and test."""
    config, span = context.config, context.splits.test
    periods = {
        name: mandate_period(config, results, evaluation.desired[name])
        for name, results in (("validation", evaluation.validation), ("test", evaluation.test))
    }
    return mandate_parts(config, evaluation.test, periods, context.panel, context.market, (span.first, span.last))


def _described(config: RunConfig, members: ChampionMembers, outcome: Outcome) -> Champion:
    slots = {score.id: score.slot for score in outcome.leaderboard.scores}
    algorithms = sorted({config.agent_of(slots[agent]).algorithm for agent in members.ids})
    return Champion(
        id="+".join(members.ids),
        algorithm=", ".join(algorithms),
        members=members.ids,
        shares=members.ensemble_weights,
        roots=members.roots,
        mean_correlation=members.mean_correlation,
        selection=members.procedure,
        lineage={agent: ancestry(agent, outcome.parents) for agent in members.ids},
    )


def _timing(outcome: Outcome, total: float) -> Timing:
    rate = outcome.samples / max(outcome.train_seconds, 1e-9)
    return Timing(outcome.samples, outcome.train_seconds, rate, total)


def _stages(progress: ProgressCallback) -> Callable[..., None]:
    """Return a function that reports a stage other than training, with the best score so far."""

    def stage(name: str, outcome: Outcome | None = None) -> None:
        best = outcome.leaderboard.best if outcome else None
        samples = outcome.samples if outcome else 0
        rate = samples / max(outcome.train_seconds, 1e-9) if outcome else 0.0
        progress(Progress(name, samples, samples, rate, None if best is None else best.score, None))

    return stage
