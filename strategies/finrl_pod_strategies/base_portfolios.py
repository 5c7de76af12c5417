"""Base portfolios of mandates: the weights that a tilt starts from, as a table of a market or at the end of a window.

`equal_weight` follows the tradable assets at every bar. Any other strategy is asked at the first bar of each month,
holding only cash, and its weights stand for that month. Weights of assets that become untradable pass to the
others in proportion; cash that the strategy keeps stays cash.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from finrl_pod.errors import ConfigError, FinrlPodError
from finrl_pod.evaluate.backtest import lookback_of, target_weights_of, window_at
from finrl_pod.market.execution import weights_error
from finrl_pod.market.mandate import active_mandate, equal_base
from finrl_pod.native.device import one_thread
from finrl_pod.protocols import Strategy
from finrl_pod.settings.run import MandateConfig
from finrl_pod.types import Bools, Floats, MarketTensor, Panel, Positions, Window
from finrl_pod_strategies.baselines import month_starts
from finrl_pod_strategies.user_strategy import UserStrategy, load_strategy

BARS_OF_A_MONTH = 23  # daily bars from the first bar of a month to its last, at most
REMEMBERED_MONTHS = 1_000
_month_cache: dict[tuple[str, bytes], Floats | None] = {}


def with_base(market: MarketTensor, panel: Panel, mandate: MandateConfig | None) -> MarketTensor:
    """The market with the base weights of a mandate, starting no earlier than they do.

    Returns the market unchanged if the mandate is absent, unconstrained, or has equal weights. Raises ConfigError if
    the base does not exist or cannot be computed on these prices.
    """
    if (bounds := active_mandate(mandate)) is None or bounds.base == "equal_weight":
        return market
    weights = base_table(bounds.base, panel)
    first = int(np.isfinite(weights[:, 0]).argmax())
    table = torch.from_numpy(np.nan_to_num(weights)).to(market.close.device)
    return replace(market, base=table, first=max(market.first, first))


@one_thread()
def base_table(name: str, panel: Panel) -> Floats:
    """Base weights [T, N] of a panel, NaN before they are defined. Raises ConfigError."""
    if name == "equal_weight":
        return np.asarray(equal_base(torch.from_numpy(panel.tradable)).numpy(), dtype=np.float64)
    strategy = base_strategy(name)
    lookback = lookback_of(strategy)
    monthly = np.full(panel.close.shape, np.nan)
    for t in np.flatnonzero(month_starts(panel.times)):
        weights = _weights(strategy, window_at(panel, int(t), lookback))
        if weights is not None:
            monthly[t] = weights
    if not np.isfinite(monthly).any():
        raise ConfigError(
            f"mandate.base = {name!r} is never defined on the {len(panel.times)} bars of "
            f"{panel.name or 'these prices'}; it needs {lookback or 'more'} bars before a month begins"
        )
    return _daily(monthly, panel.tradable)


def base_at(name: str, window: Window) -> Floats:
    """Base weights [N] at the last bar of a window: the last row of `base_table` of the same prices.

    Raises ConfigError if the window is too short.
    """
    if name == "equal_weight":
        return np.asarray(equal_base(torch.from_numpy(window.tradable[-1])).numpy(), dtype=np.float64)
    lookback = lookback_of(base_strategy(name))
    starts = np.flatnonzero(month_starts(window.times))
    weights = None
    if len(starts):
        t = int(starts[-1])
        past = slice(0 if lookback is None else max(0, t + 1 - lookback), t + 1)
        columns = {name: x[past] for name, x in vars(window).items() if isinstance(x, np.ndarray)}
        weights = _month_weights(name, replace(window, **{**columns, "features": None}))  # type: ignore[arg-type]
    if weights is None:
        raise ConfigError(
            f"mandate.base = {name!r} is not defined at {window.times[-1].astype('datetime64[D]')}: it needs "
            f"{lookback or 'more'} bars before the month begins, the window has {len(window.times)}"
        )
    return np.asarray(_daily(weights[None], window.tradable[-1:])[0], dtype=np.float64)


def base_lookback(name: str) -> int | None:
    """Bars of a window that `base_at` needs; None for all."""
    if name == "equal_weight":
        return 1
    bars = lookback_of(base_strategy(name))
    return None if bars is None else bars + BARS_OF_A_MONTH + 1


@lru_cache
def base_strategy(name: str) -> Strategy:
    """The strategy of a base: a baseline, or a custom `file.py:Class` or `package.module:Class`.

    Raises ConfigError for one that does not exist or cannot be a base.
    """
    try:
        strategy = load_strategy(name)
    except FinrlPodError as error:
        raise ConfigError(f"mandate.base: {error}") from None
    if isinstance(strategy, UserStrategy) and strategy.lookback is None:
        raise ConfigError(
            f"mandate.base = {name!r} needs an attribute lookback (bars, at least 1), so that backtests and the "
            "paper-trading daemon show it the same bars"
        )
    if name == "index" or strategy.feature_names:
        raise ConfigError(
            f"mandate.base = {name!r} cannot be a base: it does not weight the assets by their prices alone"
        )
    return strategy


def _weights(strategy: Strategy, window: Window) -> Floats | None:
    cash = Positions(weights=np.zeros(len(window.symbols)), cash=1.0, equity=1.0)
    date = str(window.times[-1].astype("datetime64[D]"))
    if isinstance(strategy, UserStrategy):
        strategy = strategy.recreate()  # the weights may not depend on which bars it was asked at before
    weights = target_weights_of(strategy, window, cash, date)
    if weights is not None and (error := weights_error(torch.from_numpy(weights), window.symbols)):
        raise ConfigError(f"mandate.base: weights of {strategy.name} at {date} {error}")
    return weights


def _month_weights(name: str, window: Window) -> Floats | None:
    """Weights of a base at the first bar of a month, cached by the contents of the window."""
    columns = (window.close, window.tradable, window.open, window.high, window.low, window.volume, window.benchmark)
    digest = hashlib.blake2b(repr((window.symbols, window.times.tobytes())).encode())
    for column in columns:
        digest.update(b"" if column is None else np.ascontiguousarray(column).tobytes())
    key = (name, digest.digest())
    if key not in _month_cache:
        _month_cache[key] = _weights(base_strategy(name), window)
        if len(_month_cache) > REMEMBERED_MONTHS:
            del _month_cache[next(iter(_month_cache))]
    return _month_cache[key]


def _daily(monthly: Floats, tradable: Bools) -> Floats:
    """Weights [T, N] forward-filled from month to month, and passed on from untradable assets to the others."""
    is_defined = np.isfinite(monthly[:, 0])
    latest = np.maximum.accumulate(np.where(is_defined, np.arange(len(monthly)), -1))
    forward_filled = np.where((latest >= 0)[:, None], monthly[np.maximum(latest, 0)], np.nan)
    total = forward_filled.sum(1, keepdims=True)
    tradable_weights = np.where(tradable, forward_filled, 0.0)
    tradable_weights[latest < 0] = np.nan
    share = tradable_weights.sum(1, keepdims=True)
    weights: Floats = np.divide(
        tradable_weights * total,
        share,
        out=np.where(latest[:, None] < 0, np.nan, 0.0 * tradable_weights),
        where=share > 0,
    )
    return weights
