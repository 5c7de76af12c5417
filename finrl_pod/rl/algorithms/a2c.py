"""Advantage actor-critic, Mnih et al. 2016, synchronous, for P members in one program.

It is PPO with one epoch over the whole rollout (Huang et al. 2022, arXiv:2205.09123): at the policy that collected the
data every ratio of probabilities is 1, nothing is clipped, and the gradient of ratio x advantage is that of
log-probability x advantage. So rollout, advantages and gradients are PPO's; what differs stands here.
Advantages are not normalised and the optimiser is Adam, where the paper has RMSProp.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from finrl_pod.rl.algorithms.ppo import PPO, ROLLOUT_RANGES, explained
from finrl_pod.rl.buffers.rollout import Rollout
from finrl_pod.rl.training.optimiser import clip_by_member
from finrl_pod.settings.constraints import Ranges
from finrl_pod.types import Tensor

NEVER = 1e9


class A2C(PPO):
    """Every iteration: a short rollout, its advantages, one step of all that is alive."""

    RANGES: ClassVar[Ranges] = ROLLOUT_RANGES

    @property
    def gradient_steps(self) -> int:
        return 1

    @property
    def clip(self) -> Tensor:
        """[P]: beyond any ratio."""
        return torch.full_like(self.settings["learning_rate"], NEVER)

    def update(self, rollout: Rollout, learning_rate_factor: float = 1.0) -> dict[str, Tensor]:
        """One step up the rollout's policy gradient and down its value loss; returns diagnostics, [P] each."""
        data, values = self._examples(rollout)
        gradient, figures = self._gradient(data)
        if self.additions is not None:
            gradient = gradient + self.additions.gradient(data[0], data[1], self.alive)
        policy_loss, value_loss = figures[2], figures[3]
        gradient, norm = clip_by_member(gradient, self.settings["max_grad_norm"])
        # A member whose loss is no longer a number stops here, with the parameters it had.
        self.alive = self.alive & torch.isfinite(norm + policy_loss + value_loss)
        rate = self.settings["learning_rate"] * learning_rate_factor
        self.optimiser.step(self.parameters.flat, gradient, rate, self.alive)
        return {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "grad_norm": norm,
            "explained_variance": explained(values, data[-1]),
            "entropy": self.entropy(data),
            "reward": rollout.reward.mean(dim=(0, 2, 3)),
        }
