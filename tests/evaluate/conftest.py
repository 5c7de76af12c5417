"""Markets built by hand, so that the engine's tests do not lean on the code that builds them in production."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from finrl_pod.types import Floats, MarketTensor, Normaliser, Panel

MarketOf = Callable[..., tuple[Panel, MarketTensor]]


def build(close: Floats, *, fill: str = "next", open_: Floats | None = None) -> tuple[Panel, MarketTensor]:
    """close: [T, N], NaN where untradable -> the panel and its market, with two features: the close and the bar."""
    bars, assets = close.shape
    times = np.arange("2020-01-01", bars, dtype="datetime64[D]").astype("datetime64[ns]")
    symbols = tuple(f"S{i}" for i in range(assets))
    tradable = np.isfinite(close)
    panel = Panel(times, symbols, close.copy(), tradable, open=None if open_ is None else open_.copy())
    carried = close.copy()
    carried[0] = np.where(tradable[0], carried[0], 1.0)
    for t in range(1, bars):
        carried[t] = np.where(tradable[t], close[t], carried[t - 1])
    prices, fillable = carried.copy(), tradable.copy()
    if fill == "next":
        fillable = np.vstack([tradable[1:], np.zeros((1, assets), dtype=bool)])
        later = carried if open_ is None else np.where(tradable, open_, carried)
        prices = np.vstack([later[1:], carried[-1:]])
        prices = np.where(fillable, prices, carried)
    alive_later = np.flip(np.logical_or.accumulate(np.flip(tradable, 0), axis=0), 0)
    ended = np.vstack([~alive_later[1:], np.ones((1, assets), dtype=bool)])
    raw = np.stack([carried, np.broadcast_to(np.arange(bars)[:, None], close.shape)], -1).astype(np.float32)
    market = MarketTensor(
        times=times,
        symbols=symbols,
        close=torch.from_numpy(carried),
        fill=torch.from_numpy(prices),
        features=torch.from_numpy(raw),
        raw_features=torch.from_numpy(raw),
        tradable=torch.from_numpy(tradable),
        fillable=torch.from_numpy(fillable),
        ended=torch.from_numpy(ended),
        feature_names=("price", "bar"),
        normaliser=Normaliser(("price", "bar"), (0.0, 0.0), (1.0, 1.0)),
        fill_rule=fill,
        first=0,
        steps=bars - 2,
    )
    return panel, market


@pytest.fixture(scope="session")
def market_of() -> MarketOf:
    """The builder above."""
    return build
