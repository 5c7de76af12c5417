"""Randomised ensembled double Q-learning, Chen et al. 2021: soft actor-critic with many critics and many updates.

The target is the minimum over a random subset of the critics, drawn anew for each update; the actor climbs the mean of
all of them, once every `policy_delay` updates.
"""

from __future__ import annotations

from finrl_pod.agents import REDQConfig
from finrl_pod.rl.off_policy import Batch
from finrl_pod.rl.sac import SAC
from finrl_pod.types import Tensor


class REDQ(SAC):
    """Between two steps of the actor its figures are those of the last."""

    config: REDQConfig

    def _kernel(self) -> None:
        return None  # it knows no steps without the actor

    def _improve(self, batch: Batch, noise: Tensor, temperature: Tensor, factor: float) -> list[Tensor]:
        if self.updates % self.config.policy_delay == 0:
            self.improved = super()._improve(batch, noise, temperature, factor)
        return self.improved

    def actor_values(self, values: Tensor) -> Tensor:
        return values.mean(1)
