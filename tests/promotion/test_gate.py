"""Each rule of the gate at its limit, what looks and trials do to it, and what cannot be computed."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from finrl_pod.errors import ConfigError, InputError
from finrl_pod.evaluate.intervals import growth_interval
from finrl_pod.evaluate.metrics import sharpe, simple_returns
from finrl_pod.evaluate.overfitting import backtest_overfitting
from finrl_pod.evaluate.significance import deflated_sharpe, moments, probabilistic_sharpe, superior_predictive_ability
from finrl_pod.promotion.gate import (
    Judgement,
    PromotionEvidence,
    best_baseline,
    check,
    excess_returns,
    fewest_bars,
    judge,
    log_returns,
)
from finrl_pod.promotion.rules import Rule, luck, moving, trial_sharpes
from finrl_pod.promotion.trial_registry import TrialCounts
from finrl_pod.settings.run import GateConfig
from finrl_pod.types import BacktestResult

BARS = 400
GATE = GateConfig(min_dsr=0.95, superiority_confidence=0.95, pbo_blocks=8)
DRAWS = 100
WANTED = 400  # twenty beyond a limit of 0.05


def result(name: str, seed: int, drift: float = 0.0, bars: int = BARS, equity: Any = None) -> BacktestResult:
    """Equity that shares its ups and downs with all others of its length and seed, with a drift of its own."""
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
    """[T, N] excess returns of trials, the last the best."""
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
        faults=(),
        seed=3,
    )
    return dataclasses.replace(made, **changes)


def judged(given: PromotionEvidence, gate: GateConfig) -> Judgement:
    """With as few draws as do."""
    return judge(given, gate, draws=DRAWS)


def rule(judgement: Judgement, name: str) -> Rule:
    (found,) = [rule for rule in judgement.rules if rule.name == name]
    return found


def failed(judgement: Judgement) -> set[str]:
    return {rule.name for rule in judgement.rules if not rule.passed}


def test_a_real_edge_is_promoted() -> None:
    judgement = judged(evidence(), GATE)
    assert failed(judgement) == set()
    assert judgement.promoted


def test_no_edge_is_refused() -> None:
    judgement = judged(evidence(0.0, break_even=0.0), GATE)
    assert not judgement.promoted
    assert {"deflated_sharpe", "probabilistic_sharpe", "superior_ability", "excess", "break_even"} <= failed(judgement)


def test_one_failing_rule_is_enough() -> None:
    assert failed(judged(evidence(faults=("a feature sees the future.",)), GATE)) == {"audit"}
    assert failed(judged(evidence(faults=None), GATE)) == {"audit"}
    assert failed(judged(evidence(faults=None), dataclasses.replace(GATE, audit=False))) == set()
    assert failed(judged(evidence(break_even=14.9), GATE)) == {"break_even"}
    assert failed(judged(evidence(), dataclasses.replace(GATE, max_drawdown=0.01))) == {"drawdown"}
    assert failed(judged(evidence(), dataclasses.replace(GATE, min_excess_bps=50.0))) == {"excess"}
    better = results(1, 1.6e-3, momentum_12_1=result("momentum_12_1", 1, 6e-3))
    assert "baselines" in failed(judged(evidence(validation=better), GATE))


def test_values_are_those_of_the_statistics() -> None:
    given = evidence()
    judgement = judged(given, GATE)
    excess = excess_returns(given.validation)
    variance, spread = luck(given.trials), float(trial_sharpes(given.trials).var(ddof=1))
    assert variance < spread  # some have learned more than others
    assert judgement.statistics["deflated_sharpe_whole_spread"] == deflated_sharpe(moments(excess), spread, 40)
    assert rule(judgement, "deflated_sharpe").value == deflated_sharpe(moments(excess), variance, 40)
    assert judgement.statistics["deflated_sharpe_clustered"] == deflated_sharpe(moments(excess), variance, 6)
    assert rule(judgement, "overfitting").value == backtest_overfitting(given.trials, 8).pbo
    assert rule(judgement, "probabilistic_sharpe").value == probabilistic_sharpe(moments(excess_returns(given.test)))
    best = best_baseline(given.validation)
    ours, theirs = (simple_returns(given.test[name].equity) for name in ("champion", best))
    assert rule(judgement, "superior_ability").value == superior_predictive_ability(theirs, ours, seed=3, draws=WANTED)
    low, high = growth_interval(
        log_returns(given.test["champion"]) - log_returns(given.test[best]), 0.9, seed=3, draws=WANTED
    )
    assert rule(judgement, "excess").value == pytest.approx(low * 1e4)
    assert judgement.statistics["excess"]["high"] == pytest.approx(high * 1e4)
    assert sum(judgement.statistics["overfitting"]["logits"]["counts"]) == 70
    assert judgement.statistics["test_intervals"]["sharpe"]["value"] == pytest.approx(
        sharpe(given.test["champion"].equity)
    )


def test_a_choice_among_equals_is_no_fault_while_all_are_ahead() -> None:
    rng = np.random.default_rng(9)
    for edge, met in ((6e-4, True), (0.0, False)):
        trials = rng.normal(edge, 0.003, (BARS - 1, 12))  # all alike: who is best is luck
        judgement = judged(evidence(trials=trials), dataclasses.replace(GATE, max_pbo=0.05))
        found = backtest_overfitting(trials, 8)
        assert found.pbo > 0.05
        chosen = rule(judgement, "overfitting")
        assert (chosen.value, chosen.passed) == (found.pbo, met)
        assert (found.loss_probability <= GATE.max_pbo_loss_probability) == met
        assert ("falls behind equal weight in" in chosen.sentence) == met
    strict = dataclasses.replace(GATE, max_pbo=0.05, max_pbo_loss_probability=0.0)
    some = rng.normal(1.5e-4, 0.003, (BARS - 1, 12))
    assert backtest_overfitting(some, 8).loss_probability > 0
    assert "overfitting" in failed(judged(evidence(trials=some), strict))


def test_more_trials_ask_for_more() -> None:
    values = [
        rule(judged(evidence(4e-4, counts=TrialCounts(n, 5, 1)), GATE), "deflated_sharpe").value
        for n in (12, 100, 10_000)
    ]
    assert values == sorted(values, reverse=True)  # type: ignore[type-var]
    assert len(set(values)) == 3


def test_the_test_period_asks_for_more_with_every_look() -> None:
    once, often = judged(evidence(), GATE), judged(evidence(looks=10), GATE)
    assert rule(once, "probabilistic_sharpe").limit == pytest.approx(0.95)
    assert rule(often, "probabilistic_sharpe").limit == pytest.approx(0.995)
    assert rule(often, "superior_ability").limit == pytest.approx(0.005)
    assert rule(often, "excess").value < rule(once, "excess").value  # type: ignore[operator]
    assert "after 10 looks at the test period" in rule(often, "probabilistic_sharpe").sentence


def test_a_margin_that_is_enough_for_one_look_is_not_for_the_tenth() -> None:
    near = next(
        e for e in np.arange(1e-5, 8e-4, 1e-5) if probabilistic_sharpe(moments(excess_returns(results(2, e)))) > 0.95
    )
    assert "probabilistic_sharpe" not in failed(judged(evidence(near), GATE))
    assert "probabilistic_sharpe" in failed(judged(evidence(near, looks=10), GATE))


def test_a_baseline_has_to_be_better_in_both_to_refuse() -> None:
    bars = np.arange(BARS)
    calm = 1e6 * np.exp(1e-5 * bars + 1e-6 * (bars % 2))  # hardly grows, without any risk to speak of
    validation = {**results(1, 1.6e-3), "momentum_12_1": result("momentum_12_1", 1, equity=calm)}
    assert sharpe(calm) > sharpe(validation["champion"].equity)
    assert "baselines" not in failed(judged(evidence(validation=validation), GATE))
    same = {**results(1, 0.0), "champion": result("equal_weight", 1)}
    told = rule(judged(evidence(validation=same), GATE), "baselines")
    assert (told.value or 0) >= 1
    assert not told.passed
    assert "equal weight reaches both" in told.sentence
    assert rule(judged(evidence(validation={**validation, "champion": still()}), GATE), "baselines").value is None


def still() -> BacktestResult:
    return result("champion", 1, equity=1e6 * 1.001 ** np.arange(BARS))


def test_an_equal_ratio_is_not_above_and_an_undefined_one_is_the_lowest() -> None:
    same = result("champion", 1)
    validation = {"champion": same, "equal_weight": same}
    assert "baselines" in failed(judged(evidence(validation=validation), GATE))
    assert best_baseline({**results(1, 0.0), "momentum_12_1": still()}) == "equal_weight"


def test_a_champion_that_is_equal_weight_is_refused_in_words() -> None:
    def same(seed: int) -> dict[str, BacktestResult]:
        return {name: result("equal_weight", seed) for name in ("champion", "equal_weight")}

    judgement = judged(evidence(validation=same(1), test=same(2)), GATE)
    for name in ("deflated_sharpe", "probabilistic_sharpe", "superior_ability"):
        assert rule(judgement, name).value is None
        assert "cannot be computed" in rule(judgement, name).sentence


def test_a_ruined_champion_is_refused_and_not_an_error() -> None:
    fall = result("champion", 2, equity=np.linspace(1e6, -1e5, BARS))
    judgement = judged(evidence(test={**results(2, 0.0), "champion": fall}), GATE)
    assert {"drawdown", "excess"} <= failed(judgement)
    assert np.isfinite(log_returns(fall)).all()
    assert judgement.statistics["test_intervals"] is None


def test_one_trial_is_refused_in_words() -> None:
    judgement = judged(evidence(trials=tried(1.6e-3, 1), counts=TrialCounts(1, 1, 1)), GATE)
    assert "at least two trials" in rule(judgement, "overfitting").sentence
    assert rule(judgement, "deflated_sharpe").passed  # one trial deflates nothing
    many = judged(evidence(trials=tried(1.6e-3, 1), counts=TrialCounts(9, 1, 1)), GATE)
    assert "needs two of them" in rule(many, "deflated_sharpe").sentence


def test_trials_that_broke_or_never_moved_are_left_out_of_the_spread() -> None:
    trials = np.c_[tried(0.0, 3), np.full(BARS - 1, np.nan), np.zeros(BARS - 1)]
    assert moving(trials).shape[1] == 3


def test_what_luck_can_spread() -> None:
    """Without skill the spread of ratios is their sampling error; with unequal skill it counts no more than that."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.01, (500, 300))
    assert luck(noise) == pytest.approx(1 / 500, rel=0.2)
    skilled = noise + np.linspace(-2e-3, 2e-3, 300)
    assert trial_sharpes(skilled).var(ddof=1) > 5 / 500
    assert luck(skilled) == pytest.approx(1 / 500, rel=0.05)
    alike = 0.99 * noise[:, :1] + 0.01 * noise  # what moves together can hardly be told apart by luck
    assert luck(alike) < 1e-3 / 500
    assert luck(noise[:, :1]) == 0.0


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


def test_the_fewest_bars_are_enough_and_one_less_is_not() -> None:
    validation, test = fewest_bars(GATE)
    assert (validation, test) == (21, 21)
    assert fewest_bars(GateConfig()) == (33, 21)

    def short(bars: int) -> PromotionEvidence:
        made = {name: result(name, 1, bars=bars) for name in ("champion", "equal_weight")}
        return evidence(validation=made, test=made, trials=tried(0.0)[: bars - 1])

    assert not judged(short(validation), GATE).promoted
    with pytest.raises(InputError, match="at least 20"):
        judged(short(validation - 1), GATE)


def test_ratios_are_of_what_exceeds_cash() -> None:
    """An account that lies in cash has a high ratio of its own and none beyond what everybody's cash earned."""
    cash = np.full(BARS - 1, 2e-4)
    lazy = 1e6 * np.cumprod(np.concatenate([[1.0], 1 + cash + 1e-6 * (-1.0) ** np.arange(BARS - 1)]))
    made = {"champion": result("champion", 1, equity=lazy), "equal_weight": result("equal_weight", 1, 1.5e-3)}
    assert "baselines" not in failed(judged(evidence(validation=made), GATE))
    over_cash = {name: dataclasses.replace(one, risk_free=cash) for name, one in made.items()}
    assert sharpe(lazy) > 100 > sharpe(lazy, risk_free=cash)
    assert "baselines" in failed(judged(evidence(validation=over_cash), GATE))
    own = judged(evidence(test={**results(2, 1.6e-3), "champion": over_cash["champion"]}), GATE)
    assert own.statistics["test_intervals"]["sharpe"]["value"] == pytest.approx(sharpe(lazy, risk_free=cash))
