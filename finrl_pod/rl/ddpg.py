"""Deep deterministic policy gradient, Lillicrap et al. 2016: the actor climbs its critic, targets follow slowly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from finrl_pod.ranges import Ranges, at_least
from finrl_pod.rl.actor_critic import ActorCritic
from finrl_pod.rl.inputs import Seen
from finrl_pod.rl.off_policy import Batch, OffPolicy
from finrl_pod.types import Tensor


class DDPG(ActorCritic):
    """Every update: the critics towards r + discount Q'(s', mu'(s')), then the actor up the first critic."""

    RANGES: ClassVar[Ranges] = {**OffPolicy.RANGES, "exploration": at_least(0)}
    FIGURES = (*OffPolicy.FIGURES, "actor_loss")
    ACTOR_TARGET = True
    KERNEL = True
    climbs = "first"

    def _explore(self, items: Mapping[str, Tensor]) -> Tensor:
        action = self._action(self.weights(), self.inputs.see(items))
        spread = self.settings["exploration"].view(-1, 1, 1, 1)
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
