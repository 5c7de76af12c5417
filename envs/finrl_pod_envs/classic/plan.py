"""What is to be stepped."""

from __future__ import annotations

from dataclasses import dataclass

from finrl_pod_envs.classic.spaces import Shapes


@dataclass(frozen=True)
class Plan:
    """Environments of one name, with a seed stream for each lane."""

    name: str
    shapes: Shapes
    streams: tuple[int, ...]
