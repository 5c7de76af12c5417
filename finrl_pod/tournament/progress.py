"""Progress of a run, and the callback that receives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Progress of a training run.

    stage: what is being done. samples, total_samples: environment steps over all pods, so far and in total.
    best: highest validation score so far. base: that of the base portfolio before costs, None off a market.
    seconds_left: estimate for the training, None until there is one. detail: further text for a person.
    """

    stage: str
    samples: int
    total_samples: int
    samples_per_second: float
    best: float | None
    seconds_left: float | None
    detail: str = ""
    base: float | None = None


ProgressCallback = Callable[[Progress], None]
