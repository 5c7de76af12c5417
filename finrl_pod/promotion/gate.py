"""The gate: rules with their values, each met or not. A champion is promoted when all of them are.

On validation, where trials were chosen, what counts is how many there were: DSR and PBO, on returns over equal weight.
On the test period nothing was chosen; there the number that counts is how often it was looked at. Its error is divided
by that number (Bonferroni), so that whoever looks often has to see more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from finrl_pod.errors import InputError
from finrl_pod.evaluate.intervals import DRAWS, MIN_BARS, account_intervals, growth_interval
from finrl_pod.evaluate.metrics import bars_per_year, is_constant, max_drawdown, sharpe, simple_returns
from finrl_pod.evaluate.significance import (
    minimum_track_record,
    moments,
    probabilistic_sharpe,
    reality_check,
    superior_predictive_ability,
)
from finrl_pod.evaluate.simulate import RUIN_FLOOR
from finrl_pod.files import to_plain
from finrl_pod.promotion.rules import Rule, check_selection, rule_on, spoken
from finrl_pod.promotion.trial_registry import TrialCounts
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.run import GateConfig
from finrl_pod.types import BacktestResult, Floats

REFERENCE = "equal_weight"
CHAMPION = "champion"
BASIS_POINT = 1e-4
MOST_DRAWS = 20_000

Results = Mapping[str, BacktestResult]


@dataclass(frozen=True, eq=False)
class PromotionEvidence:
    """What the gate judges by.

    validation, test: the champion and every baseline over the same bars each. trials: [T, N] returns over equal weight
    on validation of the trials that the champion was chosen from. counts: of all trials on the data. looks: at the test
    period, this one included. break_even: cost in basis points at which the champion's growth on test falls to equal
    weight's. faults: of the audit, a sentence each; None where it was not made. where: what sentences call the two
    periods; a walk-forward has but one.
    """

    validation: Results
    test: Results
    trials: Floats
    counts: TrialCounts
    looks: int
    cost_bps: float
    break_even: float
    faults: tuple[str, ...] | None
    seed: int
    where: tuple[str, str] = ("on validation", "on test")


@dataclass(frozen=True)
class Judgement:
    """promoted: every rule is met. statistics: further figures, plain values (None for what is no number)."""

    promoted: bool
    rules: tuple[Rule, ...]
    statistics: Mapping[str, Any] = field(default_factory=dict)


def check(gate: GateConfig) -> None:
    """Raises ConfigError for a threshold out of its range."""
    check_settings("gate.", gate)


def fewest_bars(gate: GateConfig) -> tuple[int, int]:
    """Bars that validation and test need at least: two returns a block, and what a bootstrap needs."""
    return max(2 * gate.pbo_blocks, MIN_BARS) + 1, MIN_BARS + 1


def judge(evidence: PromotionEvidence, gate: GateConfig, draws: int = DRAWS) -> Judgement:
    """Every rule with its value; draws: of a bootstrap at least.

    A statistic that cannot be computed (an account that never moves, one trial alone) is a rule that is not met, and
    its sentence says why. Raises InputError for fewer than 20 returns on test.
    """
    figures: dict[str, Any] = {}
    draws = _draws(gate, evidence.looks, draws)
    best = best_baseline(evidence.validation)
    rules = (
        _undominated(evidence),
        *check_selection(
            excess_returns(evidence.validation), evidence.trials, evidence.counts, gate, figures, evidence.where[0]
        ),
        _probable(evidence, gate, figures),
        _superior(evidence, gate, best, figures, draws),
        _excess(evidence, gate, best, figures, draws),
        _drawdown(evidence, gate),
        _break_even(evidence, gate),
        *([_audited(evidence)] if gate.audit else []),
    )
    figures["test_intervals"] = _intervals(evidence)
    return Judgement(all(rule.passed for rule in rules), rules, figures)


def best_baseline(validation: Results) -> str:
    """The baseline of the highest Sharpe ratio on validation; an undefined one is the lowest."""
    rivals = {name: _ratio(result) for name, result in validation.items() if name != CHAMPION}
    return max(rivals, key=lambda name: rivals[name] if np.isfinite(rivals[name]) else -np.inf)


def _ratio(result: BacktestResult) -> float:
    """Sharpe ratio a year, over what cash earned."""
    return float(sharpe(result.equity, bars_per_year(result.times), result.risk_free))


def log_returns(result: BacktestResult) -> Floats:
    """[T-1] log returns of a result's equity; at or below zero it counts as a 1e-9th of the first."""
    returns: Floats = np.diff(np.log(np.maximum(result.equity, result.equity[0] * RUIN_FLOOR)))
    return returns


def excess_returns(results: Results, over: str = REFERENCE) -> Floats:
    """[T-1] simple returns of the champion less those of a baseline."""
    excess: Floats = simple_returns(results[CHAMPION].equity) - simple_returns(results[over].equity)
    return excess


# ---------------------------------------------------------------------- on validation


def _undominated(evidence: PromotionEvidence) -> Rule:
    """Whoever minimises risk beats on the ratio what grows faster, and the other way round; to be beaten on both has
    no excuse."""
    where, own = evidence.where[0], _standing(evidence.validation[CHAMPION])
    if own is None:
        text = f"{where} its Sharpe ratio is undefined, so that no baseline can be beaten on it"
        return Rule("baselines", None, 0, passed=False, sentence=text)
    standings = {name: _standing(result) for name, result in evidence.validation.items() if name != CHAMPION}
    better = [name for name, at in standings.items() if at is not None and at[0] >= own[0] and at[1] >= own[1]]
    if not better:
        text = f"{where} no baseline reaches both its Sharpe ratio of {own[0]:.2f} and its growth"
    else:
        others = f", like {len(better) - 1} more baselines," if len(better) > 1 else ""
        first = standings[better[0]] or own
        text = (
            f"{where} {spoken(better[0])}{others} reaches both its Sharpe ratio and its growth: {first[0]:.2f} against "
            f"{own[0]:.2f}, and {first[1]:.2f} against {own[1]:.2f} basis points a bar"
        )
    return Rule("baselines", len(better), 0, not better, text)


def _standing(result: BacktestResult) -> tuple[float, float] | None:
    """(Sharpe ratio, log growth in basis points a bar); None without a ratio."""
    ratio = _ratio(result)
    return (ratio, float(log_returns(result).mean()) / BASIS_POINT) if math.isfinite(ratio) else None


# ---------------------------------------------------------------------- on test


def _probable(evidence: PromotionEvidence, gate: GateConfig, figures: dict[str, Any]) -> Rule:
    limit = _shared(gate.min_psr, evidence.looks)

    def value() -> float:
        own = moments(excess_returns(evidence.test))
        needed = minimum_track_record(own, confidence=gate.min_psr)
        figures["minimum_track_record"] = to_plain(needed)
        return probabilistic_sharpe(own)

    def words(x: float) -> str:
        return f"{evidence.where[1]} the probability that its Sharpe ratio over equal weight is above zero is {x:.3f}"

    return rule_on("probabilistic_sharpe", value, limit, lambda x: x >= limit, words, _at(">=", evidence.looks))


def _superior(evidence: PromotionEvidence, gate: GateConfig, best: str, figures: dict[str, Any], draws: int) -> Rule:
    limit = 1 - _shared(gate.superiority_confidence, evidence.looks)

    def value() -> float:
        ours = simple_returns(evidence.test[CHAMPION].equity)
        p_values = {}
        for name, result in evidence.test.items():
            theirs = simple_returns(result.equity)
            if name != CHAMPION and not is_constant(ours - theirs):
                p_values[name] = superior_predictive_ability(theirs, ours, seed=evidence.seed, draws=draws)
        figures["superior_ability"] = p_values
        theirs = simple_returns(evidence.test[REFERENCE].equity)
        others = [simple_returns(result.equity) for result in evidence.test.values()]
        models = [returns for returns in others if not is_constant(returns - theirs)]
        if models:
            figures["reality_check"] = reality_check(theirs, np.stack(models, 1), seed=evidence.seed, draws=draws)
        if best not in p_values:
            raise InputError(f"its returns are those of {spoken(best)}")
        return p_values[best]

    def words(x: float) -> str:
        return f"{evidence.where[1]} the p-value of its superior ability over {spoken(best)} is {x:.3f}"

    return rule_on("superior_ability", value, limit, lambda x: x <= limit, words, _at("<=", evidence.looks))


def _excess(evidence: PromotionEvidence, gate: GateConfig, best: str, figures: dict[str, Any], draws: int) -> Rule:
    level = 1 - 2 * (1 - _shared(gate.superiority_confidence, evidence.looks))
    excess = log_returns(evidence.test[CHAMPION]) - log_returns(evidence.test[best])
    low, high = (x / BASIS_POINT for x in growth_interval(excess, level, seed=evidence.seed, draws=draws))
    figures["excess"] = {
        "baseline": best, "level": level, "mean": float(excess.mean()) / BASIS_POINT, "low": low, "high": high,
    }  # fmt: skip
    passed, limit = low > gate.min_excess_bps, format(gate.min_excess_bps, "g") if gate.min_excess_bps else "zero"
    sentence = (
        f"{evidence.where[1]} its log growth over {spoken(best)} is {excess.mean() / BASIS_POINT:.2f} basis points a "
        f"bar, with a {_percent(level)} interval of {low:.2f} to {high:.2f} that "
        f"{'lies' if passed else 'does not lie'} above {limit}"
    )
    return Rule("excess", low, gate.min_excess_bps, passed, sentence)


def _drawdown(evidence: PromotionEvidence, gate: GateConfig) -> Rule:
    depth = -float(max_drawdown(evidence.test[CHAMPION].equity))
    passed = depth <= gate.max_drawdown
    sentence = (
        f"{evidence.where[1]} its largest fall from a peak is {depth:.1%}, {'not ' if passed else ''}above the "
        f"{gate.max_drawdown:.0%} that are allowed"
    )
    return Rule("drawdown", depth, gate.max_drawdown, passed, sentence)


def _break_even(evidence: PromotionEvidence, gate: GateConfig) -> Rule:
    limit = gate.break_even_cost_multiple * evidence.cost_bps
    passed = evidence.break_even >= limit
    shown = f"{evidence.break_even:.1f}" if math.isfinite(evidence.break_even) else "more than was tried"
    sentence = (
        f"{evidence.where[1]} its lead over equal weight is gone at a cost of {shown} basis points, "
        f"{'not ' if passed else ''}below the {limit:g} that are asked for"
    )
    if evidence.break_even == 0:
        sentence = f"{evidence.where[1]} it has no lead over equal weight even without costs"
    return Rule("break_even", to_plain(evidence.break_even), limit, passed and evidence.break_even > 0, sentence)


def _audited(evidence: PromotionEvidence) -> Rule:
    faults = evidence.faults
    if faults is None:
        return Rule("audit", None, 0, passed=False, sentence="it was not audited")
    count = "a fault" if len(faults) == 1 else f"{len(faults)} faults, the first"
    text = f"the audit finds {count}: {faults[0]}" if faults else "the audit finds no fault"
    return Rule("audit", len(faults), 0, not faults, text)


# ---------------------------------------------------------------------- helpers


def _shared(confidence: float, looks: int) -> float:
    """The confidence that each of several looks has to reach for all of them together to err so rarely."""
    return 1 - (1 - confidence) / max(looks, 1)


def _draws(gate: GateConfig, looks: int, least: int) -> int:
    """Enough bootstrap draws for 20 of them to lie beyond the limit, as far as that can be computed in seconds."""
    return min(max(least, math.ceil(20 * max(looks, 1) / (1 - gate.min_psr))), max(least, MOST_DRAWS))


def _at(sign: str, looks: int) -> str:
    at = "at least" if sign == ">=" else "at most"
    return at if looks < 2 else f"(after {looks} looks at the test period) {at}"


def _intervals(evidence: PromotionEvidence) -> dict[str, Any] | None:
    """Sharpe ratio, return and drawdown of the champion on test with their 90% intervals."""
    result = evidence.test[CHAMPION]
    returns = simple_returns(result.equity)
    if is_constant(returns) or returns.min() <= -1:
        return None
    found = account_intervals(
        returns, seed=evidence.seed, periods_per_year=bars_per_year(result.times), risk_free=result.risk_free
    )
    return {name: interval._asdict() for name, interval in found._asdict().items()}


def _percent(level: float) -> str:
    return f"{100 * level:.6g}%"
