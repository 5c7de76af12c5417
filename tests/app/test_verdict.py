"""A champion is promoted when it beats every baseline on validation and is better than luck on test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from finrl_pod_app.verdict import FEWEST_BARS, judge, log_returns

from finrl_pod.errors import InputError
from finrl_pod.evaluate.statistics import growth_interval
from finrl_pod.types import BacktestResult

BARS = 500


def result(name: str, drift: float = 0.0, sharpe: float = 1.0, equity: Any = None, bars: int = BARS) -> BacktestResult:
    """Equity that shares its ups and downs with all others of its length, with a drift of its own."""
    rng = np.random.default_rng(0)
    market = rng.normal(0, 0.01, bars)
    own = np.random.default_rng(len(name)).normal(drift, 0.002, bars)
    curve = 1e6 * np.exp(np.cumsum(market + own)) if equity is None else np.asarray(equity, dtype=float)
    times = np.datetime64("2020-01-01", "ns") + np.arange(len(curve)) * np.timedelta64(1, "D")
    weights = np.zeros((len(curve), 1))
    return BacktestResult(name, times, ("A",), curve, weights, weights[:, 0], weights[:, 0], {"sharpe": sharpe})


def judged(champion: float, drift: float, seed: int = 0, **rivals: float) -> Any:
    rivals = rivals or {"equal_weight": 0.8, "minimum_variance": 1.1}
    validation = {name: result(name, sharpe=sharpe) for name, sharpe in {"champion": champion, **rivals}.items()}
    test = {"champion": result("champion", drift), "equal_weight": result("equal_weight")}
    return judge(validation, test, seed)


def test_promoted_when_both_rules_hold() -> None:
    verdict = judged(1.2, 0.001)
    assert verdict.promoted
    assert (
        "Sharpe ratio of 1.20 is above every baseline's (the best is minimum variance with 1.10)" in verdict.reasons[0]
    )
    assert "that lies above zero" in verdict.reasons[1]


def test_refused_for_a_better_baseline_on_validation() -> None:
    verdict = judged(1.05, 0.001)
    assert not verdict.promoted
    assert "is not above every baseline's" in verdict.reasons[0]
    assert "that lies above zero" in verdict.reasons[1]


def test_an_equal_score_is_not_above() -> None:
    assert not judged(1.1, 0.001).promoted


def test_refused_when_the_test_years_may_be_luck() -> None:
    verdict = judged(1.2, 0.0)
    assert not verdict.promoted
    assert "is above every" in verdict.reasons[0]
    assert "does not lie above zero" in verdict.reasons[1]


def test_refused_for_both() -> None:
    assert not judged(0.1, -0.001).promoted


def test_the_interval_is_that_of_the_excess_over_equal_weight() -> None:
    champion, equal = result("champion", 0.0005), result("equal_weight")
    excess = np.diff(np.log(champion.equity)) - np.diff(np.log(equal.equity))
    low, high = growth_interval(excess, 0.90, seed=3)
    reason = judged(1.2, 0.0005, seed=3).reasons[1]
    assert f"{excess.mean() * 1e4:.2f} basis points" in reason
    assert f"90% interval of {low * 1e4:.2f} to {high * 1e4:.2f}" in reason


@pytest.mark.parametrize(("champion", "rival"), [(np.nan, 0.4), (np.nan, np.nan), (1.0, np.nan)])
def test_an_undefined_ratio_is_not_the_best(champion: float, rival: float) -> None:
    verdict = judged(champion, 0.001, equal_weight=rival, index=0.5)
    assert verdict.promoted == (champion == 1.0)
    assert "index with 0.50" in verdict.reasons[0]


def test_a_ruined_champion_is_refused_and_not_an_error() -> None:
    fall = np.linspace(1e6, -1e5, BARS)
    validation = {"champion": result("champion", sharpe=2.0), "equal_weight": result("equal_weight")}
    ruined = {"champion": result("champion", equity=fall), "equal_weight": result("equal_weight")}
    assert not judge(validation, ruined, 0).promoted
    assert np.isfinite(log_returns(ruined["champion"])).all()


def test_the_fewest_bars_are_enough_and_one_less_is_not() -> None:
    def verdict(bars: int) -> Any:
        made = {name: result(name, bars=bars) for name in ("champion", "equal_weight")}
        return judge(made, made, 0)

    assert not verdict(FEWEST_BARS).promoted
    with pytest.raises(InputError, match="at least 20"):
        verdict(FEWEST_BARS - 1)
