"""A simulated, cost-free account of the mandate base: the active return is measured against it.

Targets are bought in the next session auction and leave the same share of equity in cash, as the daemon orders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from finrl_pod.evaluate.backtest import lookback_of, window_at
from finrl_pod.market.protocols import MandatedStrategy
from finrl_pod.paper.journal.decision_state import BaseAccount
from finrl_pod.types import Floats, Panel, Positions, Window


def advance(
    base: MandatedStrategy,
    account: BaseAccount | None,
    panel: Panel,
    cash_buffer: float,
    auction: Literal["open", "close"],
) -> BaseAccount:
    """Return the base account after its decision on the last bar of the panel.

    account: account after the previous decision; None, or one older than the price window of the base, starts a new
    account in cash.
    """
    window = window_at(panel, len(panel.times) - 1, lookback_of(base))
    now = str(window.times[-1])
    rows = [] if account is None else np.flatnonzero(window.times[:-1] == np.datetime64(account.time)).tolist()
    weights = np.zeros(len(window.symbols))
    growth = 1.0
    started = now
    if account is None or not rows:
        base.restore(None, window.symbols)
    else:
        base.restore(account.strategy, window.symbols)
        weights, growth = _advance_weights(account, window, rows[0], auction)
        growth *= account.growth
        started = account.started
    target = base.target_weights(window, Positions(weights=weights, cash=1 - float(weights.sum()), equity=1.0))
    return BaseAccount(
        time=now,
        started=started,
        growth=growth,
        held=_by_symbol(window, weights),
        target=None if target is None else _by_symbol(window, target * (1 - cash_buffer)),
        strategy=base.state(),
    )


def _advance_weights(account: BaseAccount, window: Window, t: int, auction: str) -> tuple[Floats, float]:
    """Weights at the last bar and growth since bar t, with the target bought in the auction of the next bar."""
    close = _forward_filled(window.close)
    fills = close[t + 1]
    if auction == "open" and window.open is not None:
        fills = np.where(np.isfinite(window.open[t + 1]), window.open[t + 1], fills)
    weights, growth = _drift(_weights(account.held, window), fills / close[t])
    if account.target is not None:
        weights, _ = _drift(_weights(account.target, window), fills / close[t])
    weights, later = _drift(weights, close[-1] / fills)
    return weights, growth * later


def _drift(weights: Floats, ratio: Floats) -> tuple[Floats, float]:
    values = weights * ratio
    growth = 1 + float((values - weights).sum())
    return values / growth, growth


def _forward_filled(close: Floats) -> Floats:
    """Closes [T, N] forward-filled over gaps; 1.0 before the first."""
    has_price = np.isfinite(close)
    latest = np.maximum.accumulate(np.where(has_price, np.arange(len(close))[:, None], -1), axis=0)
    forward_filled: Floats = np.where(latest >= 0, np.take_along_axis(close, np.maximum(latest, 0), 0), 1.0)
    return forward_filled


def _weights(values: Mapping[str, float], window: Window) -> Floats:
    return np.array([values.get(symbol, 0.0) for symbol in window.symbols])


def _by_symbol(window: Window, weights: Floats) -> dict[str, float]:
    return dict(zip(window.symbols, weights.tolist(), strict=True))
