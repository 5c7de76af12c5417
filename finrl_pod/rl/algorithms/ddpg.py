"""Deterministic policy gradients: DDPG (Lillicrap et al. 2016) and TD3 (Fujimoto et al. 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from finrl_pod.rl.algorithms.actor_critic import ActorCritic
from finrl_pod.rl.algorithms.off_policy import Batch, OffPolicy
from finrl_pod.rl.networks.observation_adapter import Seen
from finrl_pod.settings.algorithm_configs import TD3Config
from finrl_pod.settings.constraints import Ranges, at_least
from finrl_pod.types import Tensor


class DDPG(ActorCritic):
    """Every update: the critics towards r + discount Q'(s', mu'(s')), then the actor up the first critic."""

    RANGES: ClassVar[Ranges] = {**OffPolicy.RANGES, "exploration_noise": at_least(0)}
    FIGURES = (*OffPolicy.FIGURES, "actor_loss")
    ACTOR_TARGET = True
    KERNEL = True
    climbs = "first"

    def _explore(self, items: Mapping[str, Tensor]) -> Tensor:
        action = self._action(self.weights(), self.inputs.see(items))
        spread = self.settings["exploration_noise"].view(-1, 1, 1, 1)
        return (action + spread * self._noise(action.shape[1])).clamp(-1, 1)

    def _action(self, params: Mapping[str, Tensor], seen: Seen) -> Tensor:
        return torch.tanh(self.network.forward(params, seen)[0])

    def next_action(self, seen: Seen, extra: Tensor) -> Tensor:  # noqa: ARG002  for those that smooth it
        """The target actor's action in the next state: [P, K, A, D]."""
        return self._action(self.trained.targets["actor"].views, seen)

    def _update(self, batch: Batch, extra: Tensor, factor: float) -> list[Tensor]:
        if self._fused is not None:
            figures = self._fit_critics_fused(self._fused, batch, extra, factor)
        else:
            with torch.no_grad():
                following = self.next_values(batch.following, self.next_action(batch.following, extra))
            figures = self._fit_critics(batch, following, factor)
        if self.improves:
            self.improved = [self._improve(batch, factor)]
            self._follow(self.updates // self.delay)
        return [*figures, *self.improved]

    def _improve(self, batch: Batch, factor: float) -> Tensor:
        """One step of the actor; returns its loss [P]."""
        if self._fused is not None:
            gradient, loss, _ = self._fused.actor()
            self.trained.step("actor", gradient, loss, factor)
            return loss
        action = self._action(self.trained.views("actor"), batch.seen)
        first = {name: view[:: self.critics] for name, view in self._fixed.items()}  # one critic a member
        loss = -self.values(first, batch.seen, action, 1).mean((1, 2, 3))
        self.trained.descend("actor", loss, factor)
        return loss.detach()


class TD3(DDPG):
    """DDPG with target policy smoothing, a critic ensemble, and a delay of the actor and the targets."""

    config: TD3Config
    KERNEL = True
    RANGES: ClassVar[Ranges] = {**DDPG.RANGES, "target_noise": at_least(0), "noise_clip": at_least(0)}

    @property
    def delay(self) -> int:  # type: ignore[override]
        return self.config.policy_delay

    def _extra_shape(self) -> tuple[int, ...]:
        return (self.items, self.inputs.accounts, self.spec.action_size)

    def next_action(self, seen: Seen, extra: Tensor) -> Tensor:
        """mu'(s') + clip(noise, +-noise_clip), within the bounds of actions."""
        spread, most = (self.settings[name].view(-1, 1, 1, 1) for name in ("target_noise", "noise_clip"))
        noise = torch.maximum(torch.minimum(extra * spread, most), -most)
        return (super().next_action(seen, extra) + noise).clamp(-1, 1)
