"""Advantage actor-critic (Mnih et al. 2016), synchronous, for P members in one program.

A2C is PPO with one epoch over the whole rollout (Huang et al. 2022, arXiv:2205.09123): at the policy that collected the
data every probability ratio is 1, nothing is clipped, and ratio x advantage has the same gradient as
log-probability x advantage. Rollout, advantages and gradients are inherited from PPO. Advantages are not standardised;
the default optimiser is Adam, where the paper uses RMSProp.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from finrl_pod.rl.algorithms.base import Metrics
from finrl_pod.rl.algorithms.ppo import PPO, ROLLOUT_SETTINGS, explained_variance, flatten
from finrl_pod.rl.experience.rollout import Rollout, to_items
from finrl_pod.rl.optimisation.train_state import RateFactor
from finrl_pod.types import Tensor

NO_CLIP = 1e9


class A2C(PPO):
    """A2C of P members: each iteration is a short rollout and one gradient step on all of it."""

    MEMBER_SETTINGS: ClassVar[tuple[str, ...]] = ROLLOUT_SETTINGS

    @property
    def gradient_steps(self) -> int:
        return 1

    @property
    def clip(self) -> Tensor:
        """[P], larger than any probability ratio."""
        return torch.full_like(self.settings["learning_rate"], NO_CLIP)

    def update(self, rollout: Rollout, learning_rate_factor: RateFactor = 1.0) -> Metrics:
        """One gradient step on the rollout; returns diagnostics, [P] each."""
        values, advantage, target = self._advantages(rollout)  # [H, P, G, A] each
        data = flatten(rollout, advantage, target)  # [P, I, ...] each
        rate = self.settings["learning_rate"] * learning_rate_factor
        _, _, policy_loss, value_loss, norm = self._step(data, rate, self.alive)
        return {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "grad_norm": norm,
            "explained_variance": explained_variance(to_items(values), data[-1]),
            "entropy": self.entropy(data),
            "reward": rollout.reward.mean(dim=(0, 2, 3)),
        }
