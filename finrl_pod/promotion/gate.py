"""The promotion gate: evidence, rules, statistics, and the verdict.

One rule tests for an edge, at a level that falls with every look at the test period. The others are
conditions of safety. All compare with the base traded as slowly as the agents trade, or monthly equal weight.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from finrl_pod.errors import InputError, count_text
from finrl_pod.evaluate.intervals import MIN_BARS, account_intervals
from finrl_pod.evaluate.metrics import bars_per_year, excess_returns, is_constant, max_drawdown, simple_returns
from finrl_pod.evaluate.overfitting import Overfitting, Selection, backtest_overfitting, effective_trial_count
from finrl_pod.evaluate.significance import (
    deflated_sharpe,
    minimum_track_record,
    moments,
    probabilistic_sharpe,
    sharpe_standard_error,
)
from finrl_pod.promotion.edge import SelectedPeriod, measure_edge
from finrl_pod.promotion.verdict import (
    Edge,
    Histogram,
    OverfittingStatistics,
    PartialEstimate,
    Rule,
    Statistics,
    TrialCounts,
    Verdict,
    significance_per_look,
)
from finrl_pod.settings.run import GateConfig
from finrl_pod.types import BacktestResult, Floats
from finrl_pod.user_files import is_file_reference, unpinned

REFERENCE = "equal_weight"
CHAMPION = "champion"
MAX_DRAWDOWN = 0.5  # largest fall of equity from a peak
MAX_DRAWDOWN_OVER_BASE = 0.03  # a deeper fall passes if it exceeds the fall of the base by at most this much
LOGIT_BINS = 40
PBO_BLOCKS = 16  # of validation, for the probability of backtest overfitting
BREAK_EVEN_COST_MULTIPLE = 1.5  # of cost_bps, at which growth over the reference must survive on test

Results = Mapping[str, BacktestResult]


@dataclass(frozen=True, eq=False)
class PromotionEvidence:
    """What the gate evaluates.

    validation, test: results of the champion and of every baseline, each over the same bars. validation: None if the
    champion was selected on no single period, as in a walk-forward. trials: [T, N] active returns of the trials that
    the champion was selected from, on validation if there is one. members, selection: arguments of `selected_z_scores`
    for the champion ensemble. procedures: effective number of selections that were compared on validation. counts: all
    trials on the data. looks: number of looks at the test period, including this one. break_even: cost in basis points
    at which the champion grows no faster on test than the reference. failures, warnings: messages of the audit;
    failures is None if there was none. reference: name of the result that active returns are over. base: base of the
    mandate, if the reference is that base, traded as slowly as the agents; else empty. where: name of the test period
    in messages. is_demonstration: True for prices and years that were used to build finrl_pod.
    """

    validation: Results | None
    test: Results
    trials: Floats
    counts: TrialCounts
    looks: int
    cost_bps: float
    break_even: float
    failures: tuple[str, ...] | None
    seed: int
    members: int = 1
    selection: Selection = "best"
    procedures: float = 1.0
    reference: str = REFERENCE
    base: str = ""
    where: str = "on test"
    warnings: tuple[str, ...] = ()
    is_demonstration: bool = False


def readable(name: str) -> str:
    """Format a name for messages: underscores become spaces; of a reference to a file, the hash is left out."""
    return unpinned(name) if is_file_reference(name) else name.replace("_", " ")


def active_returns(results: Results, reference: str = REFERENCE) -> Floats:
    """Simple returns [T-1] of the champion minus the returns of another result."""
    active: Floats = simple_returns(results[CHAMPION].equity) - simple_returns(results[reference].equity)
    return active


# ---------------------------------------------------------------------- rules


def edge_rule(evidence: PromotionEvidence, gate: GateConfig) -> tuple[Rule, Edge | None]:
    """The champion has an edge that is shown and large enough (`measure_edge`); the edge is None without a test."""
    level = significance_per_look(gate.significance_level, evidence.looks)
    champion, reference = (evidence.test[name] for name in (CHAMPION, evidence.reference))
    returns = simple_returns(champion.equity)
    cash = np.zeros_like(returns) if champion.risk_free is None else champion.risk_free
    try:
        edge = measure_edge(
            returns,
            simple_returns(reference.equity),
            cash,
            level=level,
            minimum=gate.minimum_edge,
            validation=selected_period(evidence),
            periods_per_year=bars_per_year(champion.times),
            seed=evidence.seed,
        )
    except InputError as error:
        sentence = f"The test for an edge cannot be computed: {error}"
        return Rule(name="edge", value=None, limit=level, passed=False, sentence=sentence), None
    labels = {"reference": evidence.reference, "portfolio": evidence.base, "where": evidence.where}
    edge = edge.model_copy(update={**labels, "is_demonstration": evidence.is_demonstration})
    sentence = _edge_sentence(edge, evidence, gate)
    is_shown = edge.case == "shown"
    return Rule(name="edge", value=edge.p_value, limit=level, passed=is_shown, sentence=sentence), edge


def _edge_sentence(edge: Edge, evidence: PromotionEvidence, gate: GateConfig) -> str:
    n = evidence.looks
    looks = f" ({2 * gate.significance_level:g} / ({n} × {n + 1}), at look {n} at the test period)"
    base = f" ({readable(evidence.base)}, under the same trading rules)" if evidence.base else ""
    periods = "test alone" if evidence.validation is None else "validation and test together"
    sentence = (
        f"p-value of no edge over {_name(evidence)}{base}: {edge.p_value:.4g} (one-sided, from {periods}), the larger "
        f"of mean active return ({edge.p_active:.2g}) and alpha ({edge.p_alpha:.2g}); must be at most {edge.level:.4g}"
        f"{looks if n > 1 else ''}"
    )
    if edge.p_value > edge.level:
        return sentence
    if edge.case == "too_small":
        smaller = min(edge.active_return.value, edge.alpha.value)
        return (
            f"{sentence}. The smaller of active return and alpha {evidence.where} is {smaller:.2%} per year; must be "
            f"at least {edge.minimum:.2%}"
        )
    if edge.account.sharpe < edge.base.sharpe:
        return (
            f"{sentence}. Sharpe ratio {evidence.where}: {edge.account.sharpe:.3f}; must be at least "
            f"{edge.base.sharpe:.3f}"
        )
    return sentence


def selected_period(evidence: PromotionEvidence) -> SelectedPeriod | None:
    """Validation as the test for an edge takes it; None if there is none."""
    if evidence.validation is None:
        return None
    reference = evidence.validation[evidence.reference]
    return SelectedPeriod(
        active_returns(evidence.validation, evidence.reference),
        excess_returns(reference.equity, reference.risk_free),
        evidence.trials,
        evidence.members,
        evidence.selection,
        evidence.procedures * independent_selections(evidence.trials, evidence.counts),
    )


def independent_selections(trials: Floats, counts: TrialCounts) -> float:
    """Number of independent selections on a data set: distinct trials over the trials of this run, at most its runs.

    trials: [T, N] active returns of the trials of this run.
    """
    return min(max(counts.runs, 1.0), max(counts.clustered / effective_trial_count(trials), 1.0))


def _name(evidence: PromotionEvidence) -> str:
    """The reference in messages."""
    return "its base" if evidence.base else readable(evidence.reference)


def drawdown_rule(evidence: PromotionEvidence) -> Rule:
    """The maximum drawdown on test is small enough, or hardly deeper than for the reference."""
    depth, base = (-float(max_drawdown(evidence.test[name].equity)) for name in (CHAMPION, evidence.reference))
    limit = max(MAX_DRAWDOWN, base + MAX_DRAWDOWN_OVER_BASE)
    sentence = f"Maximum drawdown {evidence.where}: {depth:.1%}; must be at most {limit:.1%}"
    if limit > MAX_DRAWDOWN:
        sentence += f", {MAX_DRAWDOWN_OVER_BASE:.1%} deeper than that of {_name(evidence)}"
    return Rule(name="drawdown", value=depth, limit=limit, passed=depth <= limit, sentence=sentence)


def break_even_rule(evidence: PromotionEvidence) -> Rule:
    """The champion grows faster than the reference on test even at a multiple of the costs."""
    limit = BREAK_EVEN_COST_MULTIPLE * evidence.cost_bps
    cost_text = f"{evidence.break_even:.1f} bp"
    if not math.isfinite(evidence.break_even):
        turnover, base = (
            evidence.test[name].metrics.get("turnover", math.nan) for name in (CHAMPION, evidence.reference)
        )
        cost_text = f"above every cost tried{', as it trades less' if turnover < base else ''}"
    comparison = f"over {_name(evidence)} {evidence.where}"
    sentence = f"Break-even cost {comparison}: {cost_text}; must be at least {limit:g} bp"
    if evidence.break_even == 0:
        sentence = f"No growth {comparison}, even without costs: break-even cost 0 bp; must be at least {limit:g} bp"
    is_passed = evidence.break_even >= limit and evidence.break_even > 0
    return Rule(name="break_even", value=evidence.break_even, limit=limit, passed=is_passed, sentence=sentence)


def audit_rule(evidence: PromotionEvidence) -> Rule:
    """The audit of the champion has no failures."""
    failures = evidence.failures
    if failures is None:
        return Rule(name="audit", value=None, limit=0, passed=False, sentence="The champion was not audited")
    if not failures:
        count = len(evidence.warnings)
        sentence = "The audit found no failures"
        if count:
            sentence += f"; {count_text(count, 'warning')}; promote and the report list them"
        return Rule(name="audit", value=0, limit=0, passed=True, sentence=sentence)
    subject = "1 failure" if len(failures) == 1 else f"{len(failures)} failures, the first"
    sentence = f"The audit found {subject}: {failures[0]}"
    return Rule(name="audit", value=len(failures), limit=0, passed=False, sentence=sentence)


# ---------------------------------------------------------------------- statistics


def diagnostics(evidence: PromotionEvidence) -> Statistics:
    """Statistics of a champion for readers of the verdict; those that cannot be computed are left out."""
    values: dict[str, Any] = {"audit_warnings": evidence.warnings, "test_intervals": _test_intervals(evidence)}
    selection = evidence.test if evidence.validation is None else evidence.validation
    counts = evidence.counts
    with contextlib.suppress(InputError):
        selection_moments = moments(active_returns(selection, evidence.reference))
        variance = null_sharpe_variance(evidence.trials)
        values |= {
            "active_sharpe": selection_moments.sharpe,
            "deflated_sharpe": deflated_sharpe(selection_moments, variance, max(counts.raw, 1)),
            "deflated_sharpe_clustered": deflated_sharpe(selection_moments, variance, max(counts.clustered, 1)),
        }
    with contextlib.suppress(InputError):
        overfitting = backtest_overfitting(varying_trials(evidence.trials), PBO_BLOCKS)
        values["overfitting"] = _overfitting_statistics(overfitting)
    with contextlib.suppress(InputError):
        test_moments = moments(active_returns(evidence.test, evidence.reference))
        values |= {
            "probabilistic_sharpe": probabilistic_sharpe(test_moments),
            "minimum_track_record": minimum_track_record(test_moments),
        }
    return Statistics(**values)


def null_sharpe_variance(trials: Floats) -> float:
    """Variance of one-period Sharpe ratios that trials [T, N] without skill would have.

    The sample variance of the trials' ratios, but at most their mean sampling error. Ratios of trials without skill
    vary by their sampling error, or less if the trials are correlated. A larger variance comes from skill: some agents
    have learned, others have not yet. Deflating by that would penalise learning.
    """
    values = varying_trials(trials)
    if values.shape[1] < 2:
        return 0.0
    error = float(np.mean([sharpe_standard_error(moments(returns)) ** 2 for returns in values.T]))
    return min(float(np.var(values.mean(0) / values.std(0, ddof=1), ddof=1)), error)


def varying_trials(trials: Floats) -> Floats:
    """The trials [T, N] whose returns are finite and not constant."""
    return trials[:, [np.isfinite(returns).all() and not is_constant(returns) for returns in trials.T]]


def _test_intervals(evidence: PromotionEvidence) -> dict[str, PartialEstimate] | None:
    """Sharpe ratio, annual return and maximum drawdown of the champion on test, with 90% intervals."""
    result = evidence.test[CHAMPION]
    returns = simple_returns(result.equity)
    if is_constant(returns) or returns.min() <= -1:
        return None
    intervals = account_intervals(
        returns, seed=evidence.seed, periods_per_year=bars_per_year(result.times), risk_free=result.risk_free
    )
    return {name: PartialEstimate(**interval._asdict()) for name, interval in intervals._asdict().items()}


def _overfitting_statistics(overfitting: Overfitting) -> OverfittingStatistics:
    limit = float(np.abs(overfitting.logits).max()) + 1e-9
    counts, edges = np.histogram(overfitting.logits, LOGIT_BINS, (-limit, limit))
    return OverfittingStatistics(
        pbo=overfitting.pbo,
        loss=overfitting.loss_probability,
        splits=len(overfitting.logits),
        blocks=overfitting.blocks,
        trials=overfitting.trials,
        logits=Histogram(counts=counts.tolist(), edges=tuple(round(float(x), 6) for x in edges)),
    )


# ---------------------------------------------------------------------- verdict


def min_bars() -> tuple[int, int]:
    """Bars that validation and test need at least: two returns per block of the PBO, and enough for a bootstrap."""
    return max(2 * PBO_BLOCKS, MIN_BARS) + 1, MIN_BARS + 1


def apply_gate(evidence: PromotionEvidence, gate: GateConfig) -> Verdict:
    """Evaluate every rule and issue the verdict.

    A rule whose statistic cannot be computed (a champion that equals its reference) fails, and its sentence states why.
    Raises InputError for fewer than 20 returns on test.
    """
    significance, edge = edge_rule(evidence, gate)
    rules = (significance, drawdown_rule(evidence), break_even_rule(evidence), audit_rule(evidence))
    is_promoted = all(rule.passed for rule in rules)
    return Verdict(
        promoted=is_promoted,
        reasons=tuple(rule.sentence for rule in rules if is_promoted or not rule.passed),
        rules=rules,
        trials=evidence.counts,
        looks=evidence.looks,
        edge=edge,
        statistics=diagnostics(evidence),
    )
