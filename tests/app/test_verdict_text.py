"""The verdict in words: units of rules, better baselines, what comes next, and overfitting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from finrl_pod_app.report.records import MandateBaseline, RunReport, make_report
from finrl_pod_app.report.verdict_text import (
    baselines_sentence,
    edge_sentence,
    few_bars_sentence,
    next_sentence,
    overfitting_sentence,
    rule_cells,
    trials_text,
)

from finrl_pod.promotion.verdict import OverfittingStatistics, Rule, TrialCounts, Verdict
from tests.app.test_edge_text import edge


def report(promoted: bool = False, **sharpe: float | None) -> RunReport:
    rules = [{"name": "edge", "value": 0.04, "limit": 0.0125, "passed": promoted, "sentence": "a sentence"}]
    strategies = {name: {"sharpe": ratio} for name, ratio in sharpe.items()}
    verdict = {"promoted": promoted, "reasons": [], "rules": rules, "looks": 2}
    return make_report({"verdict": verdict, "test": {"strategies": strategies}})


@pytest.mark.parametrize(
    ("name", "value", "limit", "passed", "cells"),
    [
        ("edge", 0.048791, 0.025, False, ("0.04879", "0.025")),
        ("drawdown", 0.0701, 0.5, True, ("7.0%", "50.0%")),
        ("break_even", 151.04, 15.0, True, ("151 bp", "15 bp")),
        ("break_even", None, 15.0, True, ("∞", "15 bp")),
        ("break_even", None, 15.0, False, ("–", "15 bp")),
        ("edge", None, 0.025, False, ("–", "0.025")),
    ],
)
def test_values_of_rules_have_units(
    name: str, value: float | None, limit: float, passed: bool, cells: tuple[str, str]
) -> None:
    assert rule_cells(Rule(name=name, value=value, limit=limit, passed=passed, sentence="")) == cells


def test_baselines_that_did_better_are_named_best_first() -> None:
    found = report(champion=1.0, momentum_12_1=1.2, equal_weight=0.9, mean_variance=1.5, index=None)
    assert baselines_sentence(found) == (
        "Baselines with a higher Sharpe ratio on test, by luck or not: mean variance 1.50, momentum 12-1 1.20."
    )
    assert baselines_sentence(report(champion=1.0, equal_weight=0.9)).startswith("No baseline had")
    assert baselines_sentence(found.model_copy(update={"verdict": None})) == ""
    ridge = MandateBaseline(name="ridge", validation_sharpe=0.8, test_sharpe=1.3)
    assert baselines_sentence(found.model_copy(update={"mandate_baselines": (ridge,)})) == (
        "Baselines with a higher Sharpe ratio on test, by luck or not: mean variance 1.50, ridge regression under the "
        "mandate 1.30, momentum 12-1 1.20."
    )


def test_what_comes_next_states_the_level_of_the_next_look() -> None:
    found = report()
    assert "look 3 at bars that overlap this test period and needs a p-value of at most 0.00625." in next_sentence(
        found, Path("a run")
    )
    assert next_sentence(found, Path("a run")).startswith("Next: compare other settings on validation")
    assert "finrl-pod audit 'a run', then" in next_sentence(report(promoted=True), Path("a run"))
    assert "is look 6 at bars that overlap this" in next_sentence(
        found.model_copy(update={"looks_so_far": 5}), Path("a")
    )
    assert "paper account" in next_sentence(report(promoted=True), Path("a"))


def test_overfitting_above_chance_is_called_so() -> None:
    high, low = (overfitting_sentence(OverfittingStatistics(pbo=share, splits=12870)) for share in (0.97, 0.37))
    assert "overfitting 97%: how often, over 12,870 splits" in high
    assert "ranking trials on validation says nothing good" in high
    assert low.endswith("says nothing about beating the base.")


ALPHA = {
    "p_value": 0.82, "z_score": -0.92, "test": -0.75, "validation": 1.02, "validation_selected": -0.54,
    "expected_from_selection": 1.21, "effective_trials": 5.985,
}  # fmt: skip


def with_tests(trials: dict[str, int] | None = None, **changes: Any) -> Verdict:
    """A verdict whose alpha decides."""
    active = {**ALPHA, "p_value": 0.3, "effective_trials": 2.0}
    tests = {"active": active, "alpha": ALPHA, "beta": 1.0, "validation_weight": 0.52, "selections": 1, **changes}
    values = edge("worse", tests=tests)
    return Verdict.model_validate({"promoted": False, "reasons": [], "edge": values, "trials": trials or {}})


def test_the_p_value_is_traced_to_its_periods_and_to_the_selection() -> None:
    sentence = edge_sentence(with_tests())
    assert (
        "of alpha is the larger of two, with a z-score of -0.92: 0.85 × -0.75 on test + 0.52 × -0.54 on validation."
        in sentence
    )
    assert (
        "of simulated selections without any edge, 70.5% reach at least that; they reach 1.21 on average, as the best "
        "of 6.0 independent (effective) trials does." in sentence
    )  # 70.5%: the normal probability above -0.54
    assert sentence.endswith("So 1.02 counts as -0.54.")
    repeated = edge_sentence(with_tests(selections=1.3))
    assert "without any edge, taken as the best of 1.3 (the choice" in repeated
    alone = {"p_value": 0.01, "z_score": 2.33, "test": 2.33, "validation_selected": None}
    sentence = edge_sentence(with_tests(active=alone, alpha={**alone, "p_value": 0.001}))
    assert "of the mean active return is the larger of two" in sentence
    assert sentence.endswith("z-score of 2.33, from the test period alone.")
    assert edge_sentence(Verdict(promoted=False, reasons=())) == ""


def test_trials_are_counted_with_those_that_the_p_value_allows_for() -> None:
    trials = {"raw": 25, "clustered": 2, "runs": 1}
    assert trials_text(with_tests(trials)) == (
        "25 trials (trained agents and champions) on this data by 1 run, 2 of them distinct; the p-value allows for "
        "6.0 effective trials"
    )
    counted = Verdict(promoted=False, reasons=(), trials=TrialCounts(raw=1, clustered=1, runs=2))
    assert trials_text(counted) == ("1 trial (trained agents and champions) on this data by 2 runs, 1 of them distinct")


def test_a_short_test_is_told_what_it_can_show() -> None:
    sentence = few_bars_sentence(21, 252, 0.025)
    # 20 returns: 2.093, the 97.5% quantile of Student's t with 19 degrees of freedom, times sqrt(252 / 19).
    assert "only 21 bars (0.083 years)" in sentence
    assert "reference is 7.6 or more" in sentence
    assert sentence.endswith("for 2, which is rare, it needs 1.0 years")
    assert "is 8.9 or more" in few_bars_sentence(21, 252, 0.025 / 2)  # at the second look
    assert few_bars_sentence(4 * 252, 252, 0.025) == ""
    assert few_bars_sentence(2, 252, 0.025) == ""  # no statistic: refused elsewhere
