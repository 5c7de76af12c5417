"""Every rule of the gate at its limit, the effect of looks and trials, and the verdict and its file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finrl_pod.errors import ConfigError, InputError, RunError
from finrl_pod.evaluate.intervals import growth_interval
from finrl_pod.evaluate.metrics import sharpe, simple_returns
from finrl_pod.evaluate.overfitting import backtest_overfitting
from finrl_pod.evaluate.significance import deflated_sharpe, moments, probabilistic_sharpe, superior_predictive_ability
from finrl_pod.promotion.gate import Verdict, apply_gate, check, min_bars, read_verdict, write_verdict
from finrl_pod.promotion.rules import (
    PromotionEvidence,
    Rule,
    best_baseline,
    excess_returns,
    log_returns,
    null_sharpe_variance,
    trial_sharpes,
    varying_trials,
)
from finrl_pod.promotion.trial_registry import TrialCounts
from finrl_pod.settings.run import GateConfig
from finrl_pod.types import BacktestResult

BARS = 400
GATE = GateConfig(min_dsr=0.95, superiority_confidence=0.95, pbo_blocks=8)
DRAWS = 100
MIN_TAIL_DRAWS = 400  # twenty beyond a limit of 0.05


def result(name: str, seed: int, drift: float = 0.0, bars: int = BARS, equity: Any = None) -> BacktestResult:
    """Equity with a market factor common to all results of the same length and seed, and a separate drift."""
    market = np.random.default_rng(seed).normal(2e-4, 0.01, bars)
    own = np.random.default_rng([seed, *name.encode()]).normal(drift, 0.003, bars)
    curve = 1e6 * np.exp(np.cumsum(market + own)) if equity is None else np.asarray(equity, dtype=float)
    times = np.busday_offset("2020-01-01", np.arange(len(curve))).astype("datetime64[ns]")
    weights = np.zeros((len(curve), 1))
    return BacktestResult(name, times, ("A",), curve, weights, weights[:, 0], weights[:, 0], {})


def results(seed: int, edge: float, **more: BacktestResult) -> dict[str, BacktestResult]:
    made = {"champion": result("champion", seed, edge)}
    made |= {name: result(name, seed) for name in ("equal_weight", "momentum_12_1")}
    return {**made, **more}


def tried(edge: float, count: int = 12, seed: int = 5) -> np.ndarray:
    """Excess returns [T, N] of trials, the last one the best."""
    rng = np.random.default_rng(seed)
    return rng.normal(0, 0.003, (BARS - 1, count)) + edge * np.linspace(0.5, 1.0, count)


def evidence(edge: float = 1.6e-3, **changes: Any) -> PromotionEvidence:
    made = PromotionEvidence(
        validation=results(1, edge),
        test=results(2, edge),
        trials=tried(edge),
        counts=TrialCounts(40, 6, 2),
        looks=1,
        cost_bps=10.0,
        break_even=40.0,
        failures=(),
        seed=3,
    )
    return dataclasses.replace(made, **changes)


def verdict_on(given: PromotionEvidence, gate: GateConfig) -> Verdict:
    """Apply the gate with as few bootstrap draws as possible."""
    return apply_gate(given, gate, draws=DRAWS)


def rule(verdict: Verdict, name: str) -> Rule:
    (found,) = [rule for rule in verdict.rules if rule.name == name]
    return found


def failed(verdict: Verdict) -> set[str]:
    return {rule.name for rule in verdict.rules if not rule.passed}


def test_champion_with_an_edge_is_promoted() -> None:
    verdict = verdict_on(evidence(), GATE)
    assert failed(verdict) == set()
    assert verdict.promoted


def test_champion_without_an_edge_is_refused() -> None:
    verdict = verdict_on(evidence(0.0, break_even=0.0), GATE)
    assert not verdict.promoted
    assert {"deflated_sharpe", "probabilistic_sharpe", "superior_ability", "excess", "break_even"} <= failed(verdict)


def test_one_failing_rule_refuses_promotion() -> None:
    assert failed(verdict_on(evidence(failures=("a feature depends on the future.",)), GATE)) == {"audit"}
    assert failed(verdict_on(evidence(failures=None), GATE)) == {"audit"}
    assert failed(verdict_on(evidence(failures=None), dataclasses.replace(GATE, audit=False))) == set()
    assert failed(verdict_on(evidence(break_even=14.9), GATE)) == {"break_even"}
    assert failed(verdict_on(evidence(), dataclasses.replace(GATE, max_drawdown=0.01))) == {"drawdown"}
    assert failed(verdict_on(evidence(), dataclasses.replace(GATE, min_excess_bps=50.0))) == {"excess"}
    better = results(1, 1.6e-3, momentum_12_1=result("momentum_12_1", 1, 6e-3))
    assert "baselines" in failed(verdict_on(evidence(validation=better), GATE))


def test_values_equal_the_statistics() -> None:
    given = evidence()
    verdict = verdict_on(given, GATE)
    excess = excess_returns(given.validation)
    variance, spread = null_sharpe_variance(given.trials), float(trial_sharpes(given.trials).var(ddof=1))
    assert variance < spread  # unequal skill widens the spread
    assert verdict.statistics["deflated_sharpe_whole_spread"] == deflated_sharpe(moments(excess), spread, 40)
    assert rule(verdict, "deflated_sharpe").value == deflated_sharpe(moments(excess), variance, 40)
    assert verdict.statistics["deflated_sharpe_clustered"] == deflated_sharpe(moments(excess), variance, 6)
    assert rule(verdict, "overfitting").value == backtest_overfitting(given.trials, 8).pbo
    assert rule(verdict, "probabilistic_sharpe").value == probabilistic_sharpe(moments(excess_returns(given.test)))
    best = best_baseline(given.validation)
    ours, theirs = (simple_returns(given.test[name].equity) for name in ("champion", best))
    assert rule(verdict, "superior_ability").value == superior_predictive_ability(
        theirs, ours, seed=3, draws=MIN_TAIL_DRAWS
    )
    low, high = growth_interval(
        log_returns(given.test["champion"]) - log_returns(given.test[best]), 0.9, seed=3, draws=MIN_TAIL_DRAWS
    )
    assert rule(verdict, "excess").value == pytest.approx(low * 1e4)
    assert verdict.statistics["excess"]["high"] == pytest.approx(high * 1e4)
    assert sum(verdict.statistics["overfitting"]["logits"]["counts"]) == 70
    assert verdict.statistics["test_intervals"]["sharpe"]["value"] == pytest.approx(
        sharpe(given.test["champion"].equity)
    )


def test_high_pbo_is_accepted_if_all_trials_beat_equal_weight() -> None:
    rng = np.random.default_rng(9)
    for edge, met in ((6e-4, True), (0.0, False)):
        trials = rng.normal(edge, 0.003, (BARS - 1, 12))  # equal skill: the best is chosen by luck
        verdict = verdict_on(evidence(trials=trials), dataclasses.replace(GATE, max_pbo=0.05))
        found = backtest_overfitting(trials, 8)
        assert found.pbo > 0.05
        chosen = rule(verdict, "overfitting")
        assert (chosen.value, chosen.passed) == (found.pbo, met)
        assert (found.loss_probability <= GATE.max_pbo_loss_probability) == met
        assert ("loses against equal weight in" in chosen.sentence) == met
    strict = dataclasses.replace(GATE, max_pbo=0.05, max_pbo_loss_probability=0.0)
    some = rng.normal(1.5e-4, 0.003, (BARS - 1, 12))
    assert backtest_overfitting(some, 8).loss_probability > 0
    assert "overfitting" in failed(verdict_on(evidence(trials=some), strict))


def test_more_trials_deflate_the_sharpe_ratio() -> None:
    values = [
        rule(verdict_on(evidence(4e-4, counts=TrialCounts(n, 5, 1)), GATE), "deflated_sharpe").value
        for n in (12, 100, 10_000)
    ]
    assert values == sorted(values, reverse=True)  # type: ignore[type-var]
    assert len(set(values)) == 3


def test_limits_tighten_with_every_look() -> None:
    once, often = verdict_on(evidence(), GATE), verdict_on(evidence(looks=10), GATE)
    assert rule(once, "probabilistic_sharpe").limit == pytest.approx(0.95)
    assert rule(often, "probabilistic_sharpe").limit == pytest.approx(0.995)
    assert rule(often, "superior_ability").limit == pytest.approx(0.005)
    assert rule(often, "excess").value < rule(once, "excess").value  # type: ignore[operator]
    assert "after 10 looks at the test period" in rule(often, "probabilistic_sharpe").sentence


def test_margin_sufficient_for_one_look_fails_at_the_tenth() -> None:
    near = next(
        e for e in np.arange(1e-5, 8e-4, 1e-5) if probabilistic_sharpe(moments(excess_returns(results(2, e)))) > 0.95
    )
    assert "probabilistic_sharpe" not in failed(verdict_on(evidence(near), GATE))
    assert "probabilistic_sharpe" in failed(verdict_on(evidence(near, looks=10), GATE))


def test_baseline_must_dominate_in_ratio_and_growth() -> None:
    bars = np.arange(BARS)
    calm = 1e6 * np.exp(1e-5 * bars + 1e-6 * (bars % 2))  # hardly any growth or risk
    validation = {**results(1, 1.6e-3), "momentum_12_1": result("momentum_12_1", 1, equity=calm)}
    assert sharpe(calm) > sharpe(validation["champion"].equity)
    assert "baselines" not in failed(verdict_on(evidence(validation=validation), GATE))
    same = {**results(1, 0.0), "champion": result("equal_weight", 1)}
    dominated = rule(verdict_on(evidence(validation=same), GATE), "baselines")
    assert (dominated.value or 0) >= 1
    assert not dominated.passed
    assert "equal weight" in dominated.sentence
    assert (
        rule(verdict_on(evidence(validation={**validation, "champion": riskless()}), GATE), "baselines").value is None
    )


def riskless() -> BacktestResult:
    return result("champion", 1, equity=1e6 * 1.001 ** np.arange(BARS))


def test_equal_ratio_dominates_and_undefined_ratio_is_lowest() -> None:
    same = result("champion", 1)
    validation = {"champion": same, "equal_weight": same}
    assert "baselines" in failed(verdict_on(evidence(validation=validation), GATE))
    assert best_baseline({**results(1, 0.0), "momentum_12_1": riskless()}) == "equal_weight"


def test_champion_equal_to_equal_weight_fails_with_an_explanation() -> None:
    def same(seed: int) -> dict[str, BacktestResult]:
        return {name: result("equal_weight", seed) for name in ("champion", "equal_weight")}

    verdict = verdict_on(evidence(validation=same(1), test=same(2)), GATE)
    for name in ("deflated_sharpe", "probabilistic_sharpe", "superior_ability"):
        assert rule(verdict, name).value is None
        assert "cannot be computed" in rule(verdict, name).sentence


def test_ruined_champion_fails_without_an_error() -> None:
    fall = result("champion", 2, equity=np.linspace(1e6, -1e5, BARS))
    verdict = verdict_on(evidence(test={**results(2, 0.0), "champion": fall}), GATE)
    assert {"drawdown", "excess"} <= failed(verdict)
    assert np.isfinite(log_returns(fall)).all()
    assert verdict.statistics["test_intervals"] is None


def test_single_trial_fails_with_an_explanation() -> None:
    verdict = verdict_on(evidence(trials=tried(1.6e-3, 1), counts=TrialCounts(1, 1, 1)), GATE)
    assert "at least two trials" in rule(verdict, "overfitting").sentence
    assert rule(verdict, "deflated_sharpe").passed  # one trial deflates nothing
    many = verdict_on(evidence(trials=tried(1.6e-3, 1), counts=TrialCounts(9, 1, 1)), GATE)
    assert "at least two trials" in rule(many, "deflated_sharpe").sentence


def test_diverged_and_constant_trials_are_left_out() -> None:
    trials = np.c_[tried(0.0, 3), np.full(BARS - 1, np.nan), np.zeros(BARS - 1)]
    assert varying_trials(trials).shape[1] == 3


def test_null_sharpe_variance_ignores_skill() -> None:
    """Without skill the variance is the sampling error; unequal skill does not increase it."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.01, (500, 300))
    assert null_sharpe_variance(noise) == pytest.approx(1 / 500, rel=0.2)
    skilled = noise + np.linspace(-2e-3, 2e-3, 300)
    assert trial_sharpes(skilled).var(ddof=1) > 5 / 500
    assert null_sharpe_variance(skilled) == pytest.approx(1 / 500, rel=0.05)
    alike = 0.99 * noise[:, :1] + 0.01 * noise  # correlated trials hardly differ by luck
    assert null_sharpe_variance(alike) < 1e-3 / 500
    assert null_sharpe_variance(noise[:, :1]) == 0.0


def test_thresholds_out_of_range_are_refused() -> None:
    check(GateConfig())
    for change in (
        {"pbo_blocks": 7},
        {"pbo_blocks": 30},
        {"min_psr": 1.0},
        {"superiority_confidence": 0.4},
        {"superiority_confidence": 0.5},
        {"min_dsr": 1.0},
        {"max_pbo": 0.0},
        {"max_drawdown": 2.0},
        {"break_even_cost_multiple": -1.0},
        {"min_excess_bps": float("nan")},
    ):
        with pytest.raises(ConfigError, match=f"gate.{next(iter(change))} is out of its range"):
            check(dataclasses.replace(GateConfig(), **change))  # type: ignore[arg-type]


def test_minimum_bars_suffice_and_one_less_does_not() -> None:
    validation, test = min_bars(GATE)
    assert (validation, test) == (21, 21)
    assert min_bars(GateConfig()) == (33, 21)

    def short(bars: int) -> PromotionEvidence:
        made = {name: result(name, 1, bars=bars) for name in ("champion", "equal_weight")}
        return evidence(validation=made, test=made, trials=tried(0.0)[: bars - 1])

    assert not verdict_on(short(validation), GATE).promoted
    with pytest.raises(InputError, match="at least 20"):
        verdict_on(short(validation - 1), GATE)


def test_sharpe_ratios_are_in_excess_of_cash() -> None:
    """An account in cash has a high Sharpe ratio, but none in excess of the return of cash."""
    cash = np.full(BARS - 1, 2e-4)
    lazy = 1e6 * np.cumprod(np.concatenate([[1.0], 1 + cash + 1e-6 * (-1.0) ** np.arange(BARS - 1)]))
    made = {"champion": result("champion", 1, equity=lazy), "equal_weight": result("equal_weight", 1, 1.5e-3)}
    assert "baselines" not in failed(verdict_on(evidence(validation=made), GATE))
    over_cash = {name: dataclasses.replace(one, risk_free=cash) for name, one in made.items()}
    assert sharpe(lazy) > 100 > sharpe(lazy, risk_free=cash)
    assert "baselines" in failed(verdict_on(evidence(validation=over_cash), GATE))
    own = verdict_on(evidence(test={**results(2, 1.6e-3), "champion": over_cash["champion"]}), GATE)
    assert own.statistics["test_intervals"]["sharpe"]["value"] == pytest.approx(sharpe(lazy, risk_free=cash))


# ---------------------------------------------------------------------- the verdict and its file


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    return apply_gate(evidence(), GATE)


def test_verdict_describes_its_rules(verdict: Verdict) -> None:
    assert verdict.reasons == tuple(rule.sentence for rule in verdict.rules)
    refused = apply_gate(evidence(failures=("it depends on the future.",)), GATE)
    assert not refused.promoted
    assert [reason for reason in refused.reasons if "it depends on the future." in reason] == list(refused.reasons)
    assert verdict.trials == {"raw": 40, "clustered": 6, "runs": 2}
    assert verdict.looks == 1


def test_verdict_is_unchanged_after_writing_and_reading(verdict: Verdict, tmp_path: Path) -> None:
    write_verdict(tmp_path, verdict)
    assert read_verdict(tmp_path).plain() == verdict.plain()
    assert json.loads((tmp_path / "verdict.json").read_text()) == verdict.plain()


def test_damaged_verdicts_are_refused(verdict: Verdict, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no verdict"):
        read_verdict(tmp_path)
    (tmp_path / "verdict.json").write_text('{"promoted": true}')
    with pytest.raises(RunError, match="verdict is damaged"):
        read_verdict(tmp_path)
    (tmp_path / "verdict.json").write_text(json.dumps({**verdict.plain(), "promoted": not verdict.promoted}))
    with pytest.raises(RunError, match="contradicts its own rules"):
        read_verdict(tmp_path)
