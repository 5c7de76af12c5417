"""Portfolio optimisation baselines: refitted monthly on trailing simple returns, long-only, fully invested.

The optimisers are those of skfolio, which is imported at the first fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from finrl_pod.errors import InputError
from finrl_pod.types import Floats, Positions, Window
from finrl_pod_strategies.rule_based import is_rebalance_bar

MIN_PRICED = 0.9  # share of the window's bars; an asset with fewer prices is skipped
NO_VARIANCE = 1e-12  # constant returns make a covariance matrix singular


@dataclass(frozen=True)
class Optimised:
    """A skfolio model, fitted on the returns of the trailing `bars` bars at the first bar of each month.

    Assets need a price at the decision, at the window's first bar, and on nine tenths of the bars between; gaps are
    filled forward. With as many assets as returns, the singular sample covariance is replaced by that of Ledoit and
    Wolf (2004), which shrinks it. The account stays in cash until the window is full, and with needs_gain while no
    asset has a positive mean return. Raises InputError with the date if a fit fails.
    """

    name: str
    model: Callable[[], Any]
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
        returns, chosen = trailing_returns(window, self.bars)
        weights = np.zeros(len(window.symbols))
        if self.needs_gain and not (returns.mean(0) > 0).any():
            return weights
        if len(chosen) == 1:
            weights[chosen] = 1.0
        elif len(chosen):
            weights[chosen] = self._fit(returns, str(window.times[-1].astype("datetime64[D]")))
        return weights

    def _fit(self, returns: Floats, date: str) -> Floats:
        model = self.model()
        if returns.shape[1] >= len(returns):
            model.set_params(prior_estimator=_shrunk_covariance())
        try:
            model.fit(returns)
        except Exception as error:
            raise InputError(f"{self.name} could not be fitted at {date}: {error}") from error
        fitted: Floats = np.clip(
            np.asarray(model.weights_, dtype=np.float64), 0.0, None
        )  # solvers leave weights such as -1e-9
        return np.asarray(fitted / fitted.sum(), dtype=np.float64)


def trailing_returns(window: Window, bars: int) -> tuple[Floats, np.ndarray]:
    """Simple returns [bars, K] of the K assets with enough prices, and their indices [K] among the symbols."""
    close = window.close[-bars - 1 :]
    priced = np.isfinite(close)
    enough = priced[0] & priced[-1] & window.tradable[-1] & (priced.mean(0) >= MIN_PRICED)
    last_priced = np.maximum.accumulate(np.where(priced, np.arange(len(close))[:, None], 0), axis=0)
    forward_filled = np.take_along_axis(close, last_priced, 0)[:, enough]
    returns = forward_filled[1:] / forward_filled[:-1] - 1.0
    moving = returns.std(0) > NO_VARIANCE
    return returns[:, moving], np.flatnonzero(enough)[moving]


def minimum_variance() -> Optimised:
    """Minimum variance portfolio (Markowitz 1952); sample covariance of 252 bars."""
    return Optimised("minimum_variance", _minimum_variance, bars=252)


def mean_variance() -> Optimised:
    """Portfolio with the maximum Sharpe ratio over cash at zero; sample mean and covariance of 504 bars.

    While no asset has a positive mean return the account holds cash.
    """
    return Optimised("mean_variance", _maximum_sharpe, bars=504, needs_gain=True)


def hierarchical_risk_parity() -> Optimised:
    """Hierarchical risk parity (Lopez de Prado 2016); 252 bars."""
    return Optimised("hierarchical_risk_parity", _risk_parity, bars=252)


def inverse_volatility() -> Optimised:
    """Weights inversely proportional to volatility; 252 bars."""
    return Optimised("inverse_volatility", _inverse_volatility, bars=252)


def _shrunk_covariance() -> Any:
    from skfolio.moments import LedoitWolf
    from skfolio.prior import EmpiricalPrior

    return EmpiricalPrior(covariance_estimator=LedoitWolf())


def _inverse_volatility() -> Any:
    from skfolio.optimization import InverseVolatility

    return InverseVolatility()


def _minimum_variance() -> Any:
    from skfolio import RiskMeasure
    from skfolio.optimization import MeanRisk, ObjectiveFunction

    return MeanRisk(objective_function=ObjectiveFunction.MINIMIZE_RISK, risk_measure=RiskMeasure.VARIANCE)


def _maximum_sharpe() -> Any:
    from skfolio import RiskMeasure
    from skfolio.optimization import MeanRisk, ObjectiveFunction

    return MeanRisk(objective_function=ObjectiveFunction.MAXIMIZE_RATIO, risk_measure=RiskMeasure.VARIANCE)


def _risk_parity() -> Any:
    from skfolio import RiskMeasure
    from skfolio.optimization import HierarchicalRiskParity

    return HierarchicalRiskParity(risk_measure=RiskMeasure.VARIANCE)
