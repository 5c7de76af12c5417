"""Twin delayed DDPG, Fujimoto et al. 2018: the lower of two critics, smoothed targets, an actor that learns later."""

from __future__ import annotations

from typing import ClassVar

import torch

from finrl_pod.agents import TD3Config
from finrl_pod.ranges import Ranges, at_least
from finrl_pod.rl.ddpg import DDPG
from finrl_pod.rl.inputs import Seen
from finrl_pod.types import Tensor


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
