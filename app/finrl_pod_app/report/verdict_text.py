"""The verdict in words: its rules with their units, looks and trials, and what comes next.

Shared by the terminal, the report and the dashboard.
"""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

from finrl_pod.evaluate.significance import upper_tail
from finrl_pod_app.report.columns import CHAMPION, MISSING, display_name, number, percent
from finrl_pod_app.report.edge_text import verdict_paragraph

if TYPE_CHECKING:
    from finrl_pod.promotion.verdict import Metrics, OverfittingStatistics, Rule, Verdict
    from finrl_pod_app.report.records import RunReport

# What a rule measures, and the side of its limit on which it passes.
RULE_LABELS = {
    "edge": ("edge: p-value", "≤"),
    "drawdown": ("maximum drawdown", "≤"),
    "break_even": ("break-even cost", "≥"),
    "audit": ("audit failures", "≤"),
}

CREDIBLE_RATIO = 2.0  # annual Sharpe ratio over a reference that a test should be able to show


LISTED_BASELINES = 3  # of more, the best is named


def verdict_lines(report: RunReport) -> list[str]:
    """The first paragraph, and each rule in words; rules that fail come first. Empty without a verdict."""
    lines = verdict_paragraph(report)
    verdict = report.verdict
    if verdict is None:
        return []
    if not verdict.rules:
        return [*lines, *(f"- {reason}" for reason in verdict.reasons)]
    lines.append(f"{sum(rule.passed for rule in verdict.rules)} of {len(verdict.rules)} rules pass:")
    for rule in sorted(verdict.rules, key=lambda rule: rule.passed):
        lines.append(f"- {'pass' if rule.passed else 'FAIL'}: {rule.sentence.rstrip('. ')}")
    return lines


def rule_cells(rule: Rule) -> tuple[str, str]:
    """Value and limit of a rule with their units; a dash for a value that could not be computed."""
    above_all = rule.value is None and rule.name == "break_even" and rule.passed  # costs that were tried
    return "∞" if above_all else _with_unit(rule.name, rule.value), _with_unit(rule.name, rule.limit)


def _with_unit(name: str, value: float | None) -> str:
    if value is None:
        return MISSING
    if name == "drawdown":
        return percent(value, unit="%")
    if name == "break_even":
        return f"{value:.4g} bp"
    return f"{value:.4g}"


def baselines_sentence(report: RunReport) -> str:
    """The baselines with a higher Sharpe ratio than the champion on test; empty without a champion."""
    strategies = report.test.strategies
    if report.verdict is None or CHAMPION not in strategies:
        return ""
    champion_ratio = _sharpe(strategies[CHAMPION])
    higher = {name: ratio for name in strategies if (ratio := _sharpe(strategies[name])) > champion_ratio}
    if not higher:
        return "No baseline had a higher Sharpe ratio on the test period."
    ranking = sorted(higher, key=lambda name: -higher[name])
    if len(ranking) > LISTED_BASELINES:
        return (
            f"{len(ranking)} of {len(strategies) - 1} baselines had a higher Sharpe ratio on the test period, by luck "
            f"or not; the best: {display_name(ranking[0])} {number(higher[ranking[0]])}."
        )
    baselines_text = ", ".join(f"{display_name(name)} {number(higher[name])}" for name in ranking)
    return f"Baselines with a higher Sharpe ratio on the test period, by luck or not: {baselines_text}."


def next_sentence(report: RunReport, out: Path) -> str:
    """What to do after a verdict. out: folder of the run."""
    if report.verdict and report.verdict.promoted:
        folder = shlex.quote(str(out))
        return f"Next: finrl-pod audit {folder}, then trade a paper account with it, see finrl-pod paper --help."
    return f"Next: compare other settings on validation, with finrl-pod tournament --no-test. {_next_look(report)}"


def next_sentence_in_python(report: RunReport) -> str:
    """`next_sentence` for the Python API."""
    if report.verdict and report.verdict.promoted:
        return "Next: fp.audit(result), then trade a paper account with its folder, see finrl-pod paper --help."
    return f"Next: compare other settings on validation, with fp.run_tournament(..., test=False). {_next_look(report)}"


def _next_look(report: RunReport) -> str:
    look = max(report.looks_at_test, 1, report.looks_so_far) + 1
    return (
        f"A further champion is look {look} at bars that overlap this test period and needs a p-value of at most "
        f"{report.next_level:.3g}."
    )


def overfitting_sentence(overfitting: OverfittingStatistics) -> str:
    """The probability of backtest overfitting in words."""
    caution = (
        " Above that, ranking trials on validation says nothing good about other bars." if overfitting.pbo > 0.5 else ""
    )
    low_note = (
        " A low value says that the trials rank consistently within validation; it says nothing about beating the base."
    )
    return (
        f"Probability of backtest overfitting {100 * overfitting.pbo:.0f}%: how often, over {overfitting.splits:,} "
        "splits of the validation period, the best trial of one half is no better than the median trial on the other "
        f"half (left of 0, where the logit of its rank is negative). Trials of equal skill give 50%."
        f"{caution or low_note}"
    )


def trials_text(verdict: Verdict) -> str:
    """The trials of a verdict in words: all, the distinct ones, and the effective ones that its p-value allows for.

    Empty if the trials were not counted.
    """
    trials = verdict.trials
    if trials is None:
        return ""
    effective = verdict.edge.tests.deciding.effective_trials if verdict.edge else None
    selection = "" if effective is None else f"; the p-value allows for {effective:.1f} effective trials"
    runs = f" by {trials.runs:,} run{'s' * (trials.runs != 1)}"
    distinct = f", {trials.clustered:,} of them distinct"
    trial_count = f"{trials.raw:,} trial{'s' * (trials.raw != 1)} (trained agents and champions)"
    return f"{trial_count} on this data{runs}{distinct}{selection}"


def edge_sentence(verdict: Verdict) -> str:
    """How the p-value of the test for an edge follows from test and validation; empty if it is not recorded."""
    if verdict.edge is None:
        return ""
    tests = verdict.edge.tests
    deciding = tests.deciding
    name = "alpha" if deciding is tests.alpha else "the mean active return"
    total = f"The p-value {deciding.p_value:.4g} of {name} is the larger of two, with a z-score of"
    if deciding.validation_selected is None:
        return f"{total} {deciding.z_score:.2f}, from the test period alone."
    weight = tests.validation_weight
    reason = " (the choice among procedures and other runs on this data count as further selections)"
    note = f", taken as the best of {tests.selections:.1f}{reason}" if tests.selections > 1 else ""
    tail = upper_tail(deciding.validation_selected)
    return (
        f"{total} {deciding.z_score:.2f}: {math.sqrt(1 - weight**2):.2f} × {deciding.test:.2f} on test + {weight:.2f} "
        f"× {deciding.validation_selected:.2f} on validation. The champion's own z-score on validation is "
        f"{deciding.validation:.2f}, but it was selected there: of simulated selections without any edge{note}, "
        f"{100 * tail:.1f}% reach at least that; they reach {deciding.expected_from_selection:.2f} on average, as "
        f"the best of {deciding.effective_trials:.1f} independent (effective) trials does. So "
        f"{deciding.validation:.2f} counts as {deciding.validation_selected:.2f}."
    )


def looks_sentence(report: RunReport) -> str:
    """The number of looks at the test period, and what they cost: the level of the test for an edge.

    Empty for reports of training and validation, and of baselines.
    """
    looks = report.looks_at_test
    if not looks:
        return ""
    first, last = report.splits.test
    return (
        f"Look {looks:,} of {max(looks, report.looks_so_far):,} so far at bars that overlap {first[:10]} to "
        f"{last[:10]}. The n-th look needs a p-value of at most {report.level * looks:.3g} / n for an edge: "
        f"{report.level:.3g} at this one, {report.next_level:.3g} at the next."
    )


def few_bars_sentence(bars: int, bars_per_year: float, level: float) -> str:
    """What a short test can show at all; empty if that is an edge that strategies have.

    bars: number of bars of the test split. level: significance level of its test for an edge.
    """
    from finrl_pod.evaluate.significance import detectable_ratio

    returns = bars - 1
    if returns < 2 or (smallest := detectable_ratio(returns, bars_per_year, level)) <= CREDIBLE_RATIO:
        return ""
    years = (NormalDist().inv_cdf(1 - level) / CREDIBLE_RATIO) ** 2
    return (
        f"the test has only {bars:,} bars ({bars / bars_per_year:.2g} years): alone it can show an edge at the level "
        f"{level:.3g} only if its annual Sharpe ratio over the reference is {smallest:.1f} or more; for "
        f"{CREDIBLE_RATIO:g}, which is rare, it needs {years:.1f} years"
    )


def _sharpe(metrics: Metrics) -> float:
    """A Sharpe ratio; minus infinity if it is undefined."""
    ratio = metrics.get("sharpe")
    return -math.inf if ratio is None else ratio
