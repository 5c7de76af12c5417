"""Rollouts of on-policy algorithms, and generalised advantage estimation (Schulman et al. 2016)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from finrl_pod.types import Observation, Tensor


class Rollout(NamedTuple):
    """H steps of P members, G groups of A accounts. Market features are not copied: bars index the feature table.

    bar: [H, P, G] int64; account: [H, P, G, A, 1 + N]; action: [H, P, G, A, D]; log_probability, reward: [H, P, G, A];
    terminated, truncated: [H, P, G, A] bool; last: the observation after the last step.
    truncated_groups: [H, P, G] bool, steps at which a group's window or episode was truncated. final_observations:
    those before the resets; final_observations[r] holds the r-th of each group: (bar [P, G], account [P, E, 1 + N]). On
    a market there is at most one. Flat observations are stored as accounts of bar 0, one environment a group.
    """

    bar: Tensor
    account: Tensor
    action: Tensor
    log_probability: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    last: Observation
    final_observations: tuple[Observation, ...]
    truncated_groups: Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    discount: Tensor,
    gae_lambda: Tensor,
) -> Tensor:
    """Generalised advantage estimates [H, P, E].

    rewards, values: [H, P, E]; next_values: [H, P, E], values of the states that the steps led to, before any reset
    (a truncated episode is bootstrapped from its final state). terminated, truncated: [H, P, E] bool.
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
