"""The flat observation: what libraries that know nothing of the shared table are handed, one long row an account."""

from __future__ import annotations

import torch

from finrl_pod.types import MarketTensor, Observation, Tensor


def flat_size(market: MarketTensor) -> int:
    """1 + N + N * F: cash, holdings, then the features of the first asset, of the second, ..."""
    _, n, f = market.shape
    return 1 + n + n * f


def flat(market: MarketTensor, observation: Observation, out: Tensor | None = None) -> Tensor:
    """[P, E, 1 + N + N * F] float32: account, then the decision bar's row of the features, asset by asset.

    out: a tensor of that shape to write into, for a caller who has no need of the one before.
    """
    day, account = observation
    p, g = day.shape
    _, e, own = account.shape
    if out is None:
        out = torch.empty(p, e, flat_size(market), device=account.device)
    out[..., :own] = account
    out.view(p, g, e // g, -1)[..., own:] = market.features[day].flatten(2).unsqueeze(2)
    return out
