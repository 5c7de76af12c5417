"""When a run stops: at its wall-clock limit."""

from __future__ import annotations

import math
from collections.abc import Callable

from finrl_pod.settings.run import TournamentConfig


class Budget:
    """Measures the seconds of training across the processes of a run, and says when a limit is reached."""

    def __init__(self, config: TournamentConfig, clock: Callable[[], float], spent: float = 0.0) -> None:
        """clock: seconds, from any origin. spent: seconds of training before this process."""
        self._config, self._clock, self._origin = config, clock, clock() - spent

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return self._clock() - self._origin

    def share(self, rounds: int) -> float:
        """Seconds for the next of so many rounds, which share what is left of the limit equally."""
        return max((self._config.seconds or math.inf) - self.seconds, 0.0) / rounds

    @property
    def is_spent(self) -> bool:
        """Whether no more assignments may start."""
        return bool(self._config.seconds) and self.seconds >= self._config.seconds
