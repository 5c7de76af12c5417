"""When a run stops: wall-clock time, environment steps, or a plateau of the best score."""

from __future__ import annotations

import math
from collections.abc import Callable

from finrl_pod.settings.run import TournamentConfig
from finrl_pod.tournament.run_state import RunState


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

    def is_spent(self, state: RunState) -> bool:
        """Whether no more assignments may start."""
        config = self._config
        over_time = bool(config.seconds) and self.seconds >= config.seconds
        over_samples = bool(config.total_samples) and state.samples >= config.total_samples
        return over_time or over_samples or self._on_plateau(state)

    def _on_plateau(self, state: RunState) -> bool:
        """Whether the best score of the last `plateau` generations is not above that of all before them."""
        recent = self._config.plateau
        if not recent or state.generation < recent:
            return False
        first = state.generation - recent + 1
        scores = [past for past in state.history.values() if math.isfinite(past.score)]
        before = max((past.score for past in scores if past.generation < first), default=-math.inf)
        return max((past.score for past in scores if past.generation >= first), default=-math.inf) <= before
