"""From trained agents to a verdict: evaluate the champion on validation, audit it, and test it once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from finrl_pod_strategies.baselines import run_baselines
from finrl_pod_strategies.mandate_account import DesiredTilts, MandateRecorder

from finrl_pod.data.splits import Splits
from finrl_pod.errors import DataError
from finrl_pod.evaluate.audit.pipeline import Status
from finrl_pod.evaluate.audit.sensitivity import break_even_cost
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.variations import backtest_recorded, cost_curve
from finrl_pod.promotion.dataset_fingerprint import is_demonstration
from finrl_pod.promotion.gate import BREAK_EVEN_COST_MULTIPLE, CHAMPION, PromotionEvidence, apply_gate, min_bars
from finrl_pod.promotion.trial_log import TrialLog, span_dates
from finrl_pod.promotion.trial_registry import Look, TrialRegistry
from finrl_pod.promotion.verdict import Verdict, write_verdict
from finrl_pod.settings.algorithm_configs import ClosedFormConfig
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.run import GateConfig, RunConfig
from finrl_pod.tournament.run_directory import START, RunDirectory
from finrl_pod.tournament.selection import COMPARED_PROCEDURES, START_SIGNIFICANCE, ChampionMembers
from finrl_pod.types import BacktestResult, MarketTensor, Panel
from finrl_pod_app.evaluation.audit import Audit, AuditScope, audit_champion
from finrl_pod_app.evaluation.champions import (
    champion_identity,
    champion_market,
    load_champion,
    period_of,
    reference_base,
    reference_strategy,
)
from finrl_pod_app.evaluation.execution_rules import within_daemon_limits

PROBES = 4  # of the audit within a run; `finrl-pod audit` probes more bars
OnStage = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class ChampionEvaluation:
    """Results of a champion and the baselines, and the verdict.

    cost_curve: metrics of the champion on test at other costs. audit: None if the champion already had a verdict.
    desired_tilts: tilts of the champion on validation and test, before the limits of its mandate.
    """

    validation: Mapping[str, BacktestResult]
    test: Mapping[str, BacktestResult]
    cost_curve: Sequence[Mapping[str, float]]
    verdict: Verdict
    audit: Audit | None
    desired_tilts: Mapping[str, DesiredTilts]


@dataclass(frozen=True, eq=False)
class EvaluationContext:
    """Config, prices, splits and market that a run is evaluated on.

    market: stored in CPU memory. last_decision: last bar of the training environments.
    """

    config: RunConfig
    panel: Panel
    splits: Splits
    market: MarketTensor
    last_decision: int


def check_lengths(gate: GateConfig, validation: int, test: int) -> None:
    """Check before training that a verdict will be possible. validation, test: number of bars.

    Raises ConfigError for a threshold out of range, DataError for too few validation or test bars.
    """
    check_settings("gate.", gate)
    for name, bars, minimum in zip(("validation", "test"), (validation, test), min_bars(), strict=True):
        if bars < minimum:
            raise DataError(f"split {name} has {bars} bars, the verdict needs at least {minimum}; widen it")


def evaluate_champion(
    context: EvaluationContext,
    run: RunDirectory,
    members: ChampionMembers,
    registry: TrialRegistry,
    log: TrialLog,
    on_stage: OnStage,
) -> ChampionEvaluation:
    """Evaluate a champion on validation and test, apply the gate, and write verdict.json into the run folder.

    Without a mandate the champion is tested within the limits that the paper-trading daemon would cut its weights to.
    The look at the test period is logged before it happens. If the same champion already has a verdict, it is
    reused.
    """
    config, panel, splits, environment = context.config, context.panel, context.splits, context.config.environment
    champion = load_champion(run, members)
    market = context.market
    if not set(champion.feature_names) <= set(market.feature_names):  # it also has turbulence
        market = champion_market(champion, panel, config)
    reference = reference_strategy(config)
    on_stage("validating the champion and the baselines")
    period = period_of(market, splits.validation, config)
    recorders = {"validation": MandateRecorder(champion), "test": MandateRecorder(champion)}
    validation = {
        CHAMPION: backtest(within_daemon_limits(recorders["validation"], config), panel, period),
        **run_baselines(panel, period),
        reference.name: backtest(reference, panel, period),
    }
    active_returns = log.champion(validation[CHAMPION])
    first, last = span_dates(panel, splits.test)
    subject = champion_identity(config.sha256, run, members)
    look = Look(panel.sha256, subject, first, last, f"champion of {run.path}, seed {config.seed}")
    verdict = registry.verdict(look)
    audit = None
    if verdict is None:
        audit = audit_champion(
            *(run, panel, config, members, context.last_decision, AuditScope(PROBES)),
            costs=False,
            on_step=lambda step: on_stage(f"auditing the champion: {step}"),
        )
    on_stage("testing the champion and the baselines")
    looks = registry.look(look, panel)
    period = period_of(market, splits.test, config)
    limited_champion = within_daemon_limits(recorders["test"], config)
    result, decisions = backtest_recorded(limited_champion, panel, period)
    reference_result, base_decisions = backtest_recorded(reference, panel, period)
    test = {CHAMPION: result, **run_baselines(panel, period), reference.name: reference_result}
    if verdict is None:
        highest = BREAK_EVEN_COST_MULTIPLE * environment.cost_bps
        evidence = PromotionEvidence(
            validation=validation,
            test=test,
            counts=registry.counts(panel.sha256),
            looks=looks,
            cost_bps=environment.cost_bps,
            break_even=break_even_cost(decisions, base_decisions, period, at_least=highest),
            failures=_messages(audit, "fail") if audit else None,
            warnings=_messages(audit, "warn") if audit else (),
            seed=config.seed,
            trials=active_returns[:, None],
            reference=reference.name,
            base=reference_base(config),
            is_demonstration=is_demonstration(panel),
        )
        evidence = _with_selection(evidence, run, config, members, log)
        verdict = registry.save_verdict(look, apply_gate(evidence, config.gate))
    write_verdict(run.path, verdict)
    desired_tilts = {
        name: recorders[name].desired_tilts(results[CHAMPION].times, len(panel.symbols))
        for name, results in (("validation", validation), ("test", test))
    }
    return ChampionEvaluation(validation, test, cost_curve(decisions, period), verdict, audit, desired_tilts)


def _messages(audit: Audit, status: Status) -> tuple[str, ...]:
    return tuple(finding.message for finding in audit.findings if finding.status == status)


def _with_selection(
    evidence: PromotionEvidence, run: RunDirectory, config: RunConfig, members: ChampionMembers, log: TrialLog
) -> PromotionEvidence:
    """Evidence with the trials among which an ensemble was selected. A solved policy was not selected on validation.

    An ensemble that took the place of its start was selected by a test on the same bars that one in
    1 / `START_SIGNIFICANCE` ensembles without an edge passes: its selection counts so many times.
    """
    if members.ids == (START,) or isinstance(config.agent, ClosedFormConfig):
        return evidence
    is_greedy = members.procedure == "greedy"
    procedures = COMPARED_PROCEDURES if config.tournament.selection == "cross_validated" else 1.0
    return dataclasses.replace(
        evidence,
        trials=log.matrix(),
        members=config.tournament.champion if is_greedy else len(members.ids),
        selection="greedy" if is_greedy else "best",
        procedures=procedures / (START_SIGNIFICANCE if run.has_start else 1.0),
    )
