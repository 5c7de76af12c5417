"""Scores during training: mean return of the last episodes, its best value, and the curve."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from finrl_pod_envs.gymnasium_pool.env import Episode

LAST = 100  # episodes per score, as in Gymnasium's leaderboards
POINTS = 200  # points of the curve


class Scores:
    """A score is the mean return of a member's last 100 episodes; the score of a run is that of its best member.

    unscored: episodes with NaN returns, which are excluded from the scores.
    """

    def __init__(self, members: int, steps: int) -> None:
        self._last: list[deque[float]] = [deque(maxlen=LAST) for _ in range(members)]
        self._every = max(1, steps // POINTS)
        self.episodes = self.unscored = 0
        self.best: float | None = None
        self.curve: list[list[float]] = []

    def add(self, episodes: Iterable[Episode], samples: int) -> None:
        """Add finished episodes. samples: of each member so far."""
        for episode in episodes:
            self.episodes += 1
            if math.isfinite(episode.total):
                self._last[episode.member].append(episode.total)
            else:
                self.unscored += 1
        now = self.now
        if now is None:
            return
        if self.best is None or now > self.best:
            self.best = now
        if not self.curve or samples >= self.curve[-1][0] + self._every:
            self.curve.append([samples, now])

    @property
    def each(self) -> list[float | None]:
        """Score of each member, None before its first episode ended."""
        return [sum(last) / len(last) if last else None for last in self._last]

    @property
    def now(self) -> float | None:
        """Current score of the best member."""
        return max((score for score in self.each if score is not None), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Values for state.json."""
        last = [list(each) for each in self._last]
        counts = {"episodes": self.episodes, "unscored": self.unscored}
        return {"last": last, **counts, "best": self.best, "curve": self.curve}

    def load(self, values: Mapping[str, Any]) -> None:
        """Restore from `plain`."""
        self._last = [deque(each, maxlen=LAST) for each in values["last"]]
        self.episodes, self.unscored = values["episodes"], values.get("unscored", 0)
        self.best, self.curve = values["best"], list(values["curve"])
