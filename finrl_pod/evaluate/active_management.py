"""Active management: what a portfolio adds to its base, with intervals, and how far its weights differ from the base.

The statistics of returns (difference of Sharpe ratios, information ratio, alpha, beta, tracking error) follow
Grinold and Kahn (2000). Intervals of active return and alpha invert the tests of `significance`; the others
resample the bars of both accounts together, by the stationary bootstrap.
Weights are [T, N] arrays over the same bars and assets; bars without holdings count as missing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.errors import InputError
from finrl_pod.evaluate.intervals import DRAWS, MIN_BARS, Interval, block_length, bootstrap_statistics
from finrl_pod.evaluate.metrics import BARS_PER_YEAR, RISK_EPSILON, is_constant
from finrl_pod.evaluate.significance import REGRESSION, alpha_series, mean_interval
from finrl_pod.prices import Floats

LEVEL = 0.90  # coverage of the intervals
SIGNIFICANCE = 1.645  # standard errors of a one-sided test at 5%
TAIL = 0.05  # quantile of the effective number of holdings


class ActiveStatistics(NamedTuple):
    """A portfolio against its base, annualised.

    sharpe_difference: Sharpe ratio minus the Sharpe ratio of the base. information_ratio: mean active return over
    tracking error. alpha, beta: coefficients of a regression of excess returns on the base. tracking_error: standard
    deviation of active returns. years_to_show: years of returns after which the measured information ratio differs from
    0 (one-sided 5%), None unless it is above 0.
    """

    sharpe_difference: Interval
    information_ratio: Interval
    alpha: Interval
    beta: Interval
    tracking_error: float
    years_to_show: float | None


def active_statistics(
    returns: ArrayLike,
    base: ArrayLike,
    level: float = LEVEL,
    *,
    seed: int = 0,
    draws: int = DRAWS,
    periods_per_year: float = BARS_PER_YEAR,
    risk_free: ArrayLike | None = None,
) -> ActiveStatistics:
    """Statistics of simple returns [T] relative to a base [T] over the same bars, with intervals.

    risk_free: [T], return of cash. A ratio of constant returns counts as 0, and so does the beta to a constant base.
    Raises InputError for lengths that differ, fewer than `MIN_BARS` bars, returns that are not finite, and a level
    outside (0, 1).
    """
    account, reference = _excess_pair(returns, base, risk_free)
    active = account - reference
    samples = bootstrap_statistics(
        lambda bars: _statistics(account[bars], reference[bars], periods_per_year),
        *(len(account), block_length(active), draws, np.random.default_rng(seed)),
    )
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=0)
    value = _statistics(account[None], reference[None], periods_per_year)[0]
    sharpe, information, beta = (Interval(float(value[i]), float(low[i]), float(high[i])) for i in range(3))
    alpha = annual_mean(alpha_series(active, reference).values, level, periods_per_year, REGRESSION)
    error = float(active.std(ddof=1) * np.sqrt(periods_per_year))
    return ActiveStatistics(sharpe, information, alpha, beta, error, years_to_show(information.value))


def active_return(
    returns: ArrayLike, base: ArrayLike, level: float = LEVEL, *, periods_per_year: float = BARS_PER_YEAR
) -> Interval:
    """Mean of simple returns [T] minus a base [T] per year, with the interval of `mean_interval`.

    Raises InputError as `active_statistics`.
    """
    account, reference = _excess_pair(returns, base, None)
    return annual_mean(account - reference, level, periods_per_year)


def annual_mean(series: Floats, level: float, periods_per_year: float, parameters: int = 1) -> Interval:
    """Mean of a series [T] per year with its interval; both ends equal the mean of a constant series.

    parameters: argument of `mean_z_score`.
    """
    if is_constant(series):
        return Interval(*(3 * (periods_per_year * float(series.mean()),)))
    return Interval(*(periods_per_year * value for value in mean_interval(series, level, parameters)))


def years_to_show(information_ratio: float) -> float | None:
    """(1.645 / IR)^2: years after which an annual information ratio has a t-statistic of 1.645; None unless IR > 0."""
    return (SIGNIFICANCE / information_ratio) ** 2 if information_ratio > 0 else None


# ---------------------------------------------------------------------- weights


def effective_number(weights: ArrayLike) -> Floats:
    """Effective number of holdings [T] of weights [T, N]: (sum |w|)^2 / sum w^2; NaN at bars without holdings."""
    gross = np.abs(np.asarray(weights, dtype=np.float64))
    squares = (gross**2).sum(-1)
    has_holdings = squares > 0
    number: Floats = np.where(has_holdings, gross.sum(-1) ** 2 / np.where(has_holdings, squares, 1.0), np.nan)
    return number


def active_share(weights: ArrayLike, base: ArrayLike) -> Floats:
    """Active share [T] of weights [T, N]: half the sum of absolute differences to the base (Cremers, Petajisto 2009).

    NaN at bars where either holds nothing.
    """
    account, reference = _weight_pair(weights, base)
    are_invested = (account != 0).any(-1) & (reference != 0).any(-1)
    share: Floats = np.where(are_invested, np.abs(account - reference).sum(-1) / 2, np.nan)
    return share


def mean_absolute_tilt(weights: ArrayLike, base: ArrayLike) -> float:
    """Mean of |log(w / b)| over the bars and assets where both weights [T, N] are positive; NaN if there are none."""
    account, reference = _weight_pair(weights, base)
    are_positive = (account > 0) & (reference > 0)
    ratios = account[are_positive] / reference[are_positive]
    return float(np.abs(np.log(ratios)).mean()) if len(ratios) else float("nan")


def transfer_coefficient(desired_weights: ArrayLike, held_weights: ArrayLike) -> float:
    """Mean over bars of the correlation across assets of desired and held active weights [T, N].

    1 if limits and slow trading change nothing but the size (Clarke, de Silva and Thorley 2002, with equal risks).
    Assets where either is NaN are left out, and bars where either is constant. NaN if no bar is left.
    """
    x, y = _weight_pair(desired_weights, held_weights)
    is_known = np.isfinite(x) & np.isfinite(y)
    count = np.maximum(is_known.sum(-1, keepdims=True), 1)
    x, y = (np.where(is_known, values, 0.0) for values in (x, y))
    x, y = (np.where(is_known, values - values.sum(-1, keepdims=True) / count, 0.0) for values in (x, y))
    product = np.sqrt((x**2).sum(-1) * (y**2).sum(-1))
    has_variation = product > RISK_EPSILON
    correlations = (x * y).sum(-1)[has_variation] / product[has_variation]
    return float(correlations.mean()) if len(correlations) else float("nan")


# ---------------------------------------------------------------------- helpers


def _excess_pair(returns: ArrayLike, base: ArrayLike, risk_free: ArrayLike | None) -> tuple[Floats, Floats]:
    account = np.asarray(returns, dtype=np.float64)
    reference = np.asarray(base, dtype=np.float64)
    cash = np.zeros_like(account) if risk_free is None else np.asarray(risk_free, dtype=np.float64)
    if account.ndim != 1 or account.shape != reference.shape or account.shape != cash.shape:
        raise InputError(
            "returns, base and cash must be series over the same bars, got shapes "
            f"{account.shape}, {reference.shape} and {cash.shape}"
        )
    if len(account) < MIN_BARS:
        raise InputError(f"a comparison with a base needs at least {MIN_BARS} returns, got {len(account)}")
    if not np.isfinite(account).all() or not np.isfinite(reference).all():
        raise InputError("a comparison with a base needs finite returns")
    return account - cash, reference - cash


def _statistics(returns: Floats, base: Floats, periods: float) -> Floats:
    """Difference of Sharpe ratios, information ratio and beta [D, 3] of D histories [D, T]."""
    bars = returns.shape[1]
    mean = returns.mean(1)
    base_mean = base.mean(1)
    deviations = base - base_mean[:, None]
    base_variance = (deviations**2).sum(1) / (bars - 1)
    covariance = ((returns - mean[:, None]) * deviations).sum(1) / (bars - 1)
    beta = _ratio(covariance, base_variance, RISK_EPSILON**2)
    sharpe = _ratio(mean, returns.std(1, ddof=1)) - _ratio(base_mean, np.sqrt(base_variance))
    information = _ratio(mean - base_mean, (returns - base).std(1, ddof=1))
    return np.stack([sharpe * np.sqrt(periods), information * np.sqrt(periods), beta], 1)


def _ratio(gain: Floats, risk: Floats, smallest: float = RISK_EPSILON) -> Floats:
    """gain / risk; 0 where the risk is rounding error."""
    is_known = risk > smallest
    ratio: Floats = np.where(is_known, gain / np.where(is_known, risk, 1.0), 0.0)
    return ratio


def _weight_pair(weights: ArrayLike, base: ArrayLike) -> tuple[Floats, Floats]:
    first = np.asarray(weights, dtype=np.float64)
    second = np.asarray(base, dtype=np.float64)
    if first.ndim != 2 or first.shape != second.shape:
        raise InputError(f"weights must be [T, N] over the same bars and assets, got {first.shape} and {second.shape}")
    return first, second
