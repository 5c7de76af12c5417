"""Target networks: a slow copy of some parameters."""

from __future__ import annotations

import torch

from finrl_pod.rl.parameters import Parameters
from finrl_pod.types import Tensor


class Target:
    """views: name -> [R, ...], without gradients; they follow the parameters at a rate of each row's own."""

    def __init__(self, parameters: Parameters) -> None:
        self.source, self.flat = parameters, parameters.flat.clone()
        self.views = parameters.views_of(self.flat)

    @torch.no_grad()
    def follow(self, rate: Tensor, active: Tensor | None) -> None:
        """Move by rate [R] of the way; active [R] bool: rows that move, None for all."""
        if active is not None:
            rate = torch.where(active, rate, 0.0)
            # A row that stays must not read a source that is no number.
            source = torch.where(active.unsqueeze(1), self.source.flat, self.flat)
        else:
            source = self.source.flat
        self.flat.lerp_(source, rate.unsqueeze(1))

    def row(self, r: int) -> Tensor:
        """A copy of one row on the CPU: [D]."""
        return self.flat[r].cpu().clone()

    def load(self, r: int, values: Tensor) -> None:
        """Overwrite one row."""
        self.flat[r].copy_(values)
