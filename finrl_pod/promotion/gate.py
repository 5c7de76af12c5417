"""The promotion gate: evidence, rules, further statistics, and the verdict.

A champion is promoted if all rules pass. One rule tests for an edge, with a stated error; the others are conditions of
safety. The allowed error is divided by the number of looks at the test period (Bonferroni). All rules compare with one
reference: the base traded as slowly as the agents trade, or monthly equal weight without a mandate.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from finrl_pod.errors import InputError, RunError
from finrl_pod.evaluate.intervals import DRAWS, MIN_BARS, account_intervals
from finrl_pod.evaluate.metrics import bars_per_year, excess_returns, is_constant, max_drawdown, simple_returns
from finrl_pod.evaluate.overfitting import Overfitting, backtest_overfitting
from finrl_pod.evaluate.selection_null import Selection
from finrl_pod.evaluate.significance import (
    deflated_sharpe,
    minimum_track_record,
    moments,
    probabilistic_sharpe,
    reality_check,
    sharpe_standard_error,
    superior_predictive_ability,
)
from finrl_pod.files import other_folder, read_json, to_plain, write_json
from finrl_pod.promotion.edge import Edge, SelectedPeriod, measure_edge
from finrl_pod.promotion.effective_trials import effective_trial_count
from finrl_pod.promotion.trial_registry import TrialCounts
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.run import GateConfig
from finrl_pod.types import BacktestResult, Floats
from finrl_pod.user_files import is_file_reference, unpinned

VERDICT_FILE = "verdict.json"
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


# ---------------------------------------------------------------------- statistics


def diagnostics(evidence: PromotionEvidence, draws: int) -> dict[str, Any]:
    """Statistics by name; those that cannot be computed are left out."""
    found: dict[str, Any] = {"test_intervals": _test_intervals(evidence)}
    selection = evidence.test if evidence.validation is None else evidence.validation
    with contextlib.suppress(InputError):
        found |= _deflated_sharpe(evidence, active_returns(selection, evidence.reference))
    with contextlib.suppress(InputError):
        found["overfitting"] = _overfitting(backtest_overfitting(varying_trials(evidence.trials), PBO_BLOCKS))
    with contextlib.suppress(InputError):
        own = moments(active_returns(evidence.test, evidence.reference))
        found["probabilistic_sharpe"] = probabilistic_sharpe(own)
        found["minimum_track_record"] = to_plain(minimum_track_record(own))
    with contextlib.suppress(InputError):
        found |= _tests_against_baselines(evidence, draws)
    return found


def _deflated_sharpe(evidence: PromotionEvidence, active: Floats) -> dict[str, float]:
    """Deflated Sharpe ratio of active returns with raw and clustered counts of trials."""
    own, counts = moments(active), evidence.counts
    variance = null_sharpe_variance(evidence.trials)
    return {
        "active_sharpe": own.sharpe,
        "deflated_sharpe": deflated_sharpe(own, variance, max(counts.raw, 1)),
        "deflated_sharpe_clustered": deflated_sharpe(own, variance, max(counts.clustered, 1)),
    }


def null_sharpe_variance(trials: Floats) -> float:
    """Variance of one-period Sharpe ratios that trials [T, N] without skill would have.

    The sample variance of the trials' ratios, but at most their mean sampling error. Ratios of trials without skill
    vary by their sampling error, or less if the trials are correlated. A larger variance comes from skill: some agents
    have learned, others have not yet. Deflating by that would penalise learning.
    """
    values = varying_trials(trials)
    if values.shape[1] < 2:
        return 0.0
    error = float(np.mean([sharpe_standard_error(moments(values[:, n])) ** 2 for n in range(values.shape[1])]))
    return min(float(np.var(trial_sharpes(trials), ddof=1)), error)


def trial_sharpes(trials: Floats) -> Floats:
    """One-period Sharpe ratios of the trials [T, N] whose returns vary."""
    values = varying_trials(trials)
    return np.asarray(values.mean(0) / values.std(0, ddof=1), dtype=np.float64)


def varying_trials(trials: Floats) -> Floats:
    """The trials [T, N] whose returns are finite and not constant."""
    kept = [n for n in range(trials.shape[1]) if np.isfinite(trials[:, n]).all() and not is_constant(trials[:, n])]
    return trials[:, kept]


def _tests_against_baselines(evidence: PromotionEvidence, draws: int) -> dict[str, Any]:
    """p-values on test: of superior predictive ability over each baseline, and of White's Reality Check."""
    ours = simple_returns(evidence.test[CHAMPION].equity)
    p_values = {}
    for name, result in evidence.test.items():
        theirs = simple_returns(result.equity)
        if name != CHAMPION and not is_constant(ours - theirs):
            p_values[name] = superior_predictive_ability(theirs, ours, seed=evidence.seed, draws=draws)
    found: dict[str, Any] = {"superior_ability": p_values}
    theirs = simple_returns(evidence.test[evidence.reference].equity)
    others = [simple_returns(result.equity) for result in evidence.test.values()]
    models = [returns for returns in others if not is_constant(returns - theirs)]
    if models:
        found["reality_check"] = reality_check(theirs, np.stack(models, 1), seed=evidence.seed, draws=draws)
    return found


def _test_intervals(evidence: PromotionEvidence) -> dict[str, Any] | None:
    """Sharpe ratio, annual return and maximum drawdown of the champion on test, with 90% intervals."""
    result = evidence.test[CHAMPION]
    returns = simple_returns(result.equity)
    if is_constant(returns) or returns.min() <= -1:
        return None
    found = account_intervals(
        returns, seed=evidence.seed, periods_per_year=bars_per_year(result.times), risk_free=result.risk_free
    )
    return {name: interval._asdict() for name, interval in found._asdict().items()}


def _overfitting(found: Overfitting) -> dict[str, Any]:
    edge = float(np.abs(found.logits).max()) + 1e-9
    counts, edges = np.histogram(found.logits, LOGIT_BINS, (-edge, edge))
    return {
        "pbo": found.pbo,
        "loss": found.loss_probability,
        "splits": len(found.logits),
        "blocks": found.blocks,
        "trials": found.trials,
        "logits": {"counts": counts.tolist(), "edges": [round(float(x), 6) for x in edges]},
    }


# ---------------------------------------------------------------------- verdict

RULE_FIELDS = tuple(item.name for item in fields(Rule))


@dataclass(frozen=True)
class Verdict:
    """Whether a champion is promoted, and why.

    reasons: sentences of the rules that failed, or of all if it is promoted. trials: raw and clustered counts, and the
    number of runs they come from. looks: at the test period, including this one. edge: fields of `Edge`, empty if the
    test could not be computed. statistics: further plain values.
    """

    promoted: bool
    reasons: tuple[str, ...]
    rules: tuple[Rule, ...] = ()
    trials: Mapping[str, int] = field(default_factory=dict)
    looks: int = 0
    edge: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The verdict as JSON holds it, NaN and infinity as null."""
        values: dict[str, Any] = to_plain({**vars(self), "rules": [asdict(rule) for rule in self.rules]})
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Verdict:
        """Read a verdict from `plain`. Raises RunError for missing fields and for rules that contradict it."""
        try:
            rules = tuple(Rule(**{name: rule[name] for name in RULE_FIELDS}) for rule in values["rules"])
            known = {name: values[name] for name in ("promoted", "trials", "looks", "edge", "statistics")}
            verdict = cls(reasons=tuple(values["reasons"]), rules=rules, **known)
            complete = set(verdict.trials) >= {"raw", "clustered", "runs"}
        except (KeyError, TypeError):
            complete = False
        if not complete:
            raise RunError("the saved verdict is damaged: a field is missing; start a new run")
        if verdict.promoted is not (bool(rules) and all(rule.passed is True for rule in rules)):
            raise RunError("the saved verdict contradicts its own rules: the file was changed; start a new run")
        return verdict


def write_verdict(folder: Path, verdict: Verdict) -> Path:
    """Write verdict.json into a run's folder."""
    return write_json(folder / VERDICT_FILE, verdict.to_dict())


def read_verdict(folder: Path) -> Verdict:
    """Read the verdict of a finished run. Raises RunError if there is none yet or it is damaged."""
    if not (folder / VERDICT_FILE).exists():
        if not folder.exists():
            raise RunError(f"there is no folder {folder}; name the one that the run was written into")
        untested = (
            f"{folder} holds no verdict: it was not tested, or not finished; repeat its command with --resume --out "
            f"{folder} and without --no-test (in Python with resume=True and test=True)"
        )
        raise RunError(other_folder(folder) or untested)
    return Verdict.from_dict(read_json(folder / VERDICT_FILE))


def check(gate: GateConfig) -> None:
    """Raises ConfigError for a threshold out of its range."""
    check_settings("gate.", gate)


def min_bars() -> tuple[int, int]:
    """Bars that validation and test need at least: two returns per block of the PBO, and enough for a bootstrap."""
    return max(2 * PBO_BLOCKS, MIN_BARS) + 1, MIN_BARS + 1


def apply_gate(evidence: PromotionEvidence, gate: GateConfig, draws: int = DRAWS) -> Verdict:
    """Evaluate every rule and issue the verdict. draws: of each bootstrap.

    A rule whose statistic cannot be computed (a champion that equals its reference) fails, and its sentence states why.
    Raises InputError for fewer than 20 returns on test.
    """
    found, edge = edge_rule(evidence, gate)
    rules = (
        found,
        drawdown_rule(evidence),
        break_even_rule(evidence),
        audit_rule(evidence),
    )
    statistics = diagnostics(evidence, draws)
    statistics["audit_warnings"] = list(evidence.warnings)
    promoted = all(rule.passed for rule in rules)
    return Verdict(
        promoted=promoted,
        reasons=tuple(rule.sentence for rule in rules if promoted or not rule.passed),
        rules=rules,
        trials=asdict(evidence.counts),
        looks=evidence.looks,
        edge={} if edge is None else to_plain(edge.to_dict()),
        statistics=to_plain(statistics),
    )
