"""The rules of the promotion gate, and the evidence that they evaluate.

Trials were selected on validation, so the rules there account for their number: deflated Sharpe ratio and probability
of backtest overfitting, on returns over equal weight. Nothing was selected on test; the rules there account for the
number of looks at the test period, by which the allowed error is divided (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from finrl_pod.errors import InputError
from finrl_pod.evaluate.intervals import growth_interval
from finrl_pod.evaluate.metrics import bars_per_year, is_constant, max_drawdown, sharpe, simple_returns
from finrl_pod.evaluate.overfitting import Overfitting, backtest_overfitting
from finrl_pod.evaluate.significance import (
    deflated_sharpe,
    minimum_track_record,
    moments,
    probabilistic_sharpe,
    reality_check,
    sharpe_standard_error,
    superior_predictive_ability,
)
from finrl_pod.evaluate.simulate import RUIN_FLOOR
from finrl_pod.files import to_plain
from finrl_pod.promotion.trial_registry import TrialCounts
from finrl_pod.settings.run import GateConfig
from finrl_pod.types import BacktestResult, Floats

REFERENCE = "equal_weight"
CHAMPION = "champion"
BASIS_POINT = 1e-4
LOGIT_BINS = 40

Results = Mapping[str, BacktestResult]


@dataclass(frozen=True, eq=False)
class PromotionEvidence:
    """What the gate evaluates.

    validation, test: results of the champion and of every baseline, each over the same bars. trials: [T, N] returns
    over equal weight on validation of the trials that the champion was selected from. counts: all trials on the data.
    looks: at the test period, including this one. break_even: cost in basis points at which the champion's growth on
    test falls to that of equal weight. failures: messages of the audit, None if there was none. where: names of the two
    periods in messages; a walk-forward has only one.
    """

    validation: Results
    test: Results
    trials: Floats
    counts: TrialCounts
    looks: int
    cost_bps: float
    break_even: float
    failures: tuple[str, ...] | None
    seed: int
    where: tuple[str, str] = ("on validation", "on test")


@dataclass(frozen=True)
class Rule:
    """Outcome of one rule. value: None if it could not be computed; the rule then fails. sentence: for readers."""

    name: str
    value: float | None
    limit: float
    passed: bool
    sentence: str


def readable(name: str) -> str:
    """Format a name for messages: underscores become spaces."""
    return name.replace("_", " ")


def log_returns(result: BacktestResult) -> Floats:
    """Log returns [T-1] of a result's equity; equity below `RUIN_FLOOR` of the first mark counts as that."""
    returns: Floats = np.diff(np.log(np.maximum(result.equity, result.equity[0] * RUIN_FLOOR)))
    return returns


def excess_returns(results: Results, over: str = REFERENCE) -> Floats:
    """Simple returns [T-1] of the champion minus those of a baseline."""
    excess: Floats = simple_returns(results[CHAMPION].equity) - simple_returns(results[over].equity)
    return excess


def best_baseline(validation: Results) -> str:
    """Baseline with the highest Sharpe ratio on validation; an undefined ratio counts as the lowest."""
    ratios = {name: _annual_sharpe(result) for name, result in validation.items() if name != CHAMPION}
    return max(ratios, key=lambda name: ratios[name] if np.isfinite(ratios[name]) else -np.inf)


# ---------------------------------------------------------------------- on validation


def selection_rules(
    excess: Floats,
    trials: Floats,
    counts: TrialCounts,
    gate: GateConfig,
    statistics: dict[str, Any],
    where: str = "on validation",
) -> tuple[Rule, Rule]:
    """Deflated Sharpe ratio and probability of backtest overfitting of a champion's selection.

    excess: [T] returns of the champion over equal weight. trials: [T, N] those of the trials it was selected from.
    statistics: further statistics are added to it. where: name of the period in messages.
    """
    return (
        _deflated_sharpe_rule(excess, trials, counts, gate, where, statistics),
        _overfitting_rule(trials, gate, where, statistics),
    )


def baselines_rule(evidence: PromotionEvidence) -> Rule:
    """No baseline reaches both the champion's Sharpe ratio and its growth on validation.

    A low-risk baseline may have the higher ratio and a risky one the higher growth; being dominated in both fails.
    """
    where, own = evidence.where[0], _ratio_and_growth(evidence.validation[CHAMPION])
    if own is None:
        text = f"Sharpe ratio {where} is undefined and cannot be compared with the baselines"
        return Rule("baselines", None, 0, passed=False, sentence=text)
    others = {name: _ratio_and_growth(result) for name, result in evidence.validation.items() if name != CHAMPION}
    better = [name for name, at in others.items() if at is not None and at[0] >= own[0] and at[1] >= own[1]]
    if not better:
        text = f"No baseline reaches both Sharpe ratio ({own[0]:.2f}) and growth ({own[1]:.2f} bp/bar) {where}"
    else:
        more = f" and {len(better) - 1} more" if len(better) > 1 else ""
        first = others[better[0]] or own
        text = (
            f"Baselines that reach both Sharpe ratio and growth {where}: {readable(better[0])}{more} "
            f"({first[0]:.2f} against {own[0]:.2f}, {first[1]:.2f} against {own[1]:.2f} bp/bar); there must be none"
        )
    return Rule("baselines", len(better), 0, not better, text)


def _deflated_sharpe_rule(
    excess: Floats, trials: Floats, counts: TrialCounts, gate: GateConfig, where: str, statistics: dict[str, Any]
) -> Rule:
    def value() -> float:
        own = moments(excess)
        ratios = trial_sharpes(trials)
        if len(ratios) < 2 and counts.raw > 1:
            raise InputError("the variance of the trials needs at least two trials with returns that vary")
        variance = null_sharpe_variance(trials)
        statistics["deflated_sharpe_clustered"] = deflated_sharpe(own, variance, max(counts.clustered, 1))
        spread = float(np.var(ratios, ddof=1)) if len(ratios) > 1 else 0.0
        statistics["deflated_sharpe_whole_spread"] = deflated_sharpe(own, spread, max(counts.raw, 1))
        statistics["excess_sharpe"] = own.sharpe
        return deflated_sharpe(own, variance, max(counts.raw, 1))

    def describe(x: float) -> str:
        return (
            f"Deflated Sharpe ratio over equal weight {where}: {x:.3f} with {counts.raw} trials on this data "
            f"({counts.clustered} distinct)"
        )

    return _statistic_rule("deflated_sharpe", value, gate.min_dsr, describe, at_least=True)


def _overfitting_rule(trials: Floats, gate: GateConfig, where: str, statistics: dict[str, Any]) -> Rule:
    """PBO, unless the selected trial rarely loses against equal weight out of sample.

    PBO is the probability that the selected trial ends up below the median of the others. If all trials are equally
    good that is one half, which is harmless as long as the selected one still beats equal weight.
    """
    trials = varying_trials(trials)

    def value() -> float:
        found = backtest_overfitting(trials, gate.pbo_blocks)
        statistics["overfitting"] = _overfitting_statistics(found)
        return found.pbo

    def describe(x: float) -> str:
        return f"Probability of backtest overfitting {where}: {x:.2f} over {trials.shape[1]} trials"

    rule = _statistic_rule("overfitting", value, gate.max_pbo, describe, at_least=False)
    if rule.passed or rule.value is None or statistics["overfitting"]["loss"] > gate.max_pbo_loss_probability:
        return rule
    accepted = (
        f"{describe(rule.value)}, above {gate.max_pbo:.4g}; accepted because the selected trial loses against equal "
        f"weight in only {statistics['overfitting']['loss']:.1%} of splits "
        f"(at most {gate.max_pbo_loss_probability:.1%} allowed)"
    )
    return replace(rule, passed=True, sentence=accepted)


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


# ---------------------------------------------------------------------- on test


def probabilistic_sharpe_rule(evidence: PromotionEvidence, gate: GateConfig, statistics: dict[str, Any]) -> Rule:
    """The probability that the true Sharpe ratio over equal weight on test is positive is high enough."""
    limit = confidence_per_look(gate.min_psr, evidence.looks)

    def value() -> float:
        own = moments(excess_returns(evidence.test))
        statistics["minimum_track_record"] = to_plain(minimum_track_record(own, confidence=gate.min_psr))
        return probabilistic_sharpe(own)

    def describe(x: float) -> str:
        return f"Probabilistic Sharpe ratio over equal weight {evidence.where[1]}: {x:.3f}"

    return _statistic_rule("probabilistic_sharpe", value, limit, describe, at_least=True, looks=evidence.looks)


def superior_ability_rule(
    evidence: PromotionEvidence, gate: GateConfig, best: str, statistics: dict[str, Any], draws: int
) -> Rule:
    """The champion has superior predictive ability on test over the best baseline of validation (Hansen 2005)."""
    limit = 1 - confidence_per_look(gate.superiority_confidence, evidence.looks)

    def value() -> float:
        ours = simple_returns(evidence.test[CHAMPION].equity)
        p_values = {}
        for name, result in evidence.test.items():
            theirs = simple_returns(result.equity)
            if name != CHAMPION and not is_constant(ours - theirs):
                p_values[name] = superior_predictive_ability(theirs, ours, seed=evidence.seed, draws=draws)
        statistics["superior_ability"] = p_values
        theirs = simple_returns(evidence.test[REFERENCE].equity)
        others = [simple_returns(result.equity) for result in evidence.test.values()]
        models = [returns for returns in others if not is_constant(returns - theirs)]
        if models:
            statistics["reality_check"] = reality_check(theirs, np.stack(models, 1), seed=evidence.seed, draws=draws)
        if best not in p_values:
            raise InputError(f"its returns equal those of {readable(best)}")
        return p_values[best]

    def describe(x: float) -> str:
        return f"p-value of superior predictive ability over {readable(best)} {evidence.where[1]}: {x:.3f}"

    return _statistic_rule("superior_ability", value, limit, describe, at_least=False, looks=evidence.looks)


def excess_rule(
    evidence: PromotionEvidence, gate: GateConfig, best: str, statistics: dict[str, Any], draws: int
) -> Rule:
    """The bootstrap interval of the log growth on test over the best baseline of validation lies above the limit."""
    level = 1 - 2 * (1 - confidence_per_look(gate.superiority_confidence, evidence.looks))
    excess = log_returns(evidence.test[CHAMPION]) - log_returns(evidence.test[best])
    low, high = (x / BASIS_POINT for x in growth_interval(excess, level, seed=evidence.seed, draws=draws))
    mean = float(excess.mean()) / BASIS_POINT
    statistics["excess"] = {"baseline": best, "level": level, "mean": mean, "low": low, "high": high}
    sentence = (
        f"Excess growth over {readable(best)} {evidence.where[1]}: {mean:.2f} bp/bar ({100 * level:.6g}% CI {low:.2f} "
        f"to {high:.2f}); the interval must lie above {gate.min_excess_bps:g}"
    )
    return Rule("excess", low, gate.min_excess_bps, low > gate.min_excess_bps, sentence)


def drawdown_rule(evidence: PromotionEvidence, gate: GateConfig) -> Rule:
    """The maximum drawdown on test is small enough."""
    depth = -float(max_drawdown(evidence.test[CHAMPION].equity))
    sentence = f"Maximum drawdown {evidence.where[1]}: {depth:.1%}; must be at most {gate.max_drawdown:.0%}"
    return Rule("drawdown", depth, gate.max_drawdown, depth <= gate.max_drawdown, sentence)


def break_even_rule(evidence: PromotionEvidence, gate: GateConfig) -> Rule:
    """The champion grows faster than equal weight on test even at a multiple of the costs."""
    limit = gate.break_even_cost_multiple * evidence.cost_bps
    shown = f"{evidence.break_even:.1f} bp" if math.isfinite(evidence.break_even) else "above every cost tried"
    sentence = f"Break-even cost over equal weight {evidence.where[1]}: {shown}; must be at least {limit:g} bp"
    if evidence.break_even == 0:
        sentence = f"No growth over equal weight {evidence.where[1]}, even without costs; break-even cost is 0 bp"
    passed = evidence.break_even >= limit and evidence.break_even > 0
    return Rule("break_even", to_plain(evidence.break_even), limit, passed, sentence)


def audit_rule(evidence: PromotionEvidence) -> Rule:
    """The audit of the champion has no failures."""
    failures = evidence.failures
    if failures is None:
        return Rule("audit", None, 0, passed=False, sentence="The champion was not audited")
    if not failures:
        return Rule("audit", 0, 0, passed=True, sentence="The audit found no failures")
    count = "1 failure" if len(failures) == 1 else f"{len(failures)} failures, the first"
    return Rule("audit", len(failures), 0, passed=False, sentence=f"The audit found {count}: {failures[0]}")


def confidence_per_look(confidence: float, looks: int) -> float:
    """Confidence that each of several looks must reach so that all together err as rarely as one would."""
    return 1 - (1 - confidence) / max(looks, 1)


# ---------------------------------------------------------------------- helpers


def _statistic_rule(
    name: str,
    value: Callable[[], float],
    limit: float,
    describe: Callable[[float], str],
    *,
    at_least: bool,
    looks: int = 1,
) -> Rule:
    """A rule that compares one statistic with a limit; it fails if the statistic cannot be computed."""
    try:
        x = value()
    except InputError as error:
        return Rule(name, None, limit, passed=False, sentence=f"{readable(name)} cannot be computed: {error}")
    passed = bool(x >= limit if at_least else x <= limit)
    after = "" if looks < 2 else f" after {looks} looks at the test period"
    return Rule(
        name, x, limit, passed, f"{describe(x)}; must be at {'least' if at_least else 'most'} {limit:.4g}{after}"
    )


def _annual_sharpe(result: BacktestResult) -> float:
    """Annual Sharpe ratio in excess of cash."""
    return float(sharpe(result.equity, bars_per_year(result.times), result.risk_free))


def _ratio_and_growth(result: BacktestResult) -> tuple[float, float] | None:
    """Annual Sharpe ratio and log growth in basis points per bar; None without a ratio."""
    ratio = _annual_sharpe(result)
    return (ratio, float(log_returns(result).mean()) / BASIS_POINT) if math.isfinite(ratio) else None


def _overfitting_statistics(found: Overfitting) -> dict[str, Any]:
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
