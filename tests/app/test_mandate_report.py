"""The report's parts on a mandate against plain numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from finrl_pod_app.evaluation.mandate_report import (
    MandatePeriod,
    added_value,
    comparison,
    practically_base,
    usage,
)
from finrl_pod_strategies.mandate_account import DesiredTilts
from scipy import stats

from finrl_pod.evaluate.metrics import summary
from finrl_pod.types import BacktestResult
from tests.app.report_data import synthetic_results


def pair(bars: int = 300) -> tuple[BacktestResult, BacktestResult]:
    """A champion and its base with the metrics of their equity."""
    results = synthetic_results(bars, ("champion", "equal_weight"))
    champion, base = (replace(result, metrics=summary(result.equity, result.turnover)) for result in results.values())
    return champion, base


def test_added_is_the_difference_of_the_reported_sharpe_ratios() -> None:
    champion, base = pair()
    found = added_value(champion, base, seed=3)
    assert found is not None
    assert found.base == "equal_weight"
    assert found.value == pytest.approx(champion.metrics["sharpe"] - base.metrics["sharpe"], rel=1e-12)
    assert (found.sharpe.champion, found.sharpe.base) == (champion.metrics["sharpe"], base.metrics["sharpe"])
    assert found.low < found.value < found.high
    active = np.diff(champion.equity) / champion.equity[:-1] - np.diff(base.equity) / base.equity[:-1]
    assert found.information_ratio.value == pytest.approx(active.mean() / active.std(ddof=1) * 252**0.5)


def test_a_comparison_has_the_active_return_of_a_year_and_the_p_value_of_no_edge() -> None:
    champion, base = pair()
    found = comparison(champion, base)
    assert found is not None
    active = np.diff(champion.equity) / champion.equity[:-1] - np.diff(base.equity) / base.equity[:-1]
    earned = found.active_return
    assert earned.value == pytest.approx(252 * active.mean(), rel=1e-9)
    assert earned.low < earned.value < earned.high
    error = active.std(ddof=1) / np.sqrt(len(active))
    assert earned.high - earned.low == pytest.approx(2 * 1.645 * 252 * error, rel=0.2)
    # Independent draws: the p-value is about the larger one of a plain t test and of a regression's intercept.
    plain = stats.ttest_1samp(active, 0.0, alternative="greater").pvalue
    fit = stats.linregress(np.diff(base.equity) / base.equity[:-1], active)
    intercept = stats.t.sf(fit.intercept / fit.intercept_stderr, len(active) - 2)
    assert found.p_value == pytest.approx(max(plain, intercept), abs=0.03)
    assert (found.of, found.base) == ("champion", "equal_weight")


def test_too_few_bars_give_no_comparison() -> None:
    champion, base = pair(20)
    assert added_value(champion, base, seed=3) is None
    assert comparison(champion, base) is None


def test_equal_accounts_give_no_comparison() -> None:
    champion, _ = pair()
    assert comparison(champion, replace(champion, name="equal_weight")) is None


def test_usage_is_that_of_the_held_weights() -> None:
    champion, base = pair()
    held = np.array([[0.0, 0.0, 0.0], [0.6, 0.2, 0.2], [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]])
    even = np.vstack([np.zeros(3), np.full((3, 3), 1 / 3)])
    desired = np.array([[0.2, -0.1, -0.1], [0.2, 0.0, -0.2], [-0.1, 0.1, 0.0], [np.nan] * 3])
    cut = {"times": champion.times[:4], "turnover": np.zeros(4), "costs": np.zeros(4), "symbols": ("A", "B", "C")}
    own = replace(champion, equity=champion.equity[:4], weights=held, **cut)
    reference = replace(base, equity=base.equity[:4], weights=even, **cut)
    found = usage(MandatePeriod(own, reference, DesiredTilts(desired, 0.2)))
    number = 1 / (held[1:] ** 2).sum(1)
    assert found.effective_holdings == pytest.approx(number.mean())
    assert found.effective_holdings_low == pytest.approx(np.quantile(number, 0.05))
    assert found.active_share == pytest.approx((np.abs(held - even)[1:].sum(1) / 2).mean())
    assert found.mean_absolute_tilt == pytest.approx(np.abs(np.log(3 * held[1:])).mean())
    # Wanted weights of a bar are compared with the holdings after its fills, at the next bar.
    expected = np.mean([np.corrcoef(desired[t], held[t + 1])[0, 1] for t in range(3)])
    assert found.transfer_coefficient == pytest.approx(expected)
    assert found.turnover_at_tilt_zero == base.metrics["turnover"]


def period(share: float, asked: float, allowed: float, spread: float = 0.01) -> MandatePeriod:
    """A champion with a mean active share, of an agent that asks for another. spread: tracking error per bar."""
    champion, base = pair(600)
    tilt = np.array([share, -share, 0.0])
    held = np.full((600, 3), 1 / 3)
    noise = np.random.default_rng(0).normal(1e-4, spread, 600)
    equity = base.equity * np.cumprod(1 + noise)
    own = replace(champion, equity=equity, weights=held + tilt, symbols=("A", "B", "C"))
    desired = np.tile([asked, np.nan, -asked], (600, 1))
    desired[::7] = np.nan
    return MandatePeriod(own, replace(base, weights=held, symbols=("A", "B", "C")), DesiredTilts(desired, allowed))


@pytest.mark.parametrize(
    ("given", "flag", "cause"),
    [
        ((0.02, 0.03, 0.23), True, "small_weights"),
        ((0.02, 0.15, 0.23), True, "slow_trading"),
        ((0.02, 0.03, 0.03, 1e-4), True, "tilt_bound"),  # all of a narrow mandate, at a tiny tracking error
        ((0.10, 0.15, 0.23, 1e-4), True, "tilt_bound"),
        ((0.10, 0.15, 0.23), False, "tilt_bound"),
    ],
)
def test_a_champion_that_is_practically_its_base(given: tuple[float, ...], flag: bool, cause: str) -> None:
    tested = period(*given)
    found = practically_base(tested)
    assert (found.flag, found.cause) == (flag, cause)
    assert found.active_share == pytest.approx(given[0])
    assert found.desired_share == pytest.approx(given[1])
    assert found.allowed == given[2]
    own, base = tested.champion, tested.tilt_zero
    active = np.diff(own.equity) / own.equity[:-1] - np.diff(base.equity) / base.equity[:-1]
    assert found.tracking_error == pytest.approx(active.std(ddof=1) * 252**0.5)
    years = own.times.astype("datetime64[Y]").astype(int) + 1970
    first = years == years[0]
    difference = [x.equity[first][-1] / x.equity[0] - 1 for x in (own, base)]
    listed = {row.year: row.dollars for row in (found.best_year, found.worst_year)}
    assert found.best_year.dollars >= found.worst_year.dollars
    if str(years[0]) in listed:
        assert listed[str(years[0])] == pytest.approx(100_000 * (difference[0] - difference[1]))
    assert found.base_return == base.metrics["annual_return"]
