"""The verdict in words: its rules with their units, looks and trials, and what comes next.

Shared by the terminal, the report's page and the dashboard; reads the report's object only.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any

from finrl_pod.evaluate.mean_significance import upper_tail
from finrl_pod.settings.run import GateConfig
from finrl_pod_app.report.columns import CHAMPION, MISSING, display_name, number, percent
from finrl_pod_app.report.edge_text import next_level, verdict_paragraph

# What a rule measures, and the side of its limit on which it passes.
_RULES = {
    "edge": ("edge: p-value", "≤"),
    "drawdown": ("maximum drawdown", "≤"),
    "break_even": ("break-even cost", "≥"),
    "audit": ("audit failures", "≤"),
}

CREDIBLE_RATIO = 2.0  # annual Sharpe ratio over a reference that a test should be able to show


LISTED_BASELINES = 3  # of more, the best is named


def verdict_lines(document: Mapping[str, Any]) -> list[str]:
    """The first paragraph, and each rule in words; rules that fail come first.

    document: as in `verdict_paragraph`.
    """
    lines = verdict_paragraph(document)
    rules = document["verdict"].get("rules") or []
    if not rules:
        return [*lines, *(f"- {reason}" for reason in document["verdict"]["reasons"])]
    passed = sum(bool(rule["passed"]) for rule in rules)
    lines.append(f"{passed} of {len(rules)} rules pass:")
    for rule in sorted(rules, key=lambda rule: bool(rule["passed"])):
        lines.append(f"- {'pass' if rule['passed'] else 'FAIL'}: {str(rule['sentence']).rstrip('. ')}")
    return lines


def rule_label(name: str) -> tuple[str, str]:
    """What a rule measures, and "≤" or "≥" before its limit."""
    return _RULES[name]


def rule_cells(rule: Mapping[str, Any]) -> tuple[str, str]:
    """Value and limit of a rule with their units; a dash for a value that could not be computed."""
    name, value, limit = rule["name"], rule["value"], rule["limit"]
    above_all = value is None and name == "break_even" and rule["passed"]  # costs that were tried
    return "∞" if above_all else _with_unit(name, value), _with_unit(name, limit)


def _with_unit(name: str, value: float | None) -> str:
    if value is None:
        return MISSING
    if name == "drawdown":
        return percent(value, unit="%")
    if name == "break_even":
        return f"{value:.4g} bp"
    return f"{value:.4g}"


def baselines_sentence(document: Mapping[str, Any]) -> str:
    """The baselines with a higher Sharpe ratio than the champion on test; empty without a champion."""
    strategies = document["test"]["strategies"]
    if not document.get("verdict") or CHAMPION not in strategies:
        return ""
    own = _sharpe(strategies[CHAMPION])
    higher = {name: ratio for name in strategies if (ratio := _sharpe(strategies[name])) > own}
    if not higher:
        return "No baseline had a higher Sharpe ratio on the test period."
    ranked = sorted(higher, key=lambda name: -higher[name])
    if len(ranked) > LISTED_BASELINES:
        return (
            f"{len(ranked)} of {len(strategies) - 1} baselines had a higher Sharpe ratio on the test period, by luck "
            f"or not; the best: {display_name(ranked[0])} {number(higher[ranked[0]])}."
        )
    listed = ", ".join(f"{display_name(name)} {number(higher[name])}" for name in ranked)
    return f"Baselines with a higher Sharpe ratio on the test period, by luck or not: {listed}."


def next_sentence(document: Mapping[str, Any], out: Path) -> str:
    """What to do after a verdict. out: folder of the run."""
    verdict, folder = document["verdict"], shlex.quote(str(out))
    if verdict["promoted"]:
        return f"Next: finrl-pod audit {folder}, then trade a paper account with it, see finrl-pod paper --help."
    return f"Next: compare other settings on validation, with finrl-pod tournament --no-test. {_next_look(document)}"


def next_sentence_in_python(document: Mapping[str, Any]) -> str:
    """`next_sentence` for the Python API."""
    if document["verdict"]["promoted"]:
        return "Next: fp.audit(result), then trade a paper account with its folder, see finrl-pod paper --help."
    return (
        f"Next: compare other settings on validation, with fp.run_tournament(..., test=False). {_next_look(document)}"
    )


def _next_look(document: Mapping[str, Any]) -> str:
    verdict = document["verdict"]
    so_far = max(verdict["looks"], 1, document.get("looks_so_far") or 0)
    return (
        f"A further champion is look {so_far + 1} at bars that overlap this test period and needs a p-value of at most "
        f"{next_level(document, verdict, _level(verdict)):.3g}."
    )


def overfitting_sentence(found: Mapping[str, Any]) -> str:
    """The probability of backtest overfitting in words. found: of a verdict's statistics."""
    above = (
        " Above that, ranking trials on validation says nothing good about other bars." if found["pbo"] > 0.5 else ""
    )
    below = (
        " A low value says that the trials rank consistently within validation; it says nothing about beating the base."
    )
    return (
        f"Probability of backtest overfitting {100 * found['pbo']:.0f}%: how often, over {found['splits']:,} splits of "
        "the validation period, the best trial of one half is no better than the median trial on the other half (left "
        f"of 0, where the logit of its rank is negative). Trials of equal skill give 50%.{above or below}"
    )


def trials_text(verdict: Mapping[str, Any]) -> str:
    """The trials of a verdict in words: all, the distinct ones, and the effective ones that its p-value allows for."""
    counted = verdict["trials"]
    deciding = deciding_test(verdict)
    effective = None if deciding is None else deciding.get("effective_trials")
    selection = "" if effective is None else f"; the p-value allows for {effective:.1f} effective trials"
    runs = f" by {counted['runs']:,} run{'s' * (counted['runs'] != 1)}"
    distinct = f", {counted['clustered']:,} of them distinct"
    many = f"{counted['raw']:,} trial{'s' * (counted['raw'] != 1)} (trained agents and champions)"
    return f"{many} on this data{runs}{distinct}{selection}"


def deciding_test(verdict: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The test with the larger p-value, of the active return or of alpha; None if there is none."""
    tests = (verdict.get("edge") or {}).get("tests")
    return max((tests["active"], tests["alpha"]), key=lambda test: float(test["p_value"])) if tests else None


def edge_sentence(verdict: Mapping[str, Any]) -> str:
    """How the p-value of the test for an edge follows from test and validation; empty if it is not recorded."""
    found = deciding_test(verdict)
    if found is None:
        return ""
    tests = verdict["edge"]["tests"]
    name = "alpha" if found is tests["alpha"] else "the mean active return"
    total = f"The p-value {found['p_value']:.4g} is that of {name}, the larger of two, with a z-score of"
    if found.get("validation_selected") is None:
        return f"{total} {found['z_score']:.2f}, from the test period alone."
    weight = tests["validation_weight"]
    repeats = tests["selections"]
    several = " (the choice among procedures and other runs on this data count as further selections)"
    repeated = f", taken as the best of {repeats:.1f}{several}" if repeats > 1 else ""
    reached = upper_tail(found["validation_selected"])
    return (
        f"{total} {found['z_score']:.2f}: {math.sqrt(1 - weight**2):.2f} × {found['test']:.2f} on test + {weight:.2f} "
        f"× {found['validation_selected']:.2f} on validation. The champion's own z-score on validation is "
        f"{found['validation']:.2f}, but it was selected there: of simulated selections without any edge{repeated}, "
        f"{100 * reached:.1f}% reach at least that; they reach {found['expected_from_selection']:.2f} on average, as "
        f"the best of {found['effective_trials']:.1f} independent (effective) trials does. So "
        f"{found['validation']:.2f} counts as {found['validation_selected']:.2f}."
    )


def looks_sentence(document: Mapping[str, Any]) -> str:
    """The number of looks at the test period, and what they cost: the level of the test for an edge.

    Empty for reports of training and validation, and of baselines.
    """
    verdict = document.get("verdict") or {}
    looks = verdict.get("looks") or document.get("looks")
    if not looks:
        return ""
    so_far = max(looks, document.get("looks_so_far") or 0)
    level = _level({**verdict, "looks": looks})
    first, last = document["splits"]["test"]
    return (
        f"Look {looks:,} of {so_far:,} so far at bars that overlap {first[:10]} to {last[:10]}. The n-th look needs a "
        f"p-value of at most {level * looks:.3g} / n for an edge: {level:.3g} at this one, "
        f"{level * looks / (so_far + 1):.3g} at the next."
    )


def few_bars_sentence(bars: int, bars_per_year: float, level: float) -> str:
    """What a short test can show at all; empty if that is an edge that strategies have.

    bars: of the test split. level: significance level of its test for an edge.
    """
    from finrl_pod.evaluate.mean_significance import detectable_ratio

    returns = bars - 1
    if returns < 2 or (smallest := detectable_ratio(returns, bars_per_year, level)) <= CREDIBLE_RATIO:
        return ""
    years = (NormalDist().inv_cdf(1 - level) / CREDIBLE_RATIO) ** 2
    return (
        f"the test has only {bars:,} bars ({bars / bars_per_year:.2g} years): alone it can show an edge at the level "
        f"{level:.3g} only if its annual Sharpe ratio over the reference is {smallest:.1f} or more; for "
        f"{CREDIBLE_RATIO:g}, which is rare, it needs {years:.1f} years"
    )


def _level(verdict: Mapping[str, Any]) -> float:
    """Significance level of a verdict's test for an edge."""
    edge = next((rule for rule in verdict.get("rules") or () if rule["name"] == "edge"), None)
    return GateConfig().significance_level / max(verdict["looks"], 1) if edge is None else float(edge["limit"])


def _sharpe(metrics: Mapping[str, float | None]) -> float:
    """A Sharpe ratio; minus infinity if it is undefined."""
    ratio = metrics.get("sharpe")
    return -math.inf if ratio is None else ratio
