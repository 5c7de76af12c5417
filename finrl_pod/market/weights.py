"""From what a policy says to target weights. The environments and the deployed strategies share it."""

from __future__ import annotations

import torch

from finrl_pod.types import Tensor


def scores_to_weights(scores: Tensor, tradable: Tensor, *, short: bool, leverage: float) -> Tensor:
    """Scores [..., 1 + N] (cash first) -> target weights [..., N] of equity; cash is the rest.

    Long-only: softmax over cash and the tradable assets, times leverage. With shorts: the assets' scores, scaled down
    so that the sum of their absolute values is at most `leverage`. Assets not tradable get weight 0.
    """
    assets = scores[..., 1:]
    if short:
        open_scores = torch.where(tradable, assets, 0.0)
        gross = open_scores.abs().sum(-1, keepdim=True)
        return open_scores * leverage / gross.clamp(min=leverage)
    masked = torch.where(tradable, assets, -torch.inf)
    return torch.softmax(torch.cat([scores[..., :1], masked], -1), -1)[..., 1:] * leverage


def trades_as_weights(
    actions: Tensor, held: Tensor, prices: Tensor, worth: Tensor, *, hmax: float, short: bool, leverage: float
) -> Tensor:
    """Share trades, actions [..., N] in [-1, 1] times hmax, as the target weights [..., N] that they lead to.

    held: [..., N] weights; prices: [..., N]; worth: [...] equity. Sales stop at zero without `short`; what goes beyond
    `leverage` in sum of absolute values is scaled down.
    """
    target = held + actions.clamp(-1, 1) * hmax * prices / worth.unsqueeze(-1)
    if not short:
        target = target.clamp(min=0)
    gross = target.abs().sum(-1, keepdim=True)
    return target * (leverage / gross.clamp(min=leverage))
