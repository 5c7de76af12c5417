"""Cases of an edge on returns that are known exactly, degenerate series, and `judge_returns`."""

from __future__ import annotations

import numpy as np
import pytest

import finrl_pod as fp
from finrl_pod.errors import InputError
from finrl_pod.evaluate.significance import REGRESSION, alpha_series, mean_z_score, upper_tail
from finrl_pod.promotion.edge import judge_returns, measure_edge
from finrl_pod.promotion.verdict import Edge, Estimate
from finrl_pod.types import Floats

DAYS = 252
CASH = 0.02 / DAYS


def exact_returns(
    market: float, beta: float, alpha: float, risk: float, bars: int, seed: int = 7
) -> tuple[Floats, Floats]:
    """Returns of an account and its base whose sample has exactly these annual figures in excess of cash."""
    rng = np.random.default_rng(seed)

    def unit(values: Floats) -> Floats:
        return np.asarray((values - values.mean()) / values.std())

    shocks = unit(rng.normal(size=bars))
    noise = rng.normal(size=bars)
    noise = unit(noise - (noise @ shocks) / (shocks @ shocks) * shocks)
    base = market / DAYS + 0.16 / DAYS**0.5 * shocks
    return CASH + alpha / DAYS + beta * base + risk / DAYS**0.5 * noise, CASH + base


@pytest.mark.parametrize(
    ("series", "case"),
    [
        ((0.24, 1.10, 0.0, 0.02, 3024), "nothing_shown"),  # market risk
        ((0.08, 0.90, 0.008, 0.01, 3024), "nothing_shown"),  # a low beta where all assets have equal means
        ((0.08, 1.0, 0.03, 0.02, 3024), "shown"),
        ((0.08, 1.0, 0.002, 0.001, 3024), "too_small"),
        ((0.08, 1.0, -0.03, 0.02, 3024), "worse"),
        ((0.08, 1.0, 0.005, 0.02, 1008), "too_little_data"),
        ((0.08, 1.0, 0.08, 0.02, 1008), "shown"),  # a short test may show a large edge
        ((0.08, 1.0, -0.08, 0.02, 1008), "worse"),
        ((-0.08, 1.04, 0.0, 0.01, 3024), "nothing_shown"),
        ((-0.08, 0.90, 0.0, 0.01, 3024), "nothing_shown"),
    ],
)
def test_cases_of_known_returns(series: tuple[float, float, float, float, int], case: str) -> None:
    market, beta, alpha, _, _ = series
    edge = judge_returns(*exact_returns(*series), CASH)
    assert edge.case == case
    assert edge.beta == pytest.approx(beta)
    assert edge.alpha.value == pytest.approx(alpha, abs=1e-12)
    assert edge.active_return.value == pytest.approx(alpha + (beta - 1) * market, abs=1e-12)
    assert edge.p_value == max(edge.p_active, edge.p_alpha)


def test_interval_and_p_value_agree() -> None:
    """The end of the 90% interval of the active return lies at 0 where its p-value is 5%."""
    account, base = exact_returns(0.08, 1.0, 0.0, 0.02, 1500)
    for alpha in np.linspace(0.001, 0.02, 30):
        edge = judge_returns(account + alpha / DAYS, base, CASH)
        assert (edge.active_return.low > 0) == (edge.p_active < 0.05)
        assert (edge.alpha.low > 0) == (edge.p_alpha < 0.05)


def test_a_lower_sharpe_ratio_is_no_edge() -> None:
    """Both tests pass on returns that are correlated with earlier ones of the base, at a volatility that costs more."""
    account, base = exact_returns(0.30, 1.0, 0.03, 0.16, 252 * 40)
    edge = judge_returns(account, base, CASH)
    assert edge.p_value < 0.2
    forced = measure_edge(account, base, np.full(len(base), CASH), level=0.5, minimum=0.0)
    assert forced.account.sharpe < forced.base.sharpe
    assert forced.p_value <= 0.5
    assert forced.case == "nothing_shown"


def test_fields_are_those_of_plain_formulas() -> None:
    account, base = exact_returns(0.08, 1.1, 0.01, 0.03, 1000)
    edge = judge_returns(account, base, CASH)
    active = account - base
    assert edge.tracking_error == pytest.approx(active.std(ddof=1) * DAYS**0.5)
    assert edge.information_ratio == pytest.approx(active.mean() / active.std(ddof=1) * DAYS**0.5)
    assert edge.p_active == pytest.approx(upper_tail(mean_z_score(active)))
    hedged = alpha_series(active, base - CASH).values
    assert edge.p_alpha == pytest.approx(upper_tail(mean_z_score(hedged, REGRESSION)))
    growth = np.cumprod(np.r_[1, 1 + account])
    assert edge.account.drawdown == pytest.approx((growth / np.maximum.accumulate(growth) - 1).min())
    assert edge.account.sharpe == pytest.approx((account - CASH).mean() / (account - CASH).std(ddof=1) * DAYS**0.5)
    assert edge.account.volatility == pytest.approx(account.std(ddof=1) * DAYS**0.5)
    assert edge.years == pytest.approx(1000 / DAYS)
    assert edge.tests.alpha.p_value == edge.p_alpha


@pytest.mark.parametrize("cash", [0.0, 0.05 / DAYS])
def test_accounts_that_hold_their_base_or_cash(cash: float) -> None:
    _, base = exact_returns(0.08, 1.0, 0.0, 0.02, 1500)
    same = judge_returns(base, base, cash)
    assert (same.case, same.beta, same.information_ratio) == ("too_little_data", 1.0, 0.0)
    assert same.active_return == Estimate(value=0.0, low=0.0, high=0.0)
    assert same.p_value == pytest.approx(1.0)
    in_cash = judge_returns(np.full(len(base), cash), base, cash)
    assert in_cash.beta == pytest.approx(0.0)
    assert in_cash.p_alpha == pytest.approx(1.0, abs=1e-4)
    over_cash = judge_returns(base, np.full(len(base), cash), cash)  # a base that does not vary
    assert over_cash.beta == 1.0
    assert over_cash.alpha.value == pytest.approx(over_cash.active_return.value, rel=0.01)


def test_a_ruined_account_is_worse() -> None:
    base = np.random.default_rng(0).normal(4e-4, 0.01, 500)
    account = np.where(np.arange(500) == 100, -1.2, 0.0)
    edge = judge_returns(account, base, 0.0)
    assert edge.case in ("worse", "too_little_data")
    assert edge.account.drawdown <= -1


def test_judge_returns_is_public_and_refuses_bad_series() -> None:
    account, base = exact_returns(0.08, 1.0, 0.03, 0.02, 300)
    assert isinstance(fp.judge_returns(account.tolist(), base.tolist(), CASH), Edge)
    for values, message in (
        ((account[:-1], base, 0.0), "same days"),
        ((account, base, np.zeros(5)), "same days"),
        ((account[:19], base[:19], 0.0), "at least 20"),
        ((np.where(np.arange(300) == 7, np.nan, account), base, 0.0), "agent must have finite returns, day 7"),
        ((base + 0.001, base, 0.0), "returns that vary"),
    ):
        with pytest.raises(InputError, match=message):
            judge_returns(*values)


@pytest.mark.slow
@pytest.mark.parametrize("bars", [60, 250, 1000])
def test_size_of_the_alpha_test(bars: int) -> None:
    """About 2.5% of accounts with beta 1.3 and no alpha pass, also in short tests where the base earned much."""
    rng = np.random.default_rng(bars)
    base = rng.normal(0.3 / DAYS, 0.16 / DAYS**0.5, (1500, bars))
    active = 0.3 * base + rng.standard_t(5, base.shape) * 0.001
    scores = [
        mean_z_score(alpha_series(own, returns).values, REGRESSION) for own, returns in zip(active, base, strict=True)
    ]
    assert 0.014 <= (np.array(scores) > 1.96).mean() <= 0.037
