"""Advantages once more: one account, Python floats, each summed forward from its own step."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Trajectory(NamedTuple):
    """[H, P, E] each."""

    rewards: torch.Tensor
    values: torch.Tensor
    next_values: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor


def plain_gae(trajectory: Trajectory, p: int, e: int, discount: float, decay: float) -> list[float]:
    """The account e of member p: term by term until its episode ends."""
    rewards, values, following, terminated, truncated = (x[:, p, e].tolist() for x in trajectory)
    advantages = []
    for start in range(len(rewards)):
        total, factor = 0.0, 1.0
        for h in range(start, len(rewards)):
            ahead = 0.0 if terminated[h] else discount * following[h]
            total += factor * (rewards[h] + ahead - values[h])
            if terminated[h] or truncated[h]:
                break
            factor *= discount * decay
        advantages.append(total)
    return advantages
