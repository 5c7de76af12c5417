"""What a feature says about later returns: information coefficients, returns by quantile, turnover.

The measures of alphalens (Quantopian; Grinold and Kahn 2000, chapter 10 for the information coefficient), on the fills
that a decision gets: the return over h bars of a decision at bar t is from its fill to the fill of a decision at t + h.
Overlapping returns make neighbouring coefficients dependent, so intervals come from the low frequencies of their series
(`intervals.overlapping_mean_interval`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from finrl_pod.errors import DataError, InputError
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
    return of each quantile of the feature less that of all assets, basis points a bar, the lowest first. spread: of the
    highest less the lowest quantile, with interval.
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
    known = market.tradable[span].cpu().numpy() & np.isfinite(values[span])
    own = np.where(known, values[span], np.nan)
    if not ranks_assets(own):
        raise DataError(f"feature {name} has the same value for all assets at every bar: it cannot rank them")
    places = _quantile_of(own, quantiles)
    top = places == quantiles - 1
    fill, fillable = market.fill[span].double().cpu().numpy(), market.fillable[span].cpu().numpy()
    figures = []
    for horizon in horizons:
        returns = np.full_like(own, np.nan)
        both = fillable[:-horizon] & fillable[horizon:]
        np.copyto(returns[:-horizon], fill[horizon:] / fill[:-horizon] - 1, where=both)
        figures.append(_at_horizon(name, horizon, own, places, returns, quantiles))
    entered = [1 - (b & a).sum() / b.sum() for a, b in pairwise(top) if a.any() and b.any()]
    ranks = _ranks(own, known)
    return FeatureAnalysis(
        feature=name,
        coverage=float(known.sum() / max(market.tradable[span].sum().item(), 1)),
        rank_autocorrelation=_mean(_correlations(ranks[:-1], ranks[1:])),
        top_turnover=float(np.mean(entered)) if entered else float("nan"),
        horizons=tuple(figures),
    )


def ranks_assets(values: Floats) -> bool:
    """Whether a feature [T, N], NaN where unknown, differs between assets at any bar."""
    known = np.where(np.isfinite(values), values, np.nan)
    return bool((np.fmax.reduce(known, 1) > np.fmin.reduce(known, 1)).any())


def information_coefficients(feature: Floats, returns: Floats) -> Floats:
    """Spearman's rank correlation [T] of a feature [T, N] and returns [T, N] over the assets that have both.

    NaN for fewer than `MIN_ASSETS` assets, and where either is constant.
    """
    both = np.isfinite(feature) & np.isfinite(returns)
    return _correlations(_ranks(feature, both), _ranks(returns, both))


def _at_horizon(
    name: str, horizon: int, feature: Floats, places: Floats, returns: Floats, quantiles: int
) -> HorizonFigures:
    found = information_coefficients(feature, returns)
    found = found[np.isfinite(found)]
    if len(found) < MIN_BARS:
        raise DataError(
            f"feature {name} and returns over {horizon} bars are both known on {len(found)} bars, of which "
            f"{MIN_BARS} are needed; use more bars or a shorter horizon"
        )
    low, high = overlapping_mean_interval(found, horizon)
    both = np.isfinite(returns) & np.isfinite(places)
    active = returns - _row_means(returns, both)[:, None]
    each = np.stack([_row_means(active, both & (places == q)) for q in range(quantiles)], 1)  # [T, Q]
    each = each / horizon / BASIS_POINT
    spread = (each[:, -1] - each[:, 0])[np.isfinite(each[:, -1] - each[:, 0])]
    spread_low, spread_high = (
        overlapping_mean_interval(spread, horizon) if len(spread) >= MIN_BARS else (np.nan, np.nan)
    )
    return HorizonFigures(
        horizon=horizon,
        bars=len(found),
        information_coefficient=float(found.mean()),
        low=low,
        high=high,
        deviation=float(found.std(ddof=1)),
        positive=float((found > 0).mean()),
        quantiles=tuple(_mean(each[:, q]) for q in range(quantiles)),
        spread=_mean(spread),
        spread_low=float(spread_low),
        spread_high=float(spread_high),
    )


def _ranks(values: Floats, where: Bools) -> Floats:
    """Average ranks [T, N] among the assets in `where`, NaN elsewhere."""
    ranked: Floats = pd.DataFrame(np.where(where, values, np.nan)).rank(axis=1).to_numpy(dtype=np.float64)
    return ranked


def _quantile_of(values: Floats, quantiles: int) -> Floats:
    """Quantile [T, N] of each value among its bar's, from 0, NaN where unknown or at bars with fewer values."""
    ranks = pd.DataFrame(values).rank(axis=1, method="first").to_numpy(dtype=np.float64)
    count = np.isfinite(values).sum(1, keepdims=True)
    places = np.floor((ranks - 1) * quantiles / np.maximum(count, 1))
    return np.where(count >= quantiles, places, np.nan)


def _correlations(x: Floats, y: Floats) -> Floats:
    """Pearson's correlation [T] over the assets where both [T, N] are known."""
    both = np.isfinite(x) & np.isfinite(y)
    dx, dy = (np.where(both, v - _row_means(v, both)[:, None], 0.0) for v in (x, y))
    scale = np.sqrt((dx**2).sum(1) * (dy**2).sum(1))
    enough = (both.sum(1) >= MIN_ASSETS) & (scale > 0)
    return np.where(enough, (dx * dy).sum(1) / np.where(scale > 0, scale, 1.0), np.nan)


def _row_means(values: Floats, where: Bools) -> Floats:
    count = where.sum(1)
    total = np.where(where, values, 0.0).sum(1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")


def _check(market: MarketTensor, first: int, last: int, horizons: Sequence[int], quantiles: int) -> None:
    if not horizons or min(horizons) < 1 or max(horizons) > last - first - MIN_BARS:
        raise InputError(
            f"horizons must be from 1 to {last - first - MIN_BARS} bars, the period less {MIN_BARS}, got "
            f"{', '.join(map(str, horizons)) or 'none'}"
        )
    if not 2 <= quantiles <= len(market.symbols):
        raise InputError(f"quantiles must be from 2 to the {len(market.symbols)} assets, got {quantiles}")
