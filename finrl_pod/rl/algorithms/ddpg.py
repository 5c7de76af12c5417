"""Deterministic policy gradients: DDPG (Lillicrap et al. 2016) and TD3 (Fujimoto et al. 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from finrl_pod.rl.algorithms.actor_critic import ActorCritic
from finrl_pod.rl.algorithms.off_policy import Batch, OffPolicy
from finrl_pod.rl.networks.layers import Params
from finrl_pod.rl.networks.observation_adapter import ModelInput
from finrl_pod.rl.optimisation.train_state import RateFactor
from finrl_pod.types import Tensor


class DDPG(ActorCritic):
    """Each update fits the critics to r + gamma Q'(s', mu'(s')), then moves the actor up the first critic."""

    MEMBER_SETTINGS: ClassVar[tuple[str, ...]] = (*OffPolicy.MEMBER_SETTINGS, "exploration_noise")
    METRICS = (*OffPolicy.METRICS, "actor_loss")
    ACTOR_TARGET = True
    KERNEL = True
    actor_rule = "first"

    def _sample_action(self, items: Mapping[str, Tensor]) -> Tensor:
        action = self._action(self.weights(), self.adapter.decode(items))
        std = self.settings["exploration_noise"].view(-1, 1, 1, 1)
        return (action + std * self._noise(action.shape[1])).clamp(-1, 1)

    def _action(self, params: Params, obs: ModelInput) -> Tensor:
        return torch.tanh(self.network.forward(params, obs)[0])

    def next_action(self, obs: ModelInput, noise: Tensor) -> Tensor:  # noqa: ARG002  used by TD3
        """Action of the target actor in the next state: [P, K, A, D]."""
        return self._action(self.train_state.targets["actor"].views, obs)

    def _update(self, batch: Batch, noise: Tensor, factor: RateFactor) -> list[Tensor]:
        if self._kernel is not None:
            metrics = self._update_critics_native(self._kernel, batch, noise, factor)
        else:
            with torch.no_grad():
                next_values = self.next_values(batch.next_obs, self.next_action(batch.next_obs, noise))
            metrics = self._update_critics(batch, next_values, factor)
        if self.updates_actor:
            self.actor_metrics = [self._update_actor(batch, factor)]
            self._update_targets(self.updates // self.delay)
        return [*metrics, *self.actor_metrics]

    def _update_actor(self, batch: Batch, factor: RateFactor) -> Tensor:
        """One gradient step of the actor; returns its loss [P]."""
        if self._kernel is not None:
            gradient, loss, _ = self._kernel.actor()
            self.train_state.apply_gradient("actor", gradient, loss, factor)
            return loss
        action = self._action(self.train_state.views("actor"), batch.obs)
        # The first critic of each member.
        first = {name: view[:: self.critics] for name, view in self._critic_weights.items()}
        loss = -self.values(first, batch.obs, action, 1).mean((1, 2, 3))
        self.train_state.gradient_step("actor", loss, factor)
        return loss.detach()


class TD3(DDPG):
    """DDPG with target policy smoothing, a critic ensemble, and delayed updates of the actor and the targets."""

    KERNEL = True
    MEMBER_SETTINGS: ClassVar[tuple[str, ...]] = (*DDPG.MEMBER_SETTINGS, "target_noise", "noise_clip")

    def _noise_shape(self) -> tuple[int, ...]:
        return (self.items, self.adapter.accounts, self.spec.action_size)

    def next_action(self, obs: ModelInput, noise: Tensor) -> Tensor:
        """Smoothed target action: mu'(s') + clip(noise, +-noise_clip), clipped to [-1, 1]."""
        std, limit = (self.settings[name].view(-1, 1, 1, 1) for name in ("target_noise", "noise_clip"))
        noise = torch.maximum(torch.minimum(noise * std, limit), -limit)
        return (super().next_action(obs, noise) + noise).clamp(-1, 1)
