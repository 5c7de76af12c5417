"""Test of a mean return that allows for autocorrelation, changing volatility and skewness."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.evaluate.metrics import check_returns

MIN_RETURNS = 20
MAX_AUTOCORRELATION = 0.97  # of the bandwidth's first-order approximation, which has no bandwidth at 1
MAX_Z_SCORE = 8.0  # p-values beyond it are below the precision of a double


def long_run_variance(series: ArrayLike) -> float:
    """Variance of sqrt(T) times the mean of a series [T]: Bartlett kernel, bandwidth of Andrews (1991).

        g(0) + 2 sum over l <= b of (1 - l / (b + 1)) g(l),    b = 1.1447 (4 r^2 T / (1 - r^2)^2)^(1/3)

    g are autocovariances, r the first autocorrelation. Without autocorrelation b is near 0 and the result near the
    sample variance. Raises InputError for fewer than 20 values, values that are not finite, and a constant series.
    """
    values = check_returns(series, MIN_RETURNS, "a test of a mean return")
    centred = values - values.mean()
    bars = len(centred)
    variance = float(centred @ centred) / bars
    first = float(np.clip(centred[1:] @ centred[:-1] / bars / variance, -MAX_AUTOCORRELATION, MAX_AUTOCORRELATION))
    bandwidth = min(int(1.1447 * (4 * first**2 * bars / (1 - first**2) ** 2) ** (1 / 3)), bars - 1)
    for lag in range(1, bandwidth + 1):
        variance += 2 * (1 - lag / (bandwidth + 1)) * float(centred[lag:] @ centred[:-lag]) / bars
    return variance


def mean_z_score(series: ArrayLike) -> float:
    """Test statistic of the null hypothesis that the mean of a series [T] is 0, as a standard normal variable.

    The studentised mean t = sqrt(T - 1) mean / sqrt(long-run variance), corrected for the skewness g of the series by
    the monotone transformation of Hall (1992), t + a t^2 / 3 + a^2 t^3 / 27 + a / 6 with a = g / sqrt(T), has Student's
    t distribution with T - 1 degrees of freedom. Returned is the standard normal quantile of the same probability,
    within -8 and 8. Errors of `long_run_variance`.
    """
    from scipy.stats import norm, t

    values = np.asarray(series, dtype=np.float64)
    studentised = math.sqrt(len(values) - 1) * float(values.mean()) / math.sqrt(long_run_variance(values))
    a = float(((values - values.mean()) ** 3).mean() / values.std() ** 3) / math.sqrt(len(values))
    statistic = studentised + a * studentised**2 / 3 + a**2 * studentised**3 / 27 + a / 6
    score = float(norm.isf(t.sf(abs(statistic), len(values) - 1)))
    return math.copysign(min(score, MAX_Z_SCORE), statistic)


def mean_p_value(series: ArrayLike) -> float:
    """One-sided p-value of the null hypothesis that the mean of a series [T] is not positive, of `mean_z_score`."""
    return upper_tail(mean_z_score(series))


def upper_tail(z_score: float) -> float:
    """Probability that a standard normal variable exceeds a z-score."""
    return 0.5 * math.erfc(z_score / math.sqrt(2))


def smallest_significant_ratio(bars: int, bars_per_year: float, level: float) -> float:
    """Annual information ratio (mean over standard deviation of active returns) from which a period is significant.

    That of `bars` active returns without autocorrelation or skewness at which `mean_z_score` has the one-sided p-value
    `level`: t sqrt(bars_per_year / (bars - 1)) with the quantile t of Student's distribution with bars - 1 degrees of
    freedom. An edge of this size is shown half of the time.
    """
    from scipy.stats import t

    return float(t.isf(level, bars - 1)) * math.sqrt(bars_per_year / (bars - 1))
