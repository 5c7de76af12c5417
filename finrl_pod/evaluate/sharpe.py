"""How far a Sharpe ratio can be believed: PSR, DSR and the track record that a claim needs.

All Sharpe ratios here are those of one period (a day, a month), never annualised, and kurtosis is that of the fourth
moment (3 for a normal variable), not the excess. The variance of a Sharpe ratio is taken at the ratio itself, as in
the first papers (Mertens 2002; Bailey and Lopez de Prado 2012), not at the ratio of the null hypothesis, as in some
later ones.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from finrl_pod.errors import InputError
from finrl_pod.types import Floats

FEWEST = 20  # observations: below it neither skewness nor kurtosis mean anything
EULER = 0.5772156649015329
NO_RISK = 1e-12  # deviations below it are rounding
_NORMAL = NormalDist()


class Moments(NamedTuple):
    """Of the returns of one period: Sharpe ratio (mean over deviation, n - 1), skewness, kurtosis, how many."""

    sharpe: float
    skewness: float = 0.0
    kurtosis: float = 3.0
    observations: int = FEWEST


def moments(returns: ArrayLike) -> Moments:
    """Moments of returns [T], skewness and kurtosis without small-sample correction.

    Raises InputError for fewer than `FEWEST` of them, NaN, and returns that never differ.
    """
    values = series(returns)
    centred = values - values.mean()
    deviation = float(values.std())
    skewness, kurtosis = (float((centred**k).mean() / deviation**k) for k in (3, 4))
    return Moments(float(values.mean() / values.std(ddof=1)), skewness, kurtosis, len(values))


def sharpe_deviation(of: Moments) -> float:
    """Standard deviation of the estimated ratio: sqrt((1 - g3 SR + (g4 - 1)/4 SR^2) / (T - 1)) (Mertens 2002)."""
    if of.observations < 2:
        raise InputError(f"the deviation of a Sharpe ratio needs 2 observations at least, got {of.observations}")
    return math.sqrt(_spread(of) / (of.observations - 1))


def probabilistic_sharpe(of: Moments, benchmark: float = 0.0) -> float:
    """PSR: probability that the true ratio is above `benchmark` (one period; Bailey and Lopez de Prado 2012)."""
    return _NORMAL.cdf((of.sharpe - benchmark) / sharpe_deviation(of))


def expected_maximum(trials: float) -> float:
    """Expected largest of `trials` independent standard normal variables; 0 for a single one.

    (1 - g) Z(1 - 1/N) + g Z(1 - 1/(N e)), g the Euler-Mascheroni constant (Bailey and Lopez de Prado 2014). Raises
    InputError below one trial.
    """
    if not trials >= 1:
        raise InputError(f"a number of trials is 1 at least, got {trials}")
    if trials == 1:
        return 0.0
    return (1 - EULER) * _NORMAL.inv_cdf(1 - 1 / trials) + EULER * _NORMAL.inv_cdf(1 - 1 / (trials * math.e))


def deflated_sharpe(of: Moments, variance: float, trials: float) -> float:
    """DSR: the PSR against the ratio that the best of `trials` trials without skill is expected to show.

    variance: of the trials' one-period Sharpe ratios. Raises InputError for a variance below zero or not finite.
    """
    if not 0 <= variance < math.inf:
        raise InputError(f"the variance of the trials' Sharpe ratios is a number of at least 0, got {variance}")
    return probabilistic_sharpe(of, math.sqrt(variance) * expected_maximum(trials))


def minimum_track_record(of: Moments, benchmark: float = 0.0, confidence: float = 0.95) -> float:
    """MinTRL: observations after which PSR(benchmark) reaches `confidence`, were the moments to stay as they are.

    1 + (1 - g3 SR + (g4 - 1)/4 SR^2) (Z(confidence) / (SR - benchmark))^2; infinite for a ratio that is not above the
    benchmark. Raises InputError for a confidence outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise InputError(f"a confidence lies between 0 and 1, got {confidence}")
    if of.sharpe <= benchmark:
        return math.inf
    return 1 + _spread(of) * (_NORMAL.inv_cdf(confidence) / (of.sharpe - benchmark)) ** 2


def series(returns: ArrayLike, fewest: int = FEWEST, what: str = "a Sharpe ratio's test") -> Floats:
    """One series [T] as float64. Raises InputError: wrong shape, too few, not finite, constant."""
    values = np.asarray(returns, dtype=np.float64)
    if values.ndim != 1:
        raise InputError(f"{what} needs one series of returns, got an array of shape {values.shape}")
    if len(values) < fewest:
        raise InputError(f"{what} needs {fewest} returns at least, got {len(values)}: take a longer period")
    if not np.isfinite(values).all():
        bar = int(np.argmin(np.isfinite(values)))
        raise InputError(f"{what} needs finite returns, that of bar {bar} is {values[bar]}")
    if is_constant(values):
        raise InputError(f"{what} needs returns that differ, all {len(values)} are {values[0]:g}")
    return values


def is_constant(values: Floats) -> bool:
    """Whether a series [T] moves by no more than rounding."""
    return bool(values.std() <= NO_RISK)


def _spread(of: Moments) -> float:
    """1 - g3 SR + (g4 - 1)/4 SR^2. Raises InputError for moments that no distribution has."""
    value = 1 - of.skewness * of.sharpe + (of.kurtosis - 1) / 4 * of.sharpe**2
    if not (math.isfinite(value) and value >= 0):
        raise InputError(
            f"no returns have a skewness of {of.skewness:g} with a kurtosis of {of.kurtosis:g} (3 is normal): "
            "is it the excess kurtosis?"
        )
    return value
