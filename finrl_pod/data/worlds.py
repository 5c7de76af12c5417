"""Worlds: variations of the training split in one market table for training environments.

Each world is a market over the bars of the training split whose features are computed from its own prices and
normalised as those of the real history. Worlds are concatenated, and an episode lies within one of them. Nothing
after the training split is read; validation, test and audits never use a world.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from finrl_pod.data.augmentation import bootstrap, without_assets
from finrl_pod.data.blocks import row_blocks
from finrl_pod.data.panel import between
from finrl_pod.data.splits import Span
from finrl_pod.errors import ConfigError
from finrl_pod.memory import release_mapped_pages
from finrl_pod.random import generator, key
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.run import AugmentationConfig, EnvironmentConfig
from finrl_pod.tables import new_table, rows_table
from finrl_pod.types import MarketTensor, Panel, Tensor

REWARD_LAG = 2  # bars from a decision to the fill that ends its reward
BASIS_POINTS = 10_000
FEATURE_TABLES = ("features", "raw_features")  # of a market
LEAD_BARS = 256  # of each world before its first decision: used by trailing risk estimates and look-back policies

BuildMarket = Callable[[Panel], MarketTensor]


@dataclass(frozen=True, eq=False)
class TrainingWorlds:
    """W worlds of L bars in one market table of W L bars, and where episodes may start.

    A world begins with `LEAD_BARS` bars that no decision is taken at: bars before the training split, preceded, where
    there are too few, by bars at which nothing trades. first_decisions: bar of each world, counted from its first, at
    which features are defined.
    """

    market: MarketTensor
    bars: int
    first_decisions: tuple[int, ...]

    @property
    def first(self) -> int:
        """First decision bar of the table."""
        return self.first_decisions[0]

    @property
    def last(self) -> int:
        """Last decision bar of the table: fill and reward of a decision lie inside its world."""
        return len(self.first_decisions) * self.bars - 1 - REWARD_LAG

    def window(self, bars: int) -> int:
        """Bars of an episode: `bars`, or fewer if a world is shorter."""
        return min(bars, self.bars - REWARD_LAG - max(self.first_decisions))

    def starts(self, window: int) -> Tensor:
        """[K] int64, bars at which episodes start, each as likely as the others."""
        stop = self.bars - REWARD_LAG - window + 1
        within = torch.arange(LEAD_BARS, stop)
        starts = [i * self.bars + within[within >= first] for i, first in enumerate(self.first_decisions)]
        return torch.cat(starts)


def check_augmentation(config: AugmentationConfig, environment: EnvironmentConfig) -> None:
    """Raises ConfigError for settings out of range, several identical worlds, and factors of costs that are not
    proportional or would reach the price.
    """
    check_settings("augmentation.", config)
    varied = config.bootstrap_block or config.asset_share < 1 or config.cost_factor > 1 or config.feature_noise
    if config.worlds > 1 and not varied:
        raise ConfigError(
            f"augmentation.worlds = {config.worlds} would repeat one history; set bootstrap_block, asset_share, "
            "cost_factor or feature_noise, or worlds = 1"
        )
    if config.cost_factor > 1:
        others = ("per_share", "per_share_minimum", "impact", "participation")
        if used := [name for name in others if getattr(environment, name)]:
            raise ConfigError(
                f"augmentation.cost_factor multiplies proportional costs only; set it to 1, or "
                f"environment.{used[0]} to 0"
            )
        largest = config.cost_factor * (environment.cost_bps + environment.half_spread_bps)
        if largest >= BASIS_POINTS:
            raise ConfigError(
                f"augmentation.cost_factor = {config.cost_factor:g} would charge up to {largest:,.0f} basis points; "
                "lower it, so that costs stay below the price"
            )


def make_worlds(
    panel: Panel, train: Span, market: MarketTensor, build: BuildMarket, config: AugmentationConfig, seed: int
) -> TrainingWorlds | None:
    """Worlds of the training split, or None if nothing varies and agents train on the market itself.

    market: of the whole panel; it gives the first bar with features and the assets that trade. build: panel to market,
    with the features and the normaliser of `market`. seed: of all draws, which are keyed by the world.
    Memory: about W L N (4 F + 24) bytes.
    """
    if config == AugmentationConfig():
        return None
    first = max(train.first, market.first)
    rows = slice(first, train.last + 1)
    past = between(panel, None, pd.Timestamp(panel.times[train.last]))
    candidates = _with_features(market, rows)
    length = train.last + 1 - first + LEAD_BARS
    features = new_table((config.worlds * length, len(panel.symbols), market.shape[2]))
    markets = []
    for world in range(config.worlds):
        varied = past
        if config.bootstrap_block:
            rng = np.random.default_rng(key(seed, world, "bootstrap"))
            varied = bootstrap(varied, train.first, train.last, config.bootstrap_block, rng)
        if config.asset_share < 1:
            rng = np.random.default_rng(key(seed, world, "assets"))
            count = max(1, round(config.asset_share * len(candidates)))
            kept = np.isin(np.arange(len(panel.symbols)), rng.choice(candidates, count, replace=False))
            varied = without_assets(varied, kept)
        noisy = _with_noise(build(varied), config.feature_noise, generator(seed, world, "feature noise"))
        factor = _cost_factor(config.cost_factor, generator(seed, world, "costs"))
        del varied
        own = slice(world * length, (world + 1) * length)
        markets.append(_training_rows(noisy, rows, factor, torch.from_numpy(features[own])))
        del noisy
        release_mapped_pages()
    return TrainingWorlds(
        market=_concatenated(markets, torch.from_numpy(features)),
        bars=length,
        first_decisions=tuple(world_market.first for world_market in markets),
    )


def _with_features(market: MarketTensor, rows: slice) -> NDArray[np.int64]:
    """Assets that have all features defined, and trade, at some of these bars."""
    found = torch.zeros(market.shape[1], dtype=torch.bool, device=market.tradable.device)
    for block in row_blocks((rows.stop - rows.start, *market.raw_features.shape[1:])):
        part = slice(rows.start + block.start, rows.start + block.stop)
        found |= (torch.isfinite(market.raw_features[part]).all(-1) & market.tradable[part]).any(0)
        release_mapped_pages()
    return np.flatnonzero(found.cpu().numpy())


def _with_noise(market: MarketTensor, scale: float, random: torch.Generator) -> MarketTensor:
    """Market with Gaussian noise on the normalised features that are defined, clipped as they are."""
    if not scale:
        return market
    noise = torch.randn(market.features.shape, generator=random) * scale
    noise.masked_fill_(torch.isnan(market.raw_features), 0.0)
    clip = market.normaliser.clip
    return dataclasses.replace(market, features=(market.features + noise).clamp(-clip, clip))


def _cost_factor(limit: float, random: torch.Generator) -> float | None:
    """Log-uniform between 1 / limit and limit; None for a limit of 1."""
    if limit == 1:
        return None
    exponent = 2 * torch.rand((), generator=random, dtype=torch.float64).item() - 1
    return float(limit**exponent)


def _training_rows(market: MarketTensor, rows: slice, cost_factor: float | None, features: Tensor) -> MarketTensor:
    """Market of these rows and `LEAD_BARS` before, without raw features, which training does not read.

    Rows before the market's first repeat it, untradable and without features, with times that continue backwards.
    features: [L, N, F], written with those of the rows.
    """
    row = torch.arange(rows.start - LEAD_BARS, rows.stop)
    index, absent = row.clamp(min=0), row < 0
    for block in row_blocks(tuple(features.shape)):
        features[block] = market.features[index[block]]
        release_mapped_pages()
    kept = [name for name in _tables(market) if name not in FEATURE_TABLES]
    tables: dict[str, Any] = {name: _taken(getattr(market, name), index) for name in kept} | {"features": features}
    for name in ("features", "tradable", "fillable"):
        tables[name][absent] = 0
    if cost_factor is not None:
        tables["cost_factor"] = torch.full((len(row),), cost_factor, dtype=torch.float64)
    step = np.timedelta64(int(np.median(np.diff(market.times).astype(np.int64))), "ns")
    bars, assets, _ = market.shape
    return dataclasses.replace(
        market,
        times=market.times[index.numpy()] + np.minimum(row.numpy(), 0) * step,
        raw_features=torch.empty(len(row), assets, 0),
        first=LEAD_BARS + max(market.first - rows.start, 0),
        steps=market.steps - (bars - len(row)),
        **tables,
    )


def _taken(table: Tensor, index: Tensor) -> Tensor:
    """table[index] for a table [T, ...]."""
    like = table[:1].expand(len(index), *table.shape[1:])
    return rows_table(lambda rows: table[index[rows]], like)


def _concatenated(markets: Sequence[MarketTensor], features: Tensor) -> MarketTensor:
    """Markets of the same assets end to end, as one. features: of all of them."""
    one, bars = markets[0], sum(len(market.times) for market in markets)
    if len(markets) == 1:
        return one
    kept = [name for name in _tables(one) if name != "features"]
    tables: dict[str, Any] = {name: torch.cat([getattr(market, name) for market in markets]) for name in kept}
    tables["features"] = features
    return dataclasses.replace(
        one,
        times=np.concatenate([market.times for market in markets]),
        steps=bars - (len(one.times) - one.steps),
        **tables,
    )


def _tables(market: MarketTensor) -> list[str]:
    """Names of the tensors of a market, which all have one row per bar."""
    return [field.name for field in dataclasses.fields(market) if isinstance(getattr(market, field.name), torch.Tensor)]
