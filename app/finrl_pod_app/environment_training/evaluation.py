"""Scores during training, and evaluation of trained agents without exploration."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from finrl_pod_envs.gymnasium_pool.env import Episode

from finrl_pod.errors import Interrupted
from finrl_pod.files import to_plain
from finrl_pod.random import key
from finrl_pod.rl.experience.rollout import EpisodeReturns, episode_returns
from finrl_pod.types import Tensor
from finrl_pod_app.environment_training.config import TrainingConfig, open_env

LAST = 100  # episodes per score, as in the leaderboards of Gymnasium
POINTS = 200  # points of the curve
EPISODES = 10

Act = Callable[[Any], Tensor]


class Scores:
    """Scores of the members: mean return of the last 100 episodes. The score of a run is the highest one.

    unscored_count: number of episodes with NaN returns; the scores exclude them.
    """

    def __init__(self, members: int, steps: int) -> None:
        self._last: list[deque[float]] = [deque(maxlen=LAST) for _ in range(members)]
        self._point_distance = max(1, steps // POINTS)
        self.episodes = self.unscored_count = 0
        self.best: float | None = None
        self.curve: list[list[float]] = []

    def add(self, episodes: Iterable[Episode], samples: int) -> None:
        """Add finished episodes. samples: environment steps per member so far."""
        for episode in episodes:
            self.episodes += 1
            if math.isfinite(episode.total):
                self._last[episode.member].append(episode.total)
            else:
                self.unscored_count += 1
        now = self.now
        if now is None:
            return
        if self.best is None or now > self.best:
            self.best = now
        if not self.curve or samples >= self.curve[-1][0] + self._point_distance:
            self.curve.append([samples, now])

    @property
    def member_scores(self) -> list[float | None]:
        """Score of each member, None before its first episode ended."""
        return [sum(last) / len(last) if last else None for last in self._last]

    @property
    def now(self) -> float | None:
        """Current score of the best member."""
        return max((score for score in self.member_scores if score is not None), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Values for state.json."""
        last = [list(returns) for returns in self._last]
        counts = {"episodes": self.episodes, "unscored": self.unscored_count}
        return {"last": last, **counts, "best": self.best, "curve": self.curve}

    def load(self, values: Mapping[str, Any]) -> None:
        """Restore the values of `to_dict`."""
        self._last = [deque(returns, maxlen=LAST) for returns in values["last"]]
        self.episodes = values["episodes"]
        self.unscored_count = values.get("unscored", 0)
        self.best = values["best"]
        self.curve = list(values["curve"])


def evaluate(
    act: Act, config: TrainingConfig, episodes: int, is_stopped: Callable[[], object] = lambda: False
) -> dict[str, Any] | None:
    """Mean and standard deviation of episode returns for each member, and for all members deciding together.

    Uses its own seeds. NaN returns become None; None if episodes < 1. cut: number of episodes without an end, each of
    `MAX_STEPS`. is_stopped: checked after each step. Raises Interrupted if it returns a true value, RunError if an
    environment fails.
    """
    if episodes < 1:
        return None
    member_returns, cut = _returns(act, config, episodes, is_stopped)
    result: dict[str, Any] = {
        "episodes": episodes,
        "cut": cut.sum(1).tolist(),
        "mean": to_plain(member_returns.mean(1).tolist()),
        "std": to_plain(member_returns.std(1, correction=0).tolist()),
    }
    if config.members > 1:
        returns, cut = _returns(ensemble_decision(act, config.members), config, episodes, is_stopped)
        result["ensemble"] = {
            "episodes": returns.numel(),
            "cut": int(cut.sum()),
            "mean": to_plain(float(returns.mean())),
            "std": to_plain(float(returns.std(correction=0))),
        }
    return result


def ensemble_decision(act: Act, members: int) -> Act:
    """Joint decision of all members: the mean of their clipped actions, or their majority choice (ties: the lowest).

    act: rows [P, E, ...] -> actions [P, E, D], one row per member.
    """

    def decide(rows: Any) -> Tensor:
        # Member p acts on the rows of member p - k; its action is moved back to them.
        actions = torch.stack([act(rows.roll(k, 0)).roll(-k, 0) for k in range(members)])  # [P, P, E, D]
        if actions.is_floating_point():
            return actions.clamp(-1.0, 1.0).mean(0)
        votes = torch.nn.functional.one_hot(actions).sum(0)
        return votes.argmax(-1)

    return decide


def _returns(act: Act, config: TrainingConfig, episodes: int, is_stopped: Callable[[], object]) -> EpisodeReturns:
    """Returns of the episodes, [P, episodes] each."""
    total = config.members * episodes
    workers = max((n for n in range(1, config.workers + 1) if total % n == 0), default=None)
    env = open_env(
        config.env, envs=episodes, members=range(config.members), workers=workers, seconds=config.worker_timeout,
        device=config.device,
    )  # fmt: skip

    def check_for_stop() -> None:
        if is_stopped():
            raise Interrupted("the evaluation was stopped")

    with contextlib.closing(env):
        return episode_returns(env, act, key(config.seed, 0, "evaluation"), check_for_stop)
