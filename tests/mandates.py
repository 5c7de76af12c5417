"""Random mandates for tests of environments."""

from __future__ import annotations

import dataclasses

import torch
from hypothesis import strategies as st

from finrl_pod.settings.run import MandateConfig
from finrl_pod.types import MarketTensor

mandates = st.builds(
    MandateConfig,
    base=st.sampled_from(["none", "equal_weight", "random"]),
    tilt=st.sampled_from([0.0, 0.5, 3.0]),
    trade_speed=st.sampled_from([0.05, 0.5, 1.0]),
    max_weight=st.sampled_from([1.0, 1.0, 0.5, 0.12]),
    max_turnover=st.sampled_from([0.0, 0.0, 0.5, 4.0]),
    decide_every=st.sampled_from([1, 1, 3, "week"]),
)


def with_random_base(market: MarketTensor, seed: int) -> MarketTensor:
    """Base weights that add up to at most 1, of which a third are 0."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.rand(market.tradable.shape, generator=generator, dtype=torch.float64)
    base = torch.where((base > 0.3) & market.tradable, base, 0.0)
    invested = torch.rand(len(base), 1, generator=generator, dtype=torch.float64).clamp(min=0.5)
    return dataclasses.replace(market, base=base * invested / base.sum(-1, keepdim=True).clamp(min=1e-9))


def fitting(mandate: MandateConfig, assets: int) -> MandateConfig:
    """The mandate with a limit on weights that this number of assets can hold."""
    return dataclasses.replace(mandate, max_weight=max(mandate.max_weight, min(1.0, 1.01 / assets)))
