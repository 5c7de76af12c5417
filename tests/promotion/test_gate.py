"""Every rule of the gate at its limit, the effect of looks and trials, and the verdict and its file."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finrl_pod.errors import ConfigError, InputError, RunError
from finrl_pod.evaluate.metrics import sharpe, simple_returns
from finrl_pod.evaluate.overfitting import backtest_overfitting
from finrl_pod.evaluate.significance import deflated_sharpe, moments, probabilistic_sharpe
from finrl_pod.promotion.edge import ActivePeriod, edge_test
from finrl_pod.promotion.gate import (
    PBO_BLOCKS,
    PromotionEvidence,
    active_returns,
    apply_gate,
    independent_selections,
    min_bars,
    null_sharpe_variance,
    selected_period,
    significance_per_look,
    varying_trials,
)
from finrl_pod.promotion.verdict import Estimate, Rule, TrialCounts, Verdict, read_verdict, write_verdict
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.run import GateConfig
from finrl_pod.types import BacktestResult

BARS = 400
GATE = GateConfig()


def result(name: str, seed: int, drift: float = 0.0, bars: int = BARS, equity: Any = None) -> BacktestResult:
    """Equity with a market factor common to all results of the same length and seed, and a separate drift."""
    market = np.random.default_rng(seed).normal(2e-4, 0.01, bars)
    idiosyncratic = np.random.default_rng([seed, *name.encode()]).normal(drift, 0.003, bars)
    values = 1e6 * np.exp(np.cumsum(market + idiosyncratic)) if equity is None else np.asarray(equity, dtype=float)
    times = np.busday_offset("2020-01-01", np.arange(len(values))).astype("datetime64[ns]")
    weights = np.zeros((len(values), 1))
    return BacktestResult(name, times, ("A",), values, weights, weights[:, 0], weights[:, 0], {})


def results(seed: int, edge: float, **more: BacktestResult) -> dict[str, BacktestResult]:
    by_name = {"champion": result("champion", seed, edge)}
    by_name |= {name: result(name, seed) for name in ("equal_weight", "momentum_12_1")}
    return {**by_name, **more}


def trial_returns(edge: float, count: int = 12, seed: int = 5) -> np.ndarray:
    """Excess returns [T, N] of trials; the last trial is the best."""
    rng = np.random.default_rng(seed)
    return rng.normal(0, 0.003, (BARS - 1, count)) + edge * np.linspace(0.5, 1.0, count)


def evidence(edge: float = 1.6e-3, **changes: Any) -> PromotionEvidence:
    defaults = PromotionEvidence(
        validation=results(1, edge),
        test=results(2, edge),
        trials=trial_returns(edge),
        counts=TrialCounts(40, 6, 2),
        looks=1,
        cost_bps=10.0,
        break_even=40.0,
        failures=(),
        seed=3,
    )
    return dataclasses.replace(defaults, **changes)


def rule(verdict: Verdict, name: str) -> Rule:
    (found,) = [rule for rule in verdict.rules if rule.name == name]
    return found


def active_period(given: PromotionEvidence) -> ActivePeriod:
    return ActivePeriod(active_returns(given.test), simple_returns(given.test["equal_weight"].equity))


def failed(verdict: Verdict) -> set[str]:
    return {rule.name for rule in verdict.rules if not rule.passed}


def test_champion_with_an_edge_is_promoted() -> None:
    verdict = apply_gate(evidence(), GATE)
    assert failed(verdict) == set()
    assert verdict.promoted


def test_champion_without_an_edge_is_refused() -> None:
    verdict = apply_gate(evidence(0.0, break_even=0.0), GATE)
    assert not verdict.promoted
    assert failed(verdict) == {"edge", "break_even"}


def test_one_failing_rule_refuses_promotion() -> None:
    assert failed(apply_gate(evidence(failures=("a feature depends on the future.",)), GATE)) == {"audit"}
    assert failed(apply_gate(evidence(failures=None), GATE)) == {"audit"}
    assert failed(apply_gate(evidence(break_even=14.9), GATE)) == {"break_even"}
    assert failed(apply_gate(evidence(), dataclasses.replace(GATE, significance_level=1e-30))) == {"edge"}


def test_a_fall_that_the_base_shares_is_accepted() -> None:
    crash = np.concatenate([np.linspace(1e6, 4e5, BARS // 2), np.linspace(4e5, 1.2e6, BARS // 2)])
    noise = 1 + 1e-4 * np.random.default_rng(0).normal(size=BARS)

    def drawdown(depth: float, base_depth: float = 0.6) -> Rule:
        champion = np.maximum(crash * noise, 1e6 * (1 - depth))
        base = np.maximum(crash, 1e6 * (1 - base_depth))
        test = {
            "champion": result("champion", 2, equity=champion),
            "equal_weight": result("equal_weight", 2, equity=base),
        }
        return rule(apply_gate(evidence(test=test), GATE), "drawdown")

    assert drawdown(0.6).passed  # that of the base
    assert "3.0% deeper than that of equal weight" in drawdown(0.6).sentence
    assert drawdown(0.6, base_depth=0.58).passed
    assert not drawdown(0.6, base_depth=0.56).passed
    assert drawdown(0.45, base_depth=0.3).passed


def test_values_equal_the_statistics() -> None:
    given = evidence()
    verdict = apply_gate(given, GATE)
    found = edge_test(active_period(given), selected_period(given), seed=3)
    assert rule(verdict, "edge").value == found.p_value
    assert verdict.edge is not None
    assert verdict.edge.tests == found
    assert verdict.edge.reference == "equal_weight"
    active = active_returns(given.validation or {})
    variance = null_sharpe_variance(given.trials)
    assert variance < (given.trials.mean(0) / given.trials.std(0, ddof=1)).var(
        ddof=1
    )  # unequal skill increases the variance
    assert verdict.statistics.deflated_sharpe == deflated_sharpe(moments(active), variance, 40)
    assert verdict.statistics.deflated_sharpe_clustered == deflated_sharpe(moments(active), variance, 6)
    assert verdict.statistics.overfitting.pbo == backtest_overfitting(given.trials, PBO_BLOCKS).pbo
    assert sum(verdict.statistics.overfitting.logits.counts) == math.comb(PBO_BLOCKS, PBO_BLOCKS // 2)
    assert verdict.statistics.probabilistic_sharpe == probabilistic_sharpe(moments(active_returns(given.test)))
    assert verdict.statistics.test_intervals["sharpe"].value == pytest.approx(sharpe(given.test["champion"].equity))


def test_active_returns_are_over_the_reference() -> None:
    validation, test = ({**results(k, 0.0), "base": result("champion", k)} for k in (1, 2))
    given = evidence(validation=validation, test=test, reference="base")
    assert np.abs(active_returns(given.test, "base")).max() < 1e-12
    verdict = apply_gate(given, GATE)
    edge = rule(verdict, "edge")
    assert (edge.value, edge.passed) == (pytest.approx(1.0), False)
    assert verdict.edge.active_return == Estimate(value=0.0, low=0.0, high=0.0)


def test_an_edge_that_is_too_small_is_refused() -> None:
    verdict = apply_gate(evidence(), dataclasses.replace(GATE, minimum_edge=2.0))
    assert failed(verdict) == {"edge"}
    assert verdict.edge.case == "too_small"
    assert (rule(verdict, "edge").value or 1.0) <= 0.025
    assert "must be at least 200.00%" in rule(verdict, "edge").sentence


def test_returns_of_cash_are_no_edge() -> None:
    """Alpha is in excess of cash: a champion that is half in cash earns half of the rate in active returns only."""
    rate = np.full(BARS - 1, 0.1 / 252)
    base = result("equal_weight", 2)
    returns = 0.5 * simple_returns(base.equity) + 0.5 * rate
    champion = result("champion", 2, equity=1e6 * np.cumprod(np.r_[1, 1 + returns]))
    test = {
        name: dataclasses.replace(x, risk_free=rate) for name, x in (("champion", champion), ("equal_weight", base))
    }
    verdict = apply_gate(evidence(test=test, validation=None), GATE)
    assert verdict.edge.beta == pytest.approx(0.5)
    assert verdict.edge.alpha.value == pytest.approx(0.0, abs=1e-9)
    assert not verdict.promoted


def test_limit_tightens_with_every_look() -> None:
    once, often = apply_gate(evidence(), GATE), apply_gate(evidence(looks=10), GATE)
    assert rule(once, "edge").limit == pytest.approx(0.025)
    assert rule(often, "edge").limit == pytest.approx(0.05 / 110)
    assert "(0.05 / (10 × 11), at look 10 at the test period)" in rule(often, "edge").sentence
    assert rule(often, "edge").sentence.startswith("p-value of no edge over equal weight: ")
    slow = apply_gate(evidence(0.0, base="minimum_variance"), GATE)
    expected = "p-value of no edge over its base (minimum variance, under the same trading rules): "
    assert rule(slow, "edge").sentence.startswith(expected)
    assert "over its base on test" in rule(slow, "break_even").sentence


def test_levels_of_all_looks_stay_below_five_percent() -> None:
    levels = [significance_per_look(0.025, look) for look in range(1, 1001)]
    assert levels[:3] == pytest.approx([0.025, 0.05 / 6, 0.05 / 12])
    assert sum(levels) == pytest.approx(0.05 * (1 - 1 / 1001))


@pytest.mark.slow
def test_margin_sufficient_for_one_look_fails_at_the_tenth() -> None:
    def p_value(edge: float) -> float:
        return rule(apply_gate(evidence(edge), GATE), "edge").value or 0.0

    smallest_edge = next(e for e in np.arange(1e-5, 8e-4, 2e-5) if p_value(e) < 0.025)
    assert "edge" not in failed(apply_gate(evidence(smallest_edge), GATE))
    assert "edge" in failed(apply_gate(evidence(smallest_edge, looks=10), GATE))


def test_other_runs_on_the_data_count_as_further_selections() -> None:
    trials = trial_returns(0.0)
    assert independent_selections(trials, TrialCounts(13, 12, 1)) == 1.0  # one run is one selection
    assert independent_selections(trials[:, :1].repeat(12, 1), TrialCounts(40, 6, 9)) == 6.0
    assert independent_selections(trials[:, :1].repeat(12, 1), TrialCounts(40, 6, 2)) == 2.0
    values = [
        rule(apply_gate(evidence(3e-4, trials=trials, counts=TrialCounts(12 * n, 12 * n, n)), GATE), "edge").value
        for n in (1, 2, 4)
    ]
    assert values == sorted(values)  # type: ignore[type-var]
    assert len(set(values)) == 3


def test_edge_uses_only_the_test_period_without_a_validation_period() -> None:
    given = evidence(validation=None)
    verdict = apply_gate(given, GATE)
    found = edge_test(active_period(given), None)
    assert (rule(verdict, "edge").value, found.active.validation) == (found.p_value, None)
    assert verdict.edge.tests.alpha.validation_selected is None
    assert verdict.statistics.deflated_sharpe is not None


def test_ruined_champion_fails_without_an_error() -> None:
    ruined = result("champion", 2, equity=np.linspace(1e6, -1e5, BARS))
    verdict = apply_gate(evidence(test={**results(2, 0.0), "champion": ruined}), GATE)
    assert {"drawdown", "edge"} <= failed(verdict)
    assert verdict.statistics.test_intervals is None


def test_single_trial_has_no_overfitting_statistics() -> None:
    verdict = apply_gate(evidence(trials=trial_returns(1.6e-3, 1), counts=TrialCounts(1, 1, 1)), GATE)
    assert verdict.promoted
    assert verdict.statistics.overfitting is None
    nothing = apply_gate(evidence(trials=np.zeros((BARS - 1, 2))), GATE)
    assert "at least one trial with returns that vary" in rule(nothing, "edge").sentence


def test_diverged_and_constant_trials_are_excluded() -> None:
    trials = np.c_[trial_returns(0.0, 3), np.full(BARS - 1, np.nan), np.zeros(BARS - 1)]
    assert varying_trials(trials).shape[1] == 3


def test_null_sharpe_variance_ignores_skill() -> None:
    """Without skill the variance is the sampling error; unequal skill does not increase it."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.01, (500, 300))
    assert null_sharpe_variance(noise) == pytest.approx(1 / 500, rel=0.2)
    skilled = noise + np.linspace(-2e-3, 2e-3, 300)
    assert (skilled.mean(0) / skilled.std(0, ddof=1)).var(ddof=1) > 5 / 500
    assert null_sharpe_variance(skilled) == pytest.approx(1 / 500, rel=0.05)
    correlated = 0.99 * noise[:, :1] + 0.01 * noise  # correlated trials hardly differ by chance
    assert null_sharpe_variance(correlated) < 1e-3 / 500
    assert null_sharpe_variance(noise[:, :1]) == 0.0


def test_thresholds_out_of_range_are_refused() -> None:
    check_settings("gate.", GateConfig())
    for change in (
        {"significance_level": 0.0},
        {"significance_level": 0.6},
    ):
        with pytest.raises(ConfigError, match=f"gate.{next(iter(change))} is out of its range"):
            check_settings("gate.", dataclasses.replace(GateConfig(), **change))


def test_minimum_bars_suffice_and_one_less_does_not() -> None:
    validation, test = min_bars()
    assert (validation, test) == (33, 21)

    def short(bars: int) -> PromotionEvidence:
        by_name = {name: result(name, 1, bars=bars) for name in ("champion", "equal_weight")}
        return evidence(validation=by_name, test=by_name, trials=trial_returns(0.0)[: bars - 1])

    assert apply_gate(short(validation), GATE).statistics.overfitting is not None
    assert apply_gate(short(validation - 1), GATE).statistics.overfitting is None
    assert not apply_gate(short(test), GATE).promoted
    with pytest.raises(InputError, match="at least 20"):
        apply_gate(short(test - 1), GATE)


# ---------------------------------------------------------------------- the verdict and its file


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    return apply_gate(evidence(), GATE)


def test_verdict_describes_its_rules(verdict: Verdict) -> None:
    assert verdict.reasons == tuple(rule.sentence for rule in verdict.rules)
    refused = apply_gate(evidence(failures=("it depends on the future.",)), GATE)
    assert not refused.promoted
    assert [reason for reason in refused.reasons if "it depends on the future." in reason] == list(refused.reasons)
    assert verdict.trials == TrialCounts(raw=40, clustered=6, runs=2)
    assert verdict.looks == 1


def test_verdict_is_unchanged_after_writing_and_reading(verdict: Verdict, tmp_path: Path) -> None:
    write_verdict(tmp_path, verdict)
    assert read_verdict(tmp_path).to_dict() == verdict.to_dict()
    assert json.loads((tmp_path / "verdict.json").read_text()) == verdict.to_dict()


def test_damaged_verdicts_are_refused(verdict: Verdict, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no verdict"):
        read_verdict(tmp_path)
    (tmp_path / "verdict.json").write_text('{"promoted": true}')
    with pytest.raises(RunError, match="verdict is damaged"):
        read_verdict(tmp_path)
    (tmp_path / "verdict.json").write_text(json.dumps({**verdict.to_dict(), "promoted": not verdict.promoted}))
    with pytest.raises(RunError, match="contradicts its own rules"):
        read_verdict(tmp_path)
