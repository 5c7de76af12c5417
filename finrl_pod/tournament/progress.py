"""How far a run is, for whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """stage: in words. samples, total_samples: environment steps over all pods. best: highest validation score yet.

    seconds_left: an estimate for the training, None before there is one.
    """

    stage: str
    samples: int
    total_samples: int
    samples_per_second: float
    best: float | None
    seconds_left: float | None
    detail: str = ""
