"""Randomised ensembled double Q-learning, Chen et al. 2021: soft actor-critic with many critics and many updates.

The target is the minimum over a random subset of the critics, drawn anew for each update; the actor climbs the mean of
all of them, once every `policy_delay` updates.
"""

from __future__ import annotations

from finrl_pod.agents import REDQConfig
from finrl_pod.rl.sac import SAC


class REDQ(SAC):
    """Between two steps of the actor its figures are those of the last."""

    config: REDQConfig
    KERNEL = True
    climbs = "mean"

    @property
    def delay(self) -> int:  # type: ignore[override]
        return self.config.policy_delay
