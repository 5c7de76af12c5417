"""Discrete actions on a market: one choice picks an asset and a move."""

from __future__ import annotations

from dataclasses import replace

import torch

from finrl_pod.market.execution import ExecutionRules, execute
from finrl_pod.types import Tensor


def number_of_choices(assets: int) -> int:
    """Hold on, buy one of N, sell one of N."""
    return 2 * assets + 1


def wanted_change(choice: Tensor, assets: int, lot: float) -> Tensor:
    """Change of the weights of equity [..., N] (float64) that a choice [...] wants.

    0: none; 1 to N: `lot` more of asset n; N + 1 to 2 N: `lot` less of asset n.
    """
    moves = torch.nn.functional.one_hot(choice.long(), number_of_choices(assets)).double()
    return (moves[..., 1 : assets + 1] - moves[..., assets + 1 :]) * lot


def choices_as_weights(choice: Tensor, held: Tensor, tradable: Tensor, *, lot: float, rules: ExecutionRules) -> Tensor:
    """The target weights [..., N] that a choice [...] leads to at today's prices.

    held: [..., N] weights. No more is sold than is held, no more bought than the cash pays for, costs included.
    """
    change = torch.where(tradable, wanted_change(choice, held.shape[-1], lot), 0.0)
    change = torch.maximum(change, -held)
    fractions = replace(rules, whole_shares=False)
    return execute(1 - held.sum(-1), held, change, torch.ones_like(held), fractions).shares
