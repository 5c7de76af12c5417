"""Progress of a run, and its limit of seconds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from finrl_pod.settings.run import TournamentConfig


@dataclass(frozen=True)
class Progress:
    """Progress of a training run.

    stage: name of the current stage. samples, total_samples: environment steps over all pods, so far and in total.
    best: highest validation score so far. base: score of the base portfolio before costs, None without a market.
    seconds_left: estimate for the training, None until there is one. detail: further text to show.
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


class Budget:
    """Measures the seconds of training across the processes of a run, and says when a limit is reached."""

    def __init__(self, config: TournamentConfig, clock: Callable[[], float], seconds_before: float = 0.0) -> None:
        """clock: seconds, from any origin. seconds_before: seconds of training in earlier processes."""
        self._config = config
        self._clock = clock
        self._origin = clock() - seconds_before

    @property
    def seconds(self) -> float:
        return self._clock() - self._origin

    def share(self, rounds: int) -> float:
        """Seconds for the next of `rounds` rounds that share the remaining time equally."""
        return max((self._config.seconds or math.inf) - self.seconds, 0.0) / rounds

    @property
    def is_spent(self) -> bool:
        """Whether no more assignments may start."""
        return bool(self._config.seconds) and self.seconds >= self._config.seconds
