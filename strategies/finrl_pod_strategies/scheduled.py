"""One strategy after another on one account: the champions of a walk-forward, each for the bars of its fold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from finrl_pod.errors import InputError
from finrl_pod.protocols import Strategy
from finrl_pod.types import Floats, Positions, Times, Window


class ScheduledStrategy:
    """At each bar the strategy that took over last decides; what the one before it held is handed on and costs."""

    def __init__(self, legs: Sequence[tuple[np.datetime64, Strategy]], name: str = "champion") -> None:
        """legs: (first bar at which a strategy decides, strategy), by time. All must ask for the same features."""
        if not legs:
            raise InputError("a relay needs one strategy at least")
        self.name = name
        self._starts: Times = np.array([start for start, _ in legs])
        self._runners = [runner for _, runner in legs]
        if (np.diff(self._starts.astype(np.int64)) <= 0).any():
            raise InputError("the strategies of a relay take over one after the other: sort them by time")
        self.feature_names = self._runners[0].feature_names
        if any(runner.feature_names != self.feature_names for runner in self._runners):
            raise InputError("the strategies of a relay must ask for the same features in the same order")
        back = [getattr(runner, "lookback", None) for runner in self._runners]
        self.lookback = None if None in back else max(bars for bars in back if bars is not None)

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        leg = int(np.searchsorted(self._starts, window.times[-1], "right")) - 1
        if leg < 0:
            return None
        return self._runners[leg].target_weights(window, positions)
