"""Generalised advantage estimation, Schulman et al. 2016, with termination and truncation kept apart."""

from __future__ import annotations

import torch

from finrl_pod.types import Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    discount: Tensor,
    gae_lambda: Tensor,
) -> Tensor:
    """Advantages [H, P, E].

    rewards, values: [H, P, E]; next_values: [H, P, E], the value of the state that step h led to, before any reset
    (so a truncated episode is bootstrapped from its own final state). terminated, truncated: [H, P, E] bool.
    discount, gae_lambda: [P].

        delta_h = r_h + discount * V(s_{h+1}) * (not terminated) - V(s_h)
        A_h = delta_h + discount * lambda * (neither terminated nor truncated) * A_{h+1}
    """
    discount, decay = discount.unsqueeze(-1), (discount * gae_lambda).unsqueeze(-1)
    deltas = rewards + discount * next_values * (~terminated) - values
    carry = decay * ~(terminated | truncated)
    advantages = torch.empty_like(rewards)
    running = torch.zeros_like(rewards[0])
    for h in range(rewards.shape[0] - 1, -1, -1):
        running = deltas[h] + carry[h] * running
        advantages[h] = running
    return advantages
