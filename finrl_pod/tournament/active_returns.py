"""Returns of agents on validation, active returns over a base portfolio, and how they correlate.

All returns are simple returns per bar in excess of cash, as in the Sharpe ratio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from finrl_pod.evaluate.backtest import Ledger
from finrl_pod.evaluate.metrics import RISK_EPSILON, excess_returns
from finrl_pod.types import Floats, MarketTensor, Tensor

BASE = "base"  # name of the base portfolio's returns beside those of agents


def member_returns(ledger: Ledger) -> Floats:
    """Returns [L-1, P] of the accounts of a ledger; NaN for an account whose equity is not finite."""
    equity = ledger.equity.cpu().numpy()
    risk_free = None if ledger.risk_free is None else ledger.risk_free.cpu().numpy()
    returns = np.full((len(equity) - 1, equity.shape[1]), np.nan)
    finite = np.isfinite(equity).all(0)
    returns[:, finite] = excess_returns(equity[:, finite], risk_free)
    return returns


def base_returns(market: MarketTensor, first: int, last: int, risk_free: Tensor | None = None) -> Floats:
    """Returns [L-1] of the market's base portfolio over the bars first..last, rebalanced at every close without costs.

    Equal weights of the tradable assets if the market has no base. risk_free: [L-1], return of cash.
    """
    close = market.close[first : last + 1].double().cpu().numpy()
    if market.base is not None:
        weights = market.base[first:last].double().cpu().numpy()
    else:
        tradable = market.tradable[first:last].double().cpu().numpy()
        weights = tradable / np.maximum(tradable.sum(1, keepdims=True), 1.0)
    returns: Floats = (weights * (close[1:] / close[:-1] - 1)).sum(1)
    return returns if risk_free is None else returns - risk_free.cpu().numpy()


def active_returns(agents: Sequence[str], returns: Mapping[str, Floats]) -> Floats:
    """Returns [T, M] of agents over the base. returns: by id, [T] each, the base's under `BASE`."""
    return np.stack([returns[agent] - returns[BASE] for agent in agents], 1)


def correlation_matrix(active: Floats) -> Floats:
    """Pearson correlations [M, M] of active returns [T, M].

    1 with an agent whose active returns are constant: one that holds the base adds nothing new.
    """
    centred = active - active.mean(0)
    spread = centred.std(0)
    constant = spread <= RISK_EPSILON
    unit = np.where(constant, 0.0, centred / np.where(constant, 1.0, spread))
    matrix = np.clip(unit.T @ unit / len(active), -1.0, 1.0)
    matrix[constant, :] = matrix[:, constant] = 1.0
    np.fill_diagonal(matrix, 1.0)
    return matrix


def mean_correlation(active: Floats) -> float | None:
    """Mean correlation of pairs of the M columns of active returns [T, M]; None for a single one."""
    count = active.shape[1]
    if count < 2:
        return None
    return float(correlation_matrix(active)[np.triu_indices(count, 1)].mean())
