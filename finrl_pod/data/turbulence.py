"""Financial turbulence, the Mahalanobis distance of returns from past ones, and the rule that acts on it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from finrl_pod.data.price_features import lag, over_own_bars
from finrl_pod.types import Bools, Floats, Panel, Tensor

# A ticker needs this fraction of the returns in the window to be included.
_MIN_FRACTION = 0.5
# Eigenvalues of the correlation matrix below this fraction of the largest are dropped.
_RCOND = 1e-10
# If the smallest Cholesky pivot (squared: a conditional variance) is above this, no eigenvalue is dropped.
_SAFE_PIVOT = 1e-4
# Elements of a block of windows in memory (16 MiB).
_BLOCK = 2**21


def turbulence(panel: Panel, window: int = 252) -> Floats:
    """Turbulence (y - m)' S^-1 (y - m) of each bar: [T] float64, NaN for the first `window` returns.

    y: simple returns of bar t; m, S: mean and covariance of the `window` returns before it. Kritzman and Li (2010), not
    divided by the number of tickers, as in FinRL. A ticker is included at t if it has a return at t, at least half of
    the returns in the window, and a non-zero variance; NaN where none is. Missing returns in the window are set to the
    mean of the ticker, and its variance uses the existing returns. A (nearly) singular correlation matrix is inverted
    by a pseudo-inverse that drops eigenvalues below 1e-10 of the largest.
    """
    returns = over_own_bars(lambda close: close / lag(close, 1) - 1, panel.tradable, panel.close)
    bars, assets = returns.shape
    result = np.full(bars, np.nan)
    block = max(1, _BLOCK // (window * max(assets, 1)))
    # Bar 0 never has a return, so the first whole window is bars 1 to `window`.
    for first in range(window + 1, bars, block):
        last = min(first + block, bars)
        past = sliding_window_view(returns[first - window : last - 1], window, axis=0)  # [B, N, window]
        result[first:last] = _distances(past, returns[first:last])
    return result


def turbulent_bars(turbulence: Tensor | None, limit: float) -> Tensor | None:
    """[T] bool, True at bars whose turbulence [T] is above `limit`: there all positions are sold.

    NaN (warm-up) is never above. None if the rule is off: the limit is 0, or the market has no turbulence.
    Environments, their kernels, scoring and deployed agents all use this function.
    """
    return turbulence > limit if limit > 0 and turbulence is not None else None


def _distances(past: Floats, todays_returns: Floats) -> Floats:
    """Squared Mahalanobis distance of today [B, N] from past [B, N, W]: [B]."""
    is_known = np.isfinite(past)
    count = is_known.sum(-1)
    mean = np.where(is_known, past, 0.0).sum(-1) / np.maximum(count, 1)
    deviations = np.where(is_known, past - mean[..., None], 0.0)
    squares = (deviations**2).sum(-1)
    # The variance of a constant series is the rounding error of its mean.
    noise = count * (1e-14 * np.maximum(np.abs(mean), 1e-3)) ** 2
    is_included = (
        np.isfinite(todays_returns) & (count >= _MIN_FRACTION * past.shape[-1]) & (count > 1) & (squares > noise)
    )
    scale = np.where(is_included, np.sqrt(np.where(is_included, squares, 1.0)), np.inf)
    unit = deviations / scale[..., None]  # rows of length 1, or 0 for an excluded ticker
    correlation = unit @ unit.transpose(0, 2, 1)  # [B, N, N]
    diagonal = np.arange(todays_returns.shape[1])
    correlation[:, diagonal, diagonal] = 1.0
    # Standard deviation (n - 1) of the returns that exist.
    std = scale / np.sqrt(np.maximum(count - 1, 1))
    deviation = np.where(is_included, todays_returns - mean, 0.0) / std
    return np.where(is_included.any(-1), _quadratic_form(correlation, deviation, is_included), np.nan)


def _quadratic_form(correlation: Floats, deviation: Floats, is_included: Bools) -> Floats:
    """d' C^+ d for each of B bars. An excluded ticker has a unit row in C and 0 in d: it contributes 0."""
    # `cholesky_ex` reports failures per matrix: one bar never changes the arithmetic of another.
    factor, failure = torch.linalg.cholesky_ex(torch.from_numpy(correlation))
    pivot = factor.diagonal(dim1=-2, dim2=-1).amin(-1)
    safe = ((failure == 0) & (pivot > _SAFE_PIVOT)).numpy()
    result = np.empty(len(correlation))
    right = torch.from_numpy(deviation[safe]).unsqueeze(-1)
    solution = torch.linalg.solve_triangular(factor[torch.from_numpy(safe)], right, upper=False)
    result[safe] = (solution**2).sum((-2, -1)).numpy()
    for bar in np.flatnonzero(~safe):
        values, vectors = np.linalg.eigh(correlation[bar][np.ix_(is_included[bar], is_included[bar])])
        is_kept = values > _RCOND * values[-1]
        result[bar] = ((vectors.T @ deviation[bar][is_included[bar]])[is_kept] ** 2 / values[is_kept]).sum()
    return result
