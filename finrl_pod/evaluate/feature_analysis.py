"""What a feature says about later returns: information coefficients, returns by quantile, turnover.

The measures of alphalens, on the fills that a decision gets: the return over h bars of a decision at bar t is from its
fill to the fill of a decision at t + h. Intervals allow for the overlap of returns (`overlapping_mean_interval`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from finrl_pod.errors import DataError, InputError
from finrl_pod.evaluate.active_management import known_mean, row_correlations
from finrl_pod.evaluate.intervals import MIN_BARS, overlapping_mean_interval
from finrl_pod.types import Bools, Floats, MarketTensor

HORIZONS = (1, 5, 21, 63)
QUANTILES = 5
MIN_ASSETS = 3  # at a bar, for a rank correlation
BASIS_POINT = 1e-4


@dataclass(frozen=True)
class HorizonFigures:
    """A feature and returns over `horizon` bars.

    bars: with a coefficient. information_coefficient: mean rank correlation over bars, low and high its 90% interval.
    deviation: its standard deviation over bars, n - 1. positive: share of bars on which it is above 0. quantiles: mean
    return of each quantile of the feature minus the mean of all assets, basis points per bar, the lowest first. spread:
    highest minus lowest quantile, with interval.
    """

    horizon: int
    bars: int
    information_coefficient: float
    low: float
    high: float
    deviation: float
    positive: float
    quantiles: tuple[float, ...]
    spread: float
    spread_low: float
    spread_high: float

    @property
    def risk_adjusted(self) -> float:
        """Mean coefficient over its standard deviation."""
        return self.information_coefficient / self.deviation if self.deviation > 0 else float("nan")


@dataclass(frozen=True)
class FeatureAnalysis:
    """Figures of one feature. coverage: share of tradable (bar, asset) pairs on which it is defined.

    rank_autocorrelation: mean correlation of its ranks from one bar to the next. top_turnover: mean share of the
    highest quantile's assets that were not in it the bar before.
    """

    feature: str
    coverage: float
    rank_autocorrelation: float
    top_turnover: float
    horizons: tuple[HorizonFigures, ...]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        document = asdict(self)
        document["horizons"] = [{**asdict(x), "risk_adjusted": x.risk_adjusted} for x in self.horizons]
        return document


def analyse_feature(
    name: str,
    values: Floats,
    market: MarketTensor,
    first: int,
    last: int,
    horizons: Sequence[int] = HORIZONS,
    quantiles: int = QUANTILES,
) -> FeatureAnalysis:
    """Analyse a feature [T, N] (NaN where undefined) on the decision bars first..last; no return ends after the fill of
    bar `last`.

    Raises InputError for horizons and numbers of quantiles that do not fit, DataError where it is defined on too few
    bars, or has the same value for all assets.
    """
    _check(market, first, last, horizons, quantiles)
    span = slice(first, last + 1)
    is_known = market.tradable[span].cpu().numpy() & np.isfinite(values[span])
    ranked_values = np.where(is_known, values[span], np.nan)
    if not ranks_assets(ranked_values):
        raise DataError(f"feature {name} has the same value for all assets at every bar: it cannot rank them")
    quantile_numbers = _quantile_of(ranked_values, quantiles)
    top = quantile_numbers == quantiles - 1
    fill = market.fill[span].double().cpu().numpy()
    fillable = market.fillable[span].cpu().numpy()
    figures = []
    for horizon in horizons:
        returns = np.full_like(ranked_values, np.nan)
        is_filled = fillable[:-horizon] & fillable[horizon:]
        np.copyto(returns[:-horizon], fill[horizon:] / fill[:-horizon] - 1, where=is_filled)
        figures.append(_at_horizon(name, horizon, ranked_values, quantile_numbers, returns, quantiles))
    entry_shares = [1 - (b & a).sum() / b.sum() for a, b in pairwise(top) if a.any() and b.any()]
    ranks = _ranks(ranked_values, is_known)
    return FeatureAnalysis(
        feature=name,
        coverage=float(is_known.sum() / max(market.tradable[span].sum().item(), 1)),
        rank_autocorrelation=known_mean(row_correlations(ranks[:-1], ranks[1:], MIN_ASSETS)),
        top_turnover=float(np.mean(entry_shares)) if entry_shares else float("nan"),
        horizons=tuple(figures),
    )


def ranks_assets(values: Floats) -> bool:
    """Whether a feature [T, N], NaN where unknown, differs between assets at any bar."""
    known_values = np.where(np.isfinite(values), values, np.nan)
    return bool((np.fmax.reduce(known_values, 1) > np.fmin.reduce(known_values, 1)).any())


def information_coefficients(feature: Floats, returns: Floats) -> Floats:
    """Spearman's rank correlation [T] of a feature [T, N] and returns [T, N] over the assets that have both.

    NaN for fewer than `MIN_ASSETS` assets, and where either is constant.
    """
    are_known = np.isfinite(feature) & np.isfinite(returns)
    return row_correlations(_ranks(feature, are_known), _ranks(returns, are_known), MIN_ASSETS)


def _at_horizon(
    name: str, horizon: int, feature: Floats, quantile_numbers: Floats, returns: Floats, quantiles: int
) -> HorizonFigures:
    coefficients = information_coefficients(feature, returns)
    coefficients = coefficients[np.isfinite(coefficients)]
    if len(coefficients) < MIN_BARS:
        raise DataError(
            f"feature {name} and returns over {horizon} bars are both known on {len(coefficients)} bars, fewer "
            f"than {MIN_BARS}; use more bars or a shorter horizon"
        )
    low, high = overlapping_mean_interval(coefficients, horizon)
    are_known = np.isfinite(returns) & np.isfinite(quantile_numbers)
    active = returns - _row_means(returns, are_known)[:, None]
    row_means = [_row_means(active, are_known & (quantile_numbers == q)) for q in range(quantiles)]  # [Q] of [T]
    quantile_returns = [means / horizon / BASIS_POINT for means in row_means]
    spread = quantile_returns[-1] - quantile_returns[0]
    spread = spread[np.isfinite(spread)]
    interval = overlapping_mean_interval(spread, horizon) if len(spread) >= MIN_BARS else (np.nan, np.nan)
    return HorizonFigures(
        horizon=horizon,
        bars=len(coefficients),
        information_coefficient=float(coefficients.mean()),
        low=low,
        high=high,
        deviation=float(coefficients.std(ddof=1)),
        positive=float((coefficients > 0).mean()),
        quantiles=tuple(map(known_mean, quantile_returns)),
        spread=known_mean(spread),
        spread_low=interval[0],
        spread_high=interval[1],
    )


def _ranks(values: Floats, mask: Bools) -> Floats:
    """Average ranks [T, N] among the assets in `where`, NaN elsewhere."""
    ranks: Floats = pd.DataFrame(np.where(mask, values, np.nan)).rank(axis=1).to_numpy(dtype=np.float64)
    return ranks


def _quantile_of(values: Floats, quantiles: int) -> Floats:
    """Quantile [T, N] of each value at its bar, from 0; NaN where unknown or at bars with fewer values."""
    ranks = pd.DataFrame(values).rank(axis=1, method="first").to_numpy(dtype=np.float64)
    count = np.isfinite(values).sum(1, keepdims=True)
    quantile_numbers = np.floor((ranks - 1) * quantiles / np.maximum(count, 1))
    return np.where(count >= quantiles, quantile_numbers, np.nan)


def _row_means(values: Floats, mask: Bools) -> Floats:
    count = mask.sum(1)
    total = np.where(mask, values, 0.0).sum(1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _check(market: MarketTensor, first: int, last: int, horizons: Sequence[int], quantiles: int) -> None:
    if not horizons or min(horizons) < 1 or max(horizons) > last - first - MIN_BARS:
        raise InputError(
            f"horizons must be from 1 to {last - first - MIN_BARS} bars, the period less {MIN_BARS}, got "
            f"{', '.join(map(str, horizons)) or 'none'}"
        )
    if len(market.symbols) < 2:
        raise InputError(f"a feature ranks assets: at least 2 are needed, the prices have {len(market.symbols)}")
    if not 2 <= quantiles <= len(market.symbols):
        raise InputError(f"quantiles must be from 2 to the {len(market.symbols)} assets, got {quantiles}")
