"""From trained agents to a verdict: the champion is chosen and judged on validation, audited, and tested once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from finrl_pod_strategies.baselines import make_baseline, run_baselines
from finrl_pod_strategies.policy import PolicyStrategy

from finrl_pod.data.splits import Splits
from finrl_pod.errors import DataError
from finrl_pod.evaluate.audit.sensitivity import break_even_cost
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.variations import backtest_recorded, cost_curve
from finrl_pod.market.rules import rules_of
from finrl_pod.promotion.gate import CHAMPION, REFERENCE, PromotionEvidence, fewest_bars
from finrl_pod.promotion.gate import check as check_gate
from finrl_pod.promotion.rules import Rule, check_selection
from finrl_pod.promotion.trial_registry import Look, TrialRegistry
from finrl_pod.settings.run import GateConfig, RunConfig
from finrl_pod.tournament.leaderboard import ChampionMembers
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.types import BacktestResult, MarketTensor, Panel
from finrl_pod_app.services.audit import Audit, audit_champion
from finrl_pod_app.services.champions import champion_market, load_champion
from finrl_pod_app.services.trial_log import TrialLog, champion_identity, dates
from finrl_pod_app.services.verdict import Judged, verdict, write_verdict

PROBES = 4  # of the audit that every run goes through; `finrl-pod audit` probes more
Stage = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class ChampionEvaluation:
    """What came of it. cost_curve: of the champion on test. audit: None where the verdict was there already."""

    validation: Mapping[str, BacktestResult]
    test: Mapping[str, BacktestResult]
    cost_curve: Sequence[Mapping[str, float]]
    judged: Judged
    audit: Audit | None


@dataclass(frozen=True, eq=False)
class EvaluationContext:
    """What a run is judged on. market: on the CPU; last_decision: of the training environments."""

    config: RunConfig
    panel: Panel
    splits: Splits
    market: MarketTensor
    last_decision: int


def check(config: RunConfig, splits: Splits) -> None:
    """Raises ConfigError for a threshold out of its range, DataError for a validation or test split that is too short
    to judge by, before anything is trained."""
    check_lengths(config.gate, len(splits.validation), len(splits.test))


def check_lengths(gate: GateConfig, validation: int, test: int) -> None:
    """The same for numbers of bars."""
    check_gate(gate)
    for name, bars, fewest in zip(("validation", "test"), (validation, test), fewest_bars(gate), strict=True):
        if bars < fewest:
            raise DataError(f"split {name} has {bars} bars, the verdict needs {fewest} at least: widen it")


def check_champion_selection(
    context: EvaluationContext, run: RunDirectory, members: ChampionMembers, registry: TrialRegistry, log: TrialLog
) -> tuple[Rule, Rule]:
    """The rules that validation alone decides, without baselines, audit or a look at the test period. They come out as
    `evaluate_champion` has them, so that one which is not met settles the verdict."""
    span, environment = context.splits.validation, context.config.environment
    champion, market = _entrant(context, run, members)
    result = backtest(champion, context.panel, market, span.first, span.last, rules_of(environment), environment.cash)
    excess = log.champion(result)
    return check_selection(excess, log.matrix(), registry.counts(context.panel.sha256), context.config.gate, {})


def evaluate_champion(
    context: EvaluationContext,
    run: RunDirectory,
    members: ChampionMembers,
    registry: TrialRegistry,
    log: TrialLog,
    stage: Stage,
) -> ChampionEvaluation:
    """Judge a champion. The look at the test period is logged before it is made; where this very champion was judged
    before, that verdict stands. Writes verdict.json into the run's folder."""
    config, panel, splits, environment = context.config, context.panel, context.splits, context.config.environment
    champion, market = _entrant(context, run, members)
    terms = (rules_of(environment), environment.cash)
    stage("validating the champion beside the baselines")
    span = (splits.validation.first, splits.validation.last)
    validation = {
        CHAMPION: backtest(champion, panel, market, *span, *terms),
        **run_baselines(panel, market, *span, *terms),
    }
    log.champion(validation[CHAMPION])
    first, last = dates(panel, splits.test)
    subject = champion_identity(config.sha256, run, members)
    look = Look(panel.sha256, subject, first, last, f"champion of seed {config.seed}")
    kept = registry.verdict(look)
    audit = None
    if kept is None:
        stage("auditing the champion")
        audit = audit_champion(run, panel, config, members, context.last_decision, costs=False, probes=PROBES)
    stage("testing the champion beside the baselines")
    looks = registry.look(look, panel)
    span = (splits.test.first, splits.test.last)
    result, watched = backtest_recorded(champion, panel, market, *span, *terms)
    test = {CHAMPION: result, **run_baselines(panel, market, *span, *terms)}
    if kept is None:
        _, yardstick = backtest_recorded(make_baseline(REFERENCE), panel, market, *span, *terms)
        evidence = PromotionEvidence(
            validation=validation,
            test=test,
            trials=log.matrix(),
            counts=registry.counts(panel.sha256),
            looks=looks,
            cost_bps=environment.cost_bps,
            break_even=break_even_cost(
                watched,
                yardstick,
                market,
                *span,
                *terms,
                at_least=config.gate.break_even_cost_multiple * environment.cost_bps,
            ),
            faults=tuple(f.message for f in audit.findings if f.status == "fail") if audit else None,
            seed=config.seed,
        )
        kept = registry.save_verdict(look, verdict(evidence, config.gate).plain())
    judged = Judged.from_plain(kept)
    write_verdict(run.path, judged)
    return ChampionEvaluation(validation, test, cost_curve(watched, market, *span, *terms), judged, audit)


def _entrant(
    context: EvaluationContext, run: RunDirectory, members: ChampionMembers
) -> tuple[PolicyStrategy, MarketTensor]:
    """The champion with the market it sees: the run's own, or one that has turbulence besides."""
    champion, market = load_champion(run, members), context.market
    if not set(champion.feature_names) <= set(market.feature_names):
        market = champion_market(champion, context.panel, context.config)
    return champion, market
