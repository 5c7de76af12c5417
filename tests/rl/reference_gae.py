"""Reference GAE for one account in Python floats, summed forward from each step."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Trajectory(NamedTuple):
    """Tensors of shape [H, P, E]."""

    rewards: torch.Tensor
    values: torch.Tensor
    next_values: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor


def reference_gae(trajectory: Trajectory, p: int, e: int, gamma: float, gae_lambda: float) -> list[float]:
    """Advantages of account e of member p, summed term by term until the episode ends."""
    rewards, values, next_values, terminated, truncated = (x[:, p, e].tolist() for x in trajectory)
    advantages = []
    for start in range(len(rewards)):
        total, factor = 0.0, 1.0
        for h in range(start, len(rewards)):
            bootstrap = 0.0 if terminated[h] else gamma * next_values[h]
            total += factor * (rewards[h] + bootstrap - values[h])
            if terminated[h] or truncated[h]:
                break
            factor *= gamma * gae_lambda
        advantages.append(total)
    return advantages
