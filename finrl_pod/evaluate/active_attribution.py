"""Attribution of an active return to market beta, momentum, reversal and low volatility, from holdings.

Returns of factors are slopes of a regression across assets in each bar, on exposures known before (Fama, MacBeth 1973).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from finrl_pod.data import features
from finrl_pod.data.panel import cut
from finrl_pod.evaluate.active_management import LEVEL
from finrl_pod.evaluate.intervals import DRAWS, MIN_BARS, Interval, block_length, bootstrap_statistics
from finrl_pod.evaluate.metrics import bars_per_year, simple_returns
from finrl_pod.types import BacktestResult, Bools, Floats, Panel

FACTORS = {  # part -> the feature that is the exposure; all but beta are compared across the assets
    "market_beta": "beta_252",
    "momentum": "momentum_252_21_zscore",
    "reversal": "return_5_zscore",
    "low_volatility": "volatility_252_zscore",
}
HISTORY = 10_000  # bars before an account from which features are computed: more than they read, gaps included
SMALLEST = 1e-10  # eigenvalues below this share of the largest one are rounding errors


@dataclass(frozen=True)
class ActiveAttribution:
    """A mean active return per year by its parts.

    parts: for a factor, the mean of the active exposure times its return, before costs; for "residual", the rest before
    costs (selection of assets, trades between two closes, interest and fees); for "costs", the costs of the account
    less the costs of the base, negative. total: active return, the sum of the parts. residual_interval: ends of a
    stationary bootstrap of days. condition_number: median over the bars, for the exposures.
    """

    parts: Mapping[str, float]
    total: float
    residual_interval: Interval
    condition_number: float


def active_attribution(
    account: BacktestResult, base: BacktestResult, panel: Panel, seed: int = 0, level: float = LEVEL
) -> ActiveAttribution | None:
    """Attribute the active return of an account over its base on the same bars. panel: prices of the backtests.

    None if an account has other assets or bars than the panel, if no bar has more assets than factors, and for returns
    on fewer than `MIN_BARS` days.
    """
    first = int(np.searchsorted(panel.times, account.times[0]))
    bars = slice(first, first + len(account.times))
    days = np.unique(account.times[1:].astype("datetime64[D]"), return_inverse=True)[1]
    is_comparable = account.symbols == base.symbols == panel.symbols and np.array_equal(panel.times[bars], base.times)
    if not is_comparable or len(days) == 0 or days[-1] + 1 < MIN_BARS:
        return None
    start = max(first - HISTORY, 0)
    exposures = features.compute(cut(panel, start, bars.stop), FACTORS.values())[first - start : -1]  # [T-1, N, K]
    exposures[..., 0] = np.nan_to_num(exposures[..., 0], nan=1.0)
    exposures = np.nan_to_num(exposures)
    close = panel.close[bars]
    payments = 0.0 if panel.dividend is None else np.nan_to_num(panel.dividend[bars][1:])
    cash = 0.0 if account.risk_free is None else account.risk_free[:, None]
    returns = (close[1:] + payments) / close[:-1] - 1 - cash  # [T-1, N], NaN where unknown
    is_known = np.isfinite(returns)
    is_regressed = is_known.sum(1) > len(FACTORS)
    if not is_regressed.any():
        return None
    factor_returns, condition_numbers = _regressions(exposures, returns, is_known)
    active_exposures = np.einsum("tn,tnk->tk", (account.weights - base.weights)[:-1], exposures)
    factor_parts = active_exposures * factor_returns * is_regressed[:, None]  # [T-1, K]
    costs = _cost_returns(base) - _cost_returns(account)
    active = simple_returns(account.equity) - simple_returns(base.equity)
    residual = active - costs - factor_parts.sum(1)
    year = bars_per_year(account.times)
    parts = {name: float(year * factor_parts[:, k].mean()) for k, name in enumerate(FACTORS)}
    parts |= {"residual": float(year * residual.mean()), "costs": float(year * costs.mean())}
    by_day = np.bincount(days, residual)
    samples = bootstrap_statistics(
        lambda rows: by_day[rows].mean(1), *(len(by_day), block_length(by_day), DRAWS, np.random.default_rng(seed))
    )
    low, high = year * len(by_day) / len(residual) * np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return ActiveAttribution(
        parts,
        float(year * active.mean()),
        Interval(parts["residual"], float(low), float(high)),
        float(np.median(condition_numbers[is_regressed])),
    )


def _regressions(exposures: Floats, returns: Floats, is_known: Bools) -> tuple[Floats, Floats]:
    """Least-squares slopes [T, K] of returns [T, N] on exposures [T, N, K], and condition numbers [T] of the exposures.

    Assets without a return are left out. Of exposures that depend on each other, the smallest slopes. Factors that no
    asset is exposed to do not enter the condition number.
    """
    known_exposures = np.where(is_known[..., None], exposures, 0.0)
    transposed = known_exposures.transpose(0, 2, 1)
    gram = transposed @ known_exposures
    moments = transposed @ np.where(is_known, returns, 0.0)[..., None]
    slopes = (np.linalg.pinv(gram, rcond=SMALLEST, hermitian=True) @ moments)[..., 0]
    sizes = np.diagonal(gram, axis1=1, axis2=2)
    absent = np.where(sizes == 0, np.maximum(sizes.max(1, keepdims=True), 1.0), 0.0)
    return slopes, np.sqrt(np.linalg.cond(gram + absent[..., None] * np.eye(len(FACTORS))))


def _cost_returns(result: BacktestResult) -> Floats:
    """Costs [T-1] of each bar as a share of the equity at the bar before; 0 after ruin."""
    balance = result.balance[:-1]
    is_alive = balance > 0
    shares: Floats = np.where(is_alive, result.costs[1:] / np.where(is_alive, balance, 1.0), 0.0)
    return shares
