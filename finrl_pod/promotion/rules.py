"""Rules of the gate, and those on how a champion was chosen.

Both are on validation, on returns over equal weight: what counts there is how many trials there were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from finrl_pod.errors import InputError
from finrl_pod.evaluate.metrics import is_constant
from finrl_pod.evaluate.overfitting import Overfitting, backtest_overfitting
from finrl_pod.evaluate.significance import deflated_sharpe, moments, sharpe_standard_error
from finrl_pod.promotion.trial_registry import TrialCounts
from finrl_pod.settings.run import GateConfig
from finrl_pod.types import Floats


@dataclass(frozen=True)
class Rule:
    """value: what was reached, None where it could not be computed (then it is not met). sentence: in words."""

    name: str
    value: float | None
    limit: float
    passed: bool
    sentence: str


def rule_on(
    name: str,
    value: Callable[[], float],
    limit: float,
    passes: Callable[[float], bool],
    words: Callable[[float], str],
    how: str,
) -> Rule:
    """A rule on one statistic; what it refuses to be computed on is told instead of its value."""
    try:
        x = value()
    except InputError as error:
        return Rule(name, None, limit, passed=False, sentence=f"{spoken(name)} cannot be computed: {error}")
    passed = bool(passes(x))
    met = "as asked for" if passed else "and has to be"
    return Rule(name, x, limit, passed, f"{words(x)}, {met} {how} {limit:.4g}")


def spoken(name: str) -> str:
    """A name as sentences have it."""
    return name.replace("_", " ")


LOGIT_BINS = 40


def check_selection(
    excess: Floats,
    trials: Floats,
    counts: TrialCounts,
    gate: GateConfig,
    figures: dict[str, Any],
    where: str = "on validation",
) -> tuple[Rule, Rule]:
    """The deflated Sharpe ratio and the probability of overfitting.

    excess: [T] returns of the champion over equal weight. trials: [T, N] those of the trials it was chosen from.
    figures: gets what else was computed. where: what sentences call the period.
    """
    return (
        _deflated(excess, trials, counts, gate, where, figures),
        _overfitted(trials, gate, where, figures),
    )


def _deflated(
    excess: Floats, trials: Floats, counts: TrialCounts, gate: GateConfig, where: str, figures: dict[str, Any]
) -> Rule:
    def value() -> float:
        own = moments(excess)
        ratios = trial_sharpes(trials)
        if len(ratios) < 2 and counts.raw > 1:
            raise InputError("the spread of the trials needs two of them at least whose returns differ")
        variance = luck(trials)
        figures["deflated_sharpe_clustered"] = deflated_sharpe(own, variance, max(counts.clustered, 1))
        spread = float(np.var(ratios, ddof=1)) if len(ratios) > 1 else 0.0
        figures["deflated_sharpe_whole_spread"] = deflated_sharpe(own, spread, max(counts.raw, 1))
        figures["excess_sharpe"] = own.sharpe
        return deflated_sharpe(own, variance, max(counts.raw, 1))

    def words(x: float) -> str:
        return (
            f"{where} its deflated Sharpe ratio over equal weight is {x:.3f}, counting {counts.raw} "
            f"trials on these data ({counts.clustered} that differ)"
        )

    return rule_on("deflated_sharpe", value, gate.min_dsr, lambda x: x >= gate.min_dsr, words, "at least")


def _overfitted(trials: Floats, gate: GateConfig, where: str, figures: dict[str, Any]) -> Rule:
    """PBO asks whether the chosen one falls behind its rivals. Among rivals that are all good somebody has to: a PBO
    about one half is no fault where whoever is chosen stays ahead of equal weight."""
    trials = moving(trials)

    def value() -> float:
        found = backtest_overfitting(trials, gate.pbo_blocks)
        figures["overfitting"] = _overfitting_figures(found)
        return found.pbo

    def words(x: float) -> str:
        return f"the probability that choosing {where} overfits is {x:.2f} over {trials.shape[1]} trials"

    rule = rule_on("overfitting", value, gate.max_pbo, lambda x: x <= gate.max_pbo, words, "at most")
    if rule.passed or rule.value is None or figures["overfitting"]["loss"] > gate.max_pbo_loss_probability:
        return rule
    harmless = (
        f"{words(rule.value)}, above {gate.max_pbo:.4g}, but what is chosen falls behind equal weight in "
        f"{figures['overfitting']['loss']:.1%} of the splits alone, and up to {gate.max_pbo_loss_probability:.1%} are "
        "allowed"
    )
    return replace(rule, passed=True, sentence=harmless)


def luck(trials: Floats) -> float:
    """Variance of the trials' one-period Sharpe ratios, as far as luck can make it.

    Ratios of trials that are all without skill vary by their sampling error, or less where the trials move together.
    What varies beyond that is skill: agents that have learned stand beside some that have not yet. To deflate by it
    would refuse the more, the more was learned.
    """
    values = moving(trials)
    if values.shape[1] < 2:
        return 0.0
    error = float(np.mean([sharpe_standard_error(moments(values[:, n])) ** 2 for n in range(values.shape[1])]))
    return min(float(np.var(trial_sharpes(trials), ddof=1)), error)


def trial_sharpes(trials: Floats) -> Floats:
    """One-period Sharpe ratios of the trials [T, N] that move."""
    values = moving(trials)
    return np.asarray(values.mean(0) / values.std(0, ddof=1), dtype=np.float64)


def moving(trials: Floats) -> Floats:
    """The trials [T, N] whose returns are finite and not constant."""
    kept = [n for n in range(trials.shape[1]) if np.isfinite(trials[:, n]).all() and not is_constant(trials[:, n])]
    return trials[:, kept]


def _overfitting_figures(found: Overfitting) -> dict[str, Any]:
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
