"""A simulated, cost-free account of the mandate's base, which the daemon's active return is measured against.

Targets are bought in the next session's auction and leave the same share of equity in cash, as the daemon's orders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from finrl_pod.evaluate.backtest import lookback_of, window_at
from finrl_pod.protocols import MandatedStrategy
from finrl_pod.types import Floats, Panel, Positions, Window


def advance(
    base: MandatedStrategy, state: Mapping[str, Any] | None, panel: Panel, cash_buffer: float,
    auction: Literal["open", "close"],
) -> dict[str, Any]:  # fmt: skip
    """The base account after its decision on the panel's last bar, as plain JSON values.

    state: after the decision before; None, or one older than the base's price window, starts a new account in cash.
    growth: of the account since it started with 1. held, target: weights by symbol; the target is bought in the next
    auction, None keeps the holdings. strategy: virtual holdings of the base.
    """
    window = window_at(panel, len(panel.times) - 1, lookback_of(base))
    before = None if state is None else np.flatnonzero(window.times[:-1] == np.datetime64(state["time"]))
    held, growth, started = np.zeros(len(window.symbols)), 1.0, str(window.times[-1])
    if state is None or before is None or not len(before):
        base.restore(None, window.symbols)
    else:
        base.restore(state["strategy"], window.symbols)
        held, grown = _advanced(state, window, int(before[0]), auction)
        growth, started = state["growth"] * grown, state["started"]
    target = base.target_weights(window, Positions(weights=held, cash=1 - float(held.sum()), equity=1.0))
    return {
        "time": str(window.times[-1]),
        "started": started,
        "growth": growth,
        "held": _by_symbol(window, held),
        "target": None if target is None else _by_symbol(window, target * (1 - cash_buffer)),
        "strategy": base.state(),
    }


def _advanced(state: Mapping[str, Any], window: Window, t: int, auction: str) -> tuple[Floats, float]:
    """Holdings at the last bar and growth since bar t, with the target bought in the auction of the bar after it."""
    close = _forward_filled(window.close)
    fills = close[t + 1]
    if auction == "open" and window.open is not None:
        fills = np.where(np.isfinite(window.open[t + 1]), window.open[t + 1], fills)
    held, growth = _drifted(_weights(state["held"], window), fills / close[t])
    if state["target"] is not None:
        held, _ = _drifted(_weights(state["target"], window), fills / close[t])
    held, later = _drifted(held, close[-1] / fills)
    return held, growth * later


def _drifted(weights: Floats, ratio: Floats) -> tuple[Floats, float]:
    values = weights * ratio
    growth = 1 + float((values - weights).sum())
    return values / growth, growth


def _forward_filled(close: Floats) -> Floats:
    """Closes [T, N] forward-filled over gaps; 1.0 before the first."""
    known = np.isfinite(close)
    latest = np.maximum.accumulate(np.where(known, np.arange(len(close))[:, None], -1), axis=0)
    forward_filled: Floats = np.where(latest >= 0, np.take_along_axis(close, np.maximum(latest, 0), 0), 1.0)
    return forward_filled


def _weights(values: Mapping[str, float], window: Window) -> Floats:
    return np.array([values.get(symbol, 0.0) for symbol in window.symbols])


def _by_symbol(window: Window, weights: Floats) -> dict[str, float]:
    return dict(zip(window.symbols, weights.tolist(), strict=True))
