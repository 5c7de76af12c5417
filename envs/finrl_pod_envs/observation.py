"""The flat observation: what libraries that know nothing of the shared table are handed, one long row an account."""

from __future__ import annotations

import torch

from finrl_pod.types import MarketTensor, Observation, Tensor


def flat_size(market: MarketTensor) -> int:
    """1 + N + N * F: cash, holdings, then the features of the first asset, of the second, ..."""
    _, n, f = market.shape
    return 1 + n + n * f


def flat(market: MarketTensor, observation: Observation) -> Tensor:
    """[P, E, 1 + N + N * F] float32: account, then the decision bar's row of the features, asset by asset."""
    day, account = observation
    p, g = day.shape
    e = account.shape[1]
    rows = market.features[day].flatten(2)  # [P, G, N * F]
    rows = rows.unsqueeze(2).expand(p, g, e // g, -1).reshape(p, e, -1)
    return torch.cat([account.to(torch.float32), rows.to(torch.float32)], -1)
