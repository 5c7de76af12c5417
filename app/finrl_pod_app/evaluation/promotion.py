"""From trained agents to a verdict: evaluate the champion on validation, audit it, test it once, and its ladder."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from finrl_pod_envs.member_accounts import simulate_ensemble, simulate_members
from finrl_pod_strategies.base_portfolios import with_base
from finrl_pod_strategies.baselines import run_baselines
from finrl_pod_strategies.mandate_account import DecisionRecorder, DesiredTilts
from finrl_pod_strategies.policy import PolicyStrategy

from finrl_pod.data.splits import Span, Splits
from finrl_pod.data.tensor import build_market, first_defined_bar
from finrl_pod.errors import DataError, FeatureError
from finrl_pod.evaluate.audit.sensitivity import break_even_cost
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.metrics import RISK_EPSILON, annual_turnover, bars_per_year, excess_returns, sharpe
from finrl_pod.evaluate.significance import alpha_series, detectable_ratio
from finrl_pod.evaluate.variations import cost_curve
from finrl_pod.market.mandate import active_mandate
from finrl_pod.paper.settings import DataSettings
from finrl_pod.promotion.dataset_fingerprint import is_demonstration
from finrl_pod.promotion.edge import POWER
from finrl_pod.promotion.gate import BREAK_EVEN_COST_MULTIPLE, CHAMPION, PromotionEvidence, apply_gate, min_bars
from finrl_pod.promotion.trial_log import TrialLog, looks_so_far, span_dates
from finrl_pod.promotion.trial_registry import Look, TrialRegistry
from finrl_pod.promotion.verdict import Verdict, significance_per_look, write_verdict
from finrl_pod.rl.acting import MeanActor
from finrl_pod.rl.algorithms.closed_form import regression_weights, scaled
from finrl_pod.rl.networks.policies import LINEAR, PolicySpec
from finrl_pod.settings.algorithm_configs import ClosedFormConfig
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.run import GateConfig, RunConfig
from finrl_pod.tournament.run_directory import START, RunDirectory
from finrl_pod.tournament.selection import (
    COMPARED_PROCEDURES,
    START_SIGNIFICANCE,
    ChampionMembers,
    compared_with_start,
    ensemble_of,
)
from finrl_pod.types import BacktestResult, Floats, MarketTensor, Panel, Tensor
from finrl_pod_app.evaluation.audit import Audit, AuditScope, audit_champion
from finrl_pod_app.evaluation.champions import (
    champion_identity,
    champion_market,
    load_champion,
    period_of,
    reference_base,
    reference_strategy,
)
from finrl_pod_app.evaluation.compiled_backtests import backtest_decisions
from finrl_pod_app.evaluation.execution_rules import within_daemon_limits
from finrl_pod_app.evaluation.score_attribution import score_attribution
from finrl_pod_app.report.records import (
    DetectableDifference,
    MandateBaseline,
    ReportParts,
    Rung,
    RungPeriod,
    ScoreAttribution,
)

BASE = "base"
TRAINED = "rl"
RIDGE = "ridge"
# Rung -> feature and sign of its score, in the order of the table. Defined before any test bar is read.
FIXED_TILTS: Mapping[str, tuple[str, float]] = {
    "momentum": ("momentum_252_21", 1.0),
    "reversal": ("return_5", -1.0),
    "low_volatility": ("volatility_252", -1.0),
}
PERIODS = ("validation", "test")
PROBES = 4  # of the audit within a run; `finrl-pod audit` probes more bars
OnStage = Callable[[Literal["backtests", "audit"], str], None]  # a part of the run, and what it does


@dataclass(frozen=True, eq=False)
class ChampionEvaluation:
    """Results of a champion and the baselines, and the verdict.

    cost_curve: metrics of the champion on test at other costs. audit: None if the champion already had a verdict.
    desired_tilts: tilts of the champion on validation and test, before the limits of its mandate. baselines: accounts
    of `mandate_accounts` on validation and test. score_attribution: attribution of the champion on test.
    """

    validation: Mapping[str, BacktestResult]
    test: Mapping[str, BacktestResult]
    cost_curve: Sequence[Mapping[str, float]]
    verdict: Verdict
    audit: Audit | None
    desired_tilts: Mapping[str, DesiredTilts]
    baselines: Mapping[str, Mapping[str, Curve]]
    score_attribution: ScoreAttribution | None


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

    @cached_property
    def ridge(self) -> Tensor:
        """Weights [1, F] of a ridge regression on the features of the agents, fitted on the training split."""
        train = self.splits.train
        first = max(train.first, self.market.first)
        weights = regression_weights(self.market, first, train.last, self.config.splits.embargo)
        return scaled(weights, self.market, first, train.last).unsqueeze(0)


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
    on_stage("backtests", "validating the champion and the baselines")
    period = period_of(market, splits.validation, config)
    recorders = {"validation": DecisionRecorder(champion), "test": DecisionRecorder(champion)}
    validation = {
        CHAMPION: backtest_decisions(within_daemon_limits(recorders["validation"], config), panel, period, environment)[
            0
        ],
        **run_baselines(panel, period),
        reference.name: log.reference,
    }
    baselines = {"validation": mandate_accounts(context, splits.validation)}
    active_returns = log.champion(validation[CHAMPION])
    first, last = span_dates(panel, splits.test)
    subject = champion_identity(config.sha256, run, members)
    look = Look(panel.sha256, subject, first, last, f"champion of {run.path}, seed {config.seed}")
    verdict = registry.verdict(look)
    audit = None
    if verdict is None:
        scope = AuditScope(PROBES, DataSettings().window, deployed=True)
        audit = audit_champion(
            *(run, panel, config, members, context.market, context.last_decision, scope),
            costs=False,
            on_step=lambda step: on_stage("audit", f"auditing the champion: {step}"),
        )
    on_stage("backtests", "testing the champion and the baselines")
    looks = registry.look(look, panel)
    period = period_of(market, splits.test, config)
    limited_champion = within_daemon_limits(recorders["test"], config)
    result, decisions = backtest_decisions(limited_champion, panel, period, environment)
    reference_result, base_decisions = backtest_decisions(reference, panel, period, environment)
    test = {CHAMPION: result, **run_baselines(panel, period), reference.name: reference_result}
    baselines["test"] = mandate_accounts(context, splits.test)
    if verdict is None:
        findings = () if audit is None else audit.findings
        messages = {status: tuple(f.message for f in findings if f.status == status) for status in ("fail", "warn")}
        highest = BREAK_EVEN_COST_MULTIPLE * environment.cost_bps
        evidence = PromotionEvidence(
            validation=validation,
            test=test,
            counts=registry.counts(panel.sha256),
            looks=looks,
            cost_bps=environment.cost_bps,
            break_even=break_even_cost(decisions, base_decisions, period, at_least=highest),
            failures=None if audit is None else messages["fail"],
            warnings=messages["warn"],
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
    curve = cost_curve(decisions, period)
    reasons = score_attribution(recorders["test"], result)
    return ChampionEvaluation(validation, test, curve, verdict, audit, desired_tilts, baselines, reasons)


def detectable_difference(context: EvaluationContext, tracking_error: float | None) -> DetectableDifference:
    """What the next look at the unseen test can show. tracking_error: the champion's on validation, per year."""
    panel = context.panel
    test = context.splits.test
    periods = bars_per_year(panel.times)
    look = looks_so_far(panel, test) + 1
    level = significance_per_look(context.config.gate.significance_level, look)
    ratio = detectable_ratio(len(test) - 1, periods, level, POWER)
    start, end = context.splits.dates()["test"]
    difference = None if tracking_error is None or tracking_error <= RISK_EPSILON else ratio * tracking_error
    years = (len(test) - 1) / periods
    return DetectableDifference(look=look, start=start, end=end, years=years, ratio=ratio, difference=difference)


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


# ---- the ladder: base, fixed tilts, solved policy, trained ensemble, side by side -----------------------------------
# Base and fixed tilts are never deployed. The trained ensemble replaces the solved policy that it started from only if
# its return over it is shown on validation; nothing is chosen by the test.


@dataclass(frozen=True)
class Curve:
    """equity: [T] marks of an account at the bars of a period. turnover: one-sided, per year."""

    equity: Floats
    turnover: float


def ladder_parts(
    context: EvaluationContext, run: RunDirectory, members: ChampionMembers, evaluation: ChampionEvaluation
) -> ReportParts:
    """The parts `ladder`, `start` and `mandate_baselines` of the report; none without a mandate.

    Call it after the look at the test period is recorded.
    """
    config = context.config
    if active_mandate(config.mandate) is None:
        return {}
    comparison = compared_with_start(run, config, ensemble_of(run, config))
    deployed_rung = START if members.ids == (START,) or config.agent.algorithm == START else TRAINED
    spans = {"validation": context.splits.validation, "test": context.splits.test}
    results = {"validation": evaluation.validation, "test": evaluation.test}
    reference = reference_strategy(config).name
    curves = {
        name: {
            BASE: _curve(results[name][reference]),
            **{rung: curve for rung, curve in evaluation.baselines[name].items() if rung in FIXED_TILTS},
            **_policies(context, run, deployed_rung, spans[name], _curve(results[name][CHAMPION])),
        }
        for name in PERIODS
    }
    rungs = [
        Rung(
            rung=name,
            deployed=name == deployed_rung,
            validation=_period(curves["validation"][name], results["validation"][reference]),
            test=_period(curves["test"][name], results["test"][reference]),
        )
        for name in curves["test"]
    ]
    start = None
    if comparison is not None:
        start = {**vars(comparison), "level": START_SIGNIFICANCE, **dataclasses.asdict(run.start_folds())}
    bases = {name: results[name][reference] for name in PERIODS}
    return {"ladder": rungs, "start": start, "mandate_baselines": mandate_baselines(evaluation.baselines, bases)}


def mandate_baselines(
    accounts: Mapping[str, Mapping[str, Curve]], bases: Mapping[str, BacktestResult]
) -> tuple[MandateBaseline, ...]:
    """Sharpe ratios of `mandate_accounts` on validation, and on test if there is one, ranked on validation.

    bases: results of the reference on the same bars.
    """
    ratios = {name: _sharpe(curve.equity, bases["validation"]) for name, curve in accounts["validation"].items()}
    return tuple(
        MandateBaseline(
            name=name,
            validation_sharpe=ratios[name],
            test_sharpe=_sharpe(accounts["test"][name].equity, bases["test"]) if "test" in bases else None,
        )
        for name in sorted(ratios, key=lambda name: -ratios[name])
    )


def _policies(
    context: EvaluationContext, run: RunDirectory, deployed_rung: str, span: Span, champion: Curve
) -> dict[str, Curve]:
    """Accounts of the champion and of the policy that it started from or that started from it, over a period."""
    if run.has_start and deployed_rung == START:
        ensemble = load_champion(run, ensemble_of(run, context.config))
        return {START: champion, TRAINED: _ensemble_curve(context, ensemble, span)}
    if run.has_start:
        weights = run.snapshot(START).weights[LINEAR]
        return {START: _linear(context, context.market, weights.unsqueeze(0), span)[0], deployed_rung: champion}
    return {deployed_rung: champion}


def _ensemble_curve(context: EvaluationContext, ensemble: PolicyStrategy, span: Span) -> Curve:
    """The account of an ensemble over a period: compiled if it can be, else a backtest."""
    config = context.config
    market = context.market
    curves = None
    if ensemble.rule == "mean" and market.normaliser == ensemble.normaliser:
        terms = (market, config.environment, span.first, span.last, config.mandate)
        curves = simulate_ensemble(ensemble.groups, ensemble.ensemble_weights, *terms)
    if curves is None:
        return _curve(backtest(ensemble, context.panel, period_of(market, span, config)))
    turnover = annual_turnover(curves.turnover[:, 0].numpy(), bars_per_year(market.times))
    return Curve(curves.equity[:, 0].numpy(), turnover)


def mandate_accounts(context: EvaluationContext, span: Span) -> dict[str, Curve]:
    """Accounts of the fixed tilts and of a ridge regression under the mandate of a run; empty without one."""
    if active_mandate(context.config.mandate) is None:
        return {}
    accounts = _fixed_tilts(context, span)
    if context.market.feature_names:
        accounts[RIDGE] = _linear(context, context.market, context.ridge, span)[0]
    return accounts


def _fixed_tilts(context: EvaluationContext, span: Span) -> dict[str, Curve]:
    """Accounts of the fixed tilts, with scores of the same scale as the solved policy; empty without their features."""
    config = context.config
    panel = context.panel
    train = context.splits.train
    names = tuple(dict.fromkeys(feature for feature, _ in FIXED_TILTS.values()))
    market = context.market
    if not set(names) <= set(market.feature_names):
        try:
            market = build_market(panel, names, (train.first, train.last), config.environment.fill)
        except FeatureError:
            return {}
        market = with_base(market, panel, config.mandate)
    weights = np.zeros((len(FIXED_TILTS), len(market.feature_names)))
    for row, (feature, sign) in zip(weights, FIXED_TILTS.values(), strict=True):
        row[market.feature_names.index(feature)] = sign
    first = max(train.first, first_defined_bar(market, names))
    accounts = _linear(context, market, scaled(weights, market, first, train.last), span)
    return dict(zip(FIXED_TILTS, accounts, strict=True))


def _linear(context: EvaluationContext, market: MarketTensor, weights: Tensor, span: Span) -> list[Curve]:
    """Accounts of linear policies with weights [M, F] for the features of a market."""
    config = context.config
    (_, assets, features) = market.shape
    actor = MeanActor(PolicySpec("linear", assets, features, assets, (), action="tilt"))
    rules = dataclasses.replace(config.environment, kind="portfolio")  # scores, whatever the actions of the agents are
    terms = (rules, span.first, span.last, config.mandate)
    curves = simulate_members(actor, {LINEAR: weights.to(market.features)}, market, *terms)
    periods = bars_per_year(market.times)
    return [
        Curve(curves.equity[:, m].numpy(), annual_turnover(curves.turnover[:, m].numpy(), periods))
        for m in range(len(weights))
    ]


def _curve(result: BacktestResult) -> Curve:
    return Curve(np.asarray(result.equity), float(result.metrics["turnover"]))


def _period(curve: Curve, base: BacktestResult) -> RungPeriod:
    """Statistics of an account relative to the base on the same bars."""
    periods = bars_per_year(base.times)
    returns, reference = (excess_returns(equity, base.risk_free) for equity in (curve.equity, base.equity))
    active = returns - reference
    return RungPeriod(
        active_return=float(active.mean()) * periods,
        alpha=float(alpha_series(active, reference).values.mean()) * periods,
        tracking_error=float(active.std(ddof=1)) * math.sqrt(periods),
        sharpe_difference=_sharpe(curve.equity, base) - _sharpe(base.equity, base),
        turnover=curve.turnover,
    )


def _sharpe(equity: Floats, base: BacktestResult) -> float:
    """Sharpe ratio of an account on the bars of the base, over the same cash."""
    return float(sharpe(equity, bars_per_year(base.times), base.risk_free))
