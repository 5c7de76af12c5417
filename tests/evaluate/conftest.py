"""Small panels and markets made of close prices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest

from finrl_pod.data.tensor import build_market
from finrl_pod.types import Floats, MarketTensor, Panel

MarketOf = Callable[..., tuple[Panel, MarketTensor]]


def build(
    close: Floats,
    *,
    fill: Literal["next", "same_close"] = "next",
    open_: Floats | None = None,
    features: tuple[str, ...] = (),
) -> tuple[Panel, MarketTensor]:
    """close: [T, N], NaN where untradable -> daily bars from 2020-01-01 of the symbols S0, S1, … and their market."""
    times = np.arange("2020-01-01", len(close), dtype="datetime64[D]").astype("datetime64[ns]")
    symbols = tuple(f"S{i}" for i in range(close.shape[1]))
    panel = Panel(times, symbols, close.copy(), np.isfinite(close), open=None if open_ is None else open_.copy())
    return panel, build_market(panel, features, (0, len(close) - 1), fill)


def ar1(seed: int, bars: int, coefficient: float) -> Floats:
    """First-order autoregressive series [bars]."""
    noise = np.random.default_rng(seed).normal(0, 0.01, bars)
    values = np.zeros(bars)
    for t in range(1, bars):
        values[t] = coefficient * values[t - 1] + noise[t]
    return values


@pytest.fixture(scope="session")
def market_of() -> MarketOf:
    """Function that builds a panel and its market from closes."""
    return build
