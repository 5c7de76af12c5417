"""Portfolio optimisation baselines: refitted monthly on trailing simple returns, long-only, fully invested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from finrl_pod.errors import InputError
from finrl_pod.types import Floats, Positions, Window
from finrl_pod_strategies.rule_based import is_rebalance_bar

MIN_PRICED = 0.9  # share of the bars of the window; an asset with fewer prices is skipped
NO_VARIANCE = 1e-12  # constant returns make a covariance matrix singular

Weights = Callable[[Floats, Floats], Floats]  # of mean returns [K] and their covariance [K, K], the weights [K]


@dataclass(frozen=True)
class Optimised:
    """Weights from moments of the returns of the trailing `bars` bars, fitted at the first bar of each month.

    Assets need a price at the decision, at the first bar of the window, and on nine tenths of the bars between; gaps
    are filled forward. With as many assets as returns, the singular sample covariance is shrunk as in Ledoit and Wolf
    (2004). The account stays in cash until the window is full, and with needs_gain while no asset has a positive mean
    return. Raises InputError with the date if a fit fails.
    """

    name: str
    model: Weights
    bars: int
    needs_gain: bool = False
    feature_names: tuple[str, ...] = ()

    @property
    def lookback(self) -> int:
        """Bars of the window: one more price than returns."""
        return self.bars + 1

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        if len(window.close) <= self.bars or not is_rebalance_bar(window, positions):
            return None
        returns, assets_fitted = trailing_returns(window, self.bars)
        weights = np.zeros(len(window.symbols))
        if self.needs_gain and not (returns.mean(0) > 0).any():
            return weights
        if len(assets_fitted) == 1:
            weights[assets_fitted] = 1.0
        elif len(assets_fitted):
            weights[assets_fitted] = self._fit(returns, str(window.times[-1].astype("datetime64[D]")))
        return weights

    def _fit(self, returns: Floats, date: str) -> Floats:
        covariance = np.cov(returns.T) if len(returns) > returns.shape[1] else shrunk_covariance(returns)
        try:
            fit = self.model(returns.mean(0), covariance)
        except (ArithmeticError, RuntimeError, ValueError, np.linalg.LinAlgError) as error:
            raise InputError(f"{self.name} could not be fitted at {date}: {error}") from error
        return np.asarray(fit / fit.sum(), dtype=np.float64)


def trailing_returns(window: Window, bars: int) -> tuple[Floats, np.ndarray]:
    """Simple returns [bars, K] of the K assets with enough prices, and their indices [K] among the symbols."""
    close = window.close[-bars - 1 :]
    has_price = np.isfinite(close)
    enough = has_price[0] & has_price[-1] & window.tradable[-1] & (has_price.mean(0) >= MIN_PRICED)
    last_priced = np.maximum.accumulate(np.where(has_price, np.arange(len(close))[:, None], 0), axis=0)
    forward_filled = np.take_along_axis(close, last_priced, 0)[:, enough]
    returns = forward_filled[1:] / forward_filled[:-1] - 1.0
    moving = returns.std(0) > NO_VARIANCE
    return returns[:, moving], np.flatnonzero(enough)[moving]


def shrunk_covariance(returns: Floats) -> Floats:
    """Covariance [K, K] of returns [T, K], shrunk to a multiple of the identity (Ledoit and Wolf 2004, eq. 14)."""
    count, assets = returns.shape
    deviations = returns - returns.mean(0)
    sample = deviations.T @ deviations / count
    mean_variance = np.trace(sample) / assets
    spread = np.square(sample).sum() - assets * mean_variance**2
    noise = (np.square(np.square(deviations).sum(1)).sum() / count - np.square(sample).sum()) / count
    shrinkage = min(noise / spread, 1.0) if spread > 0 else 1.0
    shrunk: Floats = (1 - shrinkage) * sample + shrinkage * mean_variance * np.eye(assets)
    return shrunk


def _inverse_volatility(mean: Floats, covariance: Floats) -> Floats:  # noqa: ARG001
    return np.asarray(1 / np.sqrt(np.diag(covariance)), dtype=np.float64)


def _least_variance(covariance: Floats, gain: Floats) -> Floats:
    """Direction of the least variance w'Cw among w >= 0 with gain'w = 1.

    It is the direction of the non-negative least squares solution of |Lw|^2 + (gain'w - 1)^2 with C = L'L: along a
    direction of variance v at gain 1, that sum has its minimum v / (1 + v), increasing with v.
    """
    from scipy.optimize import nnls

    scale = np.sqrt(np.diag(covariance))  # variances of 1 and a gain of 1 on average condition the problem well
    values, vectors = np.linalg.eigh(covariance / np.outer(scale, scale))
    root = (vectors * np.sqrt(np.clip(values, 0.0, None))).T  # two assets may be equal: no Cholesky factor
    row = gain / scale
    solution, _ = nnls(np.vstack([root, row / np.abs(row).mean()]), np.append(np.zeros(len(gain)), 1.0))
    return np.asarray(solution / scale, dtype=np.float64)


def _hierarchical_risk_parity(mean: Floats, covariance: Floats) -> Floats:
    """Recursive bisection of the assets in the order of the leaves of the dendrogram, by inverse variances."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    variance = np.diag(covariance)
    correlation = np.clip(covariance / np.sqrt(np.outer(variance, variance)), -1.0, 1.0)
    distance = np.sqrt(0.5 * (1 - correlation))
    np.fill_diagonal(distance, 0.0)
    weights = np.ones(len(mean))
    clusters = [leaves_list(linkage(squareform(distance, checks=False), "ward", optimal_ordering=True))]
    while clusters:
        whole = clusters.pop()
        if len(whole) < 2:
            continue
        halves = whole[: len(whole) // 2], whole[len(whole) // 2 :]
        left, right = (_inverse_variance_risk(covariance[np.ix_(half, half)]) for half in halves)
        weights[halves[0]] *= right / (left + right)
        weights[halves[1]] *= left / (left + right)
        clusters.extend(halves)
    return weights


def _inverse_variance_risk(covariance: Floats) -> float:
    """Variance of the portfolio whose weights are proportional to inverse variances."""
    weights = 1 / np.diag(covariance)
    weights /= weights.sum()
    return float(weights @ covariance @ weights)


OPTIMISED: tuple[Optimised, ...] = (
    Optimised("inverse_volatility", _inverse_volatility, bars=252),
    # Markowitz (1952).
    Optimised("minimum_variance", lambda mean, covariance: _least_variance(covariance, np.ones(len(mean))), bars=252),
    # The maximum Sharpe ratio over cash at zero; cash while no asset has a positive mean return.
    Optimised("mean_variance", lambda mean, covariance: _least_variance(covariance, mean), bars=504, needs_gain=True),
    # Lopez de Prado (2016), with Ward linkage.
    Optimised("hierarchical_risk_parity", _hierarchical_risk_parity, bars=252),
)
