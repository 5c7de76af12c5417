"""A schedule of strategies on one account, as in a walk-forward: each trades from its start until the next start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import feature_lookback_of, lookback_of
from finrl_pod.protocols import Strategy
from finrl_pod.types import Floats, Positions, Times, Window


class ScheduledStrategy:
    """Delegate each bar to the strategy that started last; it takes over the current holdings.

    Before the first start positions are left unchanged. Trades at a change of strategies pay costs like any other.
    """

    def __init__(self, schedule: Sequence[tuple[np.datetime64, Strategy]], name: str = "champion") -> None:
        """schedule: (first bar at which a strategy decides, strategy), in ascending order of time.

        Raises InputError for an empty or unsorted schedule, and for strategies whose features differ.
        """
        if not schedule:
            raise InputError("a schedule needs at least one strategy, got none")
        self.name = name
        self._starts: Times = np.array([start for start, _ in schedule])
        self._strategies = [strategy for _, strategy in schedule]
        if (np.diff(self._starts.astype(np.int64)) <= 0).any():
            raise InputError("the strategies of a schedule must start one after the other; sort them by time")
        self.feature_names = self._strategies[0].feature_names
        if any(strategy.feature_names != self.feature_names for strategy in self._strategies):
            raise InputError("the strategies of a schedule must use the same features in the same order")
        lookbacks = [lookback_of(strategy) for strategy in self._strategies]
        self.lookback = None if None in lookbacks else max(bars for bars in lookbacks if bars is not None)
        self.feature_lookback = max(feature_lookback_of(strategy) for strategy in self._strategies)

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        """Target weights [N] of the active strategy, or None before the first start."""
        current = int(np.searchsorted(self._starts, window.times[-1], "right")) - 1
        if current < 0:
            return None
        strategy = self._strategies[current]
        if window.features is not None and self.feature_lookback > 1:
            bars = feature_lookback_of(strategy)
            own = window.features[-1] if bars == 1 else window.features[-bars:]
            window = replace(window, features=own)
        return strategy.target_weights(window, positions)
