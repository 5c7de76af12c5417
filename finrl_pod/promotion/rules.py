"""The rules of the promotion gate, and the evidence that they evaluate.

One rule tests for an edge, with a stated error; the others are conditions of safety that a champion with an edge meets.
The allowed error is divided by the number of looks at the test period (Bonferroni). All rules compare with one
reference: the base traded as slowly as the agents trade, or monthly equal weight without a mandate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from finrl_pod.errors import InputError
from finrl_pod.evaluate.metrics import bars_per_year, excess_returns, max_drawdown, simple_returns
from finrl_pod.evaluate.selection_null import Selection
from finrl_pod.files import to_plain
from finrl_pod.promotion.edge import Edge, measure_edge
from finrl_pod.promotion.edge_significance import SelectedPeriod
from finrl_pod.promotion.effective_trials import effective_trial_count
from finrl_pod.promotion.trial_registry import TrialCounts
from finrl_pod.settings.run import GateConfig
from finrl_pod.types import BacktestResult, Floats
from finrl_pod.user_files import is_file_reference, unpinned

REFERENCE = "equal_weight"
CHAMPION = "champion"
MAX_DRAWDOWN = 0.5  # largest fall of equity from a peak
MAX_DRAWDOWN_OVER_BASE = 0.03  # a deeper fall passes if it exceeds the fall of the base by at most this much
BREAK_EVEN_COST_MULTIPLE = 1.5  # of cost_bps, at which growth over the reference must survive on test

Results = Mapping[str, BacktestResult]


@dataclass(frozen=True, eq=False)
class PromotionEvidence:
    """What the gate evaluates.

    validation, test: results of the champion and of every baseline, each over the same bars. validation: None if the
    champion was selected on no single period, as in a walk-forward. trials: [T, N] active returns of the trials that
    the champion was selected from, on validation if there is one. members, selection: of the champion ensemble, see
    `selected_z_scores`. procedures: effective number of selections that were compared on validation. counts: all trials
    on the data. looks: at the test period, including this one. break_even: cost in basis points at which the champion's
    growth on test falls to that of the reference. failures, warnings: messages of the audit; failures is None if there
    was none. reference: name of the result that active returns are over. base: of the champion's mandate, if the
    reference is that base, traded as slowly as the agents; else empty. where: name of the test period in messages.
    is_demonstration: True for prices and years that were used to build finrl_pod.
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


@dataclass(frozen=True)
class Rule:
    """Outcome of one rule. value: None if it could not be computed; the rule then fails. sentence: for readers."""

    name: str
    value: float | None
    limit: float
    passed: bool
    sentence: str


def readable(name: str) -> str:
    """Format a name for messages: underscores become spaces; of a reference to a file, the hash is left out."""
    return unpinned(name) if is_file_reference(name) else name.replace("_", " ")


def active_returns(results: Results, over: str = REFERENCE) -> Floats:
    """Simple returns [T-1] of the champion minus those of another result."""
    active: Floats = simple_returns(results[CHAMPION].equity) - simple_returns(results[over].equity)
    return active


# ---------------------------------------------------------------------- edge


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
            reference=evidence.reference,
            portfolio=evidence.base,
            where=evidence.where,
            is_demonstration=evidence.is_demonstration,
        )
    except InputError as error:
        sentence = f"The test for an edge cannot be computed: {error}"
        return Rule("edge", None, level, passed=False, sentence=sentence), None
    rule = Rule("edge", edge.p_value, level, edge.case == "shown", _edge_sentence(edge, evidence, gate))
    return rule, edge


def _edge_sentence(edge: Edge, evidence: PromotionEvidence, gate: GateConfig) -> str:
    looks = f" ({gate.significance_level:g} / {evidence.looks}, at look {evidence.looks} at the test period)"
    base = f" ({readable(evidence.base)}, traded as slowly as the agents trade)" if evidence.base else ""
    periods = "test alone" if evidence.validation is None else "validation and test together"
    sentence = (
        f"p-value of no edge over {_name(evidence)}{base}: {edge.p_value:.4g} (one-sided, from {periods}), the larger "
        f"of mean active return ({edge.p_active:.2g}) and alpha ({edge.p_alpha:.2g}); must be at most {edge.level:.4g}"
        f"{looks if evidence.looks > 1 else ''}"
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
            f"{sentence}. Sharpe ratio {evidence.where}: {edge.account.sharpe:.3f}; must be at least the reference's, "
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
    """Number of independent selections on a data set: its distinct trials over those of this run, at most its runs.

    trials: [T, N] active returns of this run's trials.
    """
    return min(max(counts.runs, 1.0), max(counts.clustered / effective_trial_count(trials), 1.0))


def significance_per_look(significance: float, looks: int) -> float:
    """Significance level of the last of several looks at the test period."""
    return significance / max(looks, 1)


def _name(evidence: PromotionEvidence) -> str:
    """The reference in messages."""
    return "its base" if evidence.base else readable(evidence.reference)


# ---------------------------------------------------------------------- safety


def drawdown_rule(evidence: PromotionEvidence) -> Rule:
    """The maximum drawdown on test is small enough, or hardly deeper than that of the reference."""
    depth, base = (-float(max_drawdown(evidence.test[name].equity)) for name in (CHAMPION, evidence.reference))
    limit = max(MAX_DRAWDOWN, base + MAX_DRAWDOWN_OVER_BASE)
    sentence = f"Maximum drawdown {evidence.where}: {depth:.1%}; must be at most {limit:.1%}"
    if limit > MAX_DRAWDOWN:
        sentence += f", {MAX_DRAWDOWN_OVER_BASE:.1%} deeper than that of {_name(evidence)}"
    return Rule("drawdown", depth, limit, depth <= limit, sentence)


def break_even_rule(evidence: PromotionEvidence) -> Rule:
    """The champion grows faster than the reference on test even at a multiple of the costs."""
    limit = BREAK_EVEN_COST_MULTIPLE * evidence.cost_bps
    shown = f"{evidence.break_even:.1f} bp"
    if not math.isfinite(evidence.break_even):
        own, base = (evidence.test[name].metrics.get("turnover", math.nan) for name in (CHAMPION, evidence.reference))
        shown = f"above every cost tried{', as it trades less' if own < base else ''}"
    over = f"over {_name(evidence)} {evidence.where}"
    sentence = f"Break-even cost {over}: {shown}; must be at least {limit:g} bp"
    if evidence.break_even == 0:
        sentence = f"No growth {over}, even without costs: break-even cost 0 bp; must be at least {limit:g} bp"
    passed = evidence.break_even >= limit and evidence.break_even > 0
    return Rule("break_even", to_plain(evidence.break_even), limit, passed, sentence)


def audit_rule(evidence: PromotionEvidence) -> Rule:
    """The audit of the champion has no failures."""
    failures = evidence.failures
    if failures is None:
        return Rule("audit", None, 0, passed=False, sentence="The champion was not audited")
    if not failures:
        warned = len(evidence.warnings)
        many = f"; {warned} warning{'s' * (warned > 1)}, which promote and the report list" if warned else ""
        return Rule("audit", 0, 0, passed=True, sentence=f"The audit found no failures{many}")
    count = "1 failure" if len(failures) == 1 else f"{len(failures)} failures, the first"
    return Rule("audit", len(failures), 0, passed=False, sentence=f"The audit found {count}: {failures[0]}")
