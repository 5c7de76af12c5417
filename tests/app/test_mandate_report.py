"""The report's parts on a mandate against plain numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from finrl_pod_app.services.mandate_report import MandatePeriod, added, base_name, comparison, usage
from scipy import stats

from finrl_pod.evaluate.metrics import summary
from finrl_pod.settings.run import MandateConfig
from finrl_pod.types import BacktestResult
from tests.app.report_data import synthetic_results


def pair(bars: int = 300) -> tuple[BacktestResult, BacktestResult]:
    """A champion and its base with the metrics of their equity."""
    results = synthetic_results(bars, ("champion", "equal_weight"))
    champion, base = (replace(result, metrics=summary(result.equity, result.turnover)) for result in results.values())
    return champion, base


def test_added_is_the_difference_of_the_reported_sharpe_ratios() -> None:
    champion, base = pair()
    found = added(champion, base, seed=3)
    assert found is not None
    assert found["base"] == "equal_weight"
    assert found["value"] == pytest.approx(champion.metrics["sharpe"] - base.metrics["sharpe"], rel=1e-12)
    assert found["sharpe"] == {"champion": champion.metrics["sharpe"], "base": base.metrics["sharpe"]}
    assert found["low"] < found["value"] < found["high"]
    active = np.diff(champion.equity) / champion.equity[:-1] - np.diff(base.equity) / base.equity[:-1]
    assert found["information_ratio"]["value"] == pytest.approx(active.mean() / active.std(ddof=1) * 252**0.5)


def test_a_comparison_has_the_active_return_of_a_year_and_the_p_value_of_no_edge() -> None:
    champion, base = pair()
    found = comparison(champion, base, seed=3)
    assert found is not None
    active = np.diff(champion.equity) / champion.equity[:-1] - np.diff(base.equity) / base.equity[:-1]
    earned = found["active_return"]
    assert earned["value"] == pytest.approx(252 * active.mean(), rel=1e-9)
    assert earned["low"] < earned["value"] < earned["high"]
    error = active.std(ddof=1) / np.sqrt(len(active))
    assert earned["high"] - earned["low"] == pytest.approx(2 * 1.645 * 252 * error, rel=0.2)
    # Independent draws: the p-value is about that of a plain t test.
    assert found["p_value"] == pytest.approx(stats.ttest_1samp(active, 0.0, alternative="greater").pvalue, abs=0.03)
    assert (found["of"], found["base"]) == ("champion", "equal_weight")


def test_too_few_bars_give_no_comparison() -> None:
    champion, base = pair(20)
    assert added(champion, base, seed=3) is None
    assert comparison(champion, base, seed=3) is None


def test_equal_accounts_give_no_comparison() -> None:
    champion, _ = pair()
    assert comparison(champion, replace(champion, name="equal_weight"), seed=3) is None


def test_usage_is_that_of_the_held_weights() -> None:
    champion, base = pair()
    held = np.array([[0.0, 0.0, 0.0], [0.6, 0.2, 0.2], [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]])
    even = np.vstack([np.zeros(3), np.full((3, 3), 1 / 3)])
    desired = np.array([[0.2, -0.1, -0.1], [0.2, 0.0, -0.2], [-0.1, 0.1, 0.0], [np.nan] * 3])
    cut = {"times": champion.times[:4], "turnover": np.zeros(4), "costs": np.zeros(4), "symbols": ("A", "B", "C")}
    own = replace(champion, equity=champion.equity[:4], weights=held, **cut)
    reference = replace(base, equity=base.equity[:4], weights=even, **cut)
    found = usage(MandatePeriod(own, reference, desired))
    number = 1 / (held[1:] ** 2).sum(1)
    assert found["effective_holdings"] == pytest.approx(number.mean())
    assert found["effective_holdings_low"] == pytest.approx(np.quantile(number, 0.05))
    assert found["active_share"] == pytest.approx((np.abs(held - even)[1:].sum(1) / 2).mean())
    assert found["mean_absolute_tilt"] == pytest.approx(np.abs(np.log(3 * held[1:])).mean())
    # Wanted weights of a bar are compared with the holdings after its fills, at the next bar.
    expected = np.mean([np.corrcoef(desired[t], held[t + 1])[0, 1] for t in range(3)])
    assert found["transfer_coefficient"] == pytest.approx(expected)
    assert found["turnover_at_tilt_zero"] == base.metrics["turnover"]


def test_an_unconstrained_champion_is_compared_with_equal_weight() -> None:
    assert base_name(MandateConfig(base="none")) == "equal_weight"
    assert base_name(MandateConfig(base="minimum_variance")) == "minimum_variance"
