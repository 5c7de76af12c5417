"""Small random markets for tests, built without the data rooms."""

from __future__ import annotations

import numpy as np
import torch

from finrl_pod.types import MarketTensor, Normaliser


def random_market(
    seed: int = 0,
    *,
    bars: int = 40,
    assets: int = 3,
    features: int = 2,
    fill: str = "next",
    opens: bool = False,
    volatility: float = 0.02,
    gaps: float = 0.0,
    ends: dict[int, int] | None = None,
    starts: dict[int, int] | None = None,
    first: int = 0,
    turbulence: np.ndarray | None = None,
    leak: bool = False,
    volumes: bool = False,
) -> MarketTensor:
    """Geometric random walks around 100.

    opens: fill at an open of its own, else at the next close. gaps: share of bars missing. starts, ends: asset -> its
    first or last bar. leak: the first feature is the return that a decision at the bar will earn, over its volatility.
    volumes: of the bars that decisions fill in, from thin to plenty.
    """
    rng = np.random.default_rng(seed)
    close = 100 * rng.uniform(0.5, 2, assets) * np.exp(np.cumsum(rng.normal(0, volatility, (bars, assets)), 0))
    opened = close * np.exp(rng.normal(0, volatility / 2, close.shape))
    tradable = rng.random((bars, assets)) >= gaps
    row = np.arange(bars)
    born = {asset: (starts or {}).get(asset, 0) for asset in range(assets)}
    last = {asset: (ends or {}).get(asset, bars - 1) for asset in range(assets)}
    for asset in range(assets):
        tradable[born[asset], asset] = tradable[last[asset], asset] = True
        tradable[(row < born[asset]) | (row > last[asset]), asset] = False
    for t in range(bars):  # valuation: the last known close, 1.0 before the start
        close[t] = np.where(tradable[t], close[t], close[t - 1] if t else 1.0)
        close[t] = np.where(t < np.array(list(born.values())), 1.0, close[t])
    ahead = np.vstack([tradable[1:], np.zeros((1, assets), bool)])
    if fill == "same_close":
        fillable, price = tradable, close.copy()
    else:
        fillable = tradable & ahead
        price = np.vstack([(opened if opens else close)[1:], close[-1:]])
        price = np.where(fillable, price, close)
    table = rng.normal(size=(bars, assets, features))
    if leak:
        table[:-1, :, 0] = (price[1:] / price[:-1] - 1) / volatility
    ended = (row[:, None] >= np.array(list(last.values()))) & ~tradable[-1]
    traded = np.where(fillable, np.exp(rng.uniform(5, 12, close.shape)), np.where(ended, np.inf, 0.0))
    names = tuple(f"feature_{i}" for i in range(features))
    table = table.astype(np.float32)
    return MarketTensor(
        times=np.datetime64("2020-01-01", "ns") + row.astype("timedelta64[D]"),
        symbols=tuple(f"S{i}" for i in range(assets)),
        close=torch.from_numpy(close),
        fill=torch.from_numpy(price),
        features=torch.from_numpy(table),
        raw_features=torch.from_numpy(table),
        tradable=torch.from_numpy(tradable),
        fillable=torch.from_numpy(fillable.copy()),
        ended=torch.from_numpy(ended),
        feature_names=names,
        normaliser=Normaliser(names, (0.0,) * features, (1.0,) * features),
        fill_rule=fill,
        first=first,
        steps=bars - 1 if fill == "same_close" else bars - 2,
        turbulence=None if turbulence is None else torch.from_numpy(np.asarray(turbulence, dtype=np.float64)),
        fill_volume=torch.from_numpy(traded) if volumes else None,
        volatility=torch.full(close.shape, volatility, dtype=torch.float64) if volumes else None,
    )


def turbulent_market(seed: int, bars: int, assets: int, fill: str, gaps: bool) -> MarketTensor:
    """A market with turbulence in [0, 1]: NaN in the first bars, a third of it exactly 0.5; with gaps, also a late and
    an early ticker."""
    turbulence = np.random.default_rng(seed).random(bars)
    turbulence[:3], turbulence[1::3] = np.nan, 0.5
    return random_market(
        seed,
        bars=bars,
        assets=assets,
        fill=fill,
        gaps=0.1 if gaps else 0.0,
        starts={1: 6} if gaps and assets > 1 else None,
        ends={0: 15} if gaps and assets > 1 else None,
        volatility=0.03,
        turbulence=turbulence,
    )
