"""Small random markets for tests, built without finrl_pod.data."""

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
    spreads: bool = False,
    dividends: bool = False,
) -> MarketTensor:
    """Geometric random walks around 100.

    opens: fill at separate opening prices, else at the next close. gaps: share of missing bars. starts, ends: first or
    last bar by asset. leak: the first feature is the future return of the decision divided by the volatility.
    volumes, spreads: include random volumes, and half spreads from 0 to 1%, of the fill bars. dividends: up to 3% of
    the close before, on every fourth bar.
    """
    rng = np.random.default_rng(seed)
    half_spread = np.random.default_rng(seed + 1).uniform(0, 0.01, (bars, assets))
    close = 100 * rng.uniform(0.5, 2, assets) * np.exp(np.cumsum(rng.normal(0, volatility, (bars, assets)), 0))
    open_price = close * np.exp(rng.normal(0, volatility / 2, close.shape))
    tradable = rng.random((bars, assets)) >= gaps
    row = np.arange(bars)
    start_bar = {asset: (starts or {}).get(asset, 0) for asset in range(assets)}
    end_bar = {asset: (ends or {}).get(asset, bars - 1) for asset in range(assets)}
    for asset in range(assets):
        tradable[start_bar[asset], asset] = tradable[end_bar[asset], asset] = True
        tradable[(row < start_bar[asset]) | (row > end_bar[asset]), asset] = False
    for t in range(bars):  # valuation at the last known close, 1.0 before the start
        close[t] = np.where(tradable[t], close[t], close[t - 1] if t else 1.0)
        close[t] = np.where(t < np.array(list(start_bar.values())), 1.0, close[t])
    tradable_next = np.vstack([tradable[1:], np.zeros((1, assets), bool)])
    if fill == "same_close":
        fillable, price = tradable, close.copy()
    else:
        fillable = tradable & tradable_next
        price = np.vstack([(open_price if opens else close)[1:], close[-1:]])
        price = np.where(fillable, price, close)
    table = rng.normal(size=(bars, assets, features))
    if leak:
        table[:-1, :, 0] = (price[1:] / price[:-1] - 1) / volatility
    delisted = (row[:, None] >= np.array(list(end_bar.values()))) & ~tradable[-1]
    traded = np.where(fillable, np.exp(rng.uniform(5, 12, close.shape)), np.where(delisted, np.inf, 0.0))
    paid = np.random.default_rng(seed + 2).uniform(0, 0.03, (bars, assets)) * close * (row % 4 == 3)[:, None]
    paid = np.where(delisted, 0.0, paid)
    paid[-1] = 0.0
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
        delisted=torch.from_numpy(delisted),
        feature_names=names,
        normaliser=Normaliser(names, (0.0,) * features, (1.0,) * features),
        fill_rule=fill,
        first=first,
        steps=bars - 1 if fill == "same_close" else bars - 2,
        turbulence=None if turbulence is None else torch.from_numpy(np.asarray(turbulence, dtype=np.float64)),
        fill_volume=torch.from_numpy(traded) if volumes else None,
        volatility=torch.full(close.shape, volatility, dtype=torch.float64) if volumes else None,
        half_spread=torch.from_numpy(half_spread) if spreads else None,
        dividends=torch.from_numpy(paid) if dividends else None,
    )


def turbulent_market(
    seed: int, bars: int, assets: int, fill: str, gaps: bool, *, spreads: bool = False
) -> MarketTensor:
    """A market with turbulence in [0, 1]: NaN in the first bars, exactly 0.5 in every third bar.

    gaps: some bars are missing, one asset starts late and one ends early.
    """
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
        spreads=spreads,
    )
