"""Scores during training, and evaluation of trained agents without exploration."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from finrl_pod_envs.gymnasium_pool.env import Episode

from finrl_pod.errors import Interrupted
from finrl_pod.files import to_plain
from finrl_pod.random import key
from finrl_pod.rl.experience import EpisodeReturns, episode_returns
from finrl_pod.types import Tensor
from finrl_pod_app.environment_training.config import TrainingConfig
from finrl_pod_app.environment_training.environments import acting_env
from finrl_pod_app.setup.output_folder import JsonRecord

LAST = 100  # episodes per score, as in the leaderboards of Gymnasium
POINTS = 200  # points of the curve
EPISODES = 10
EPISODE_METRICS = ("episode_return", "episode_length")

Act = Callable[[Any], Tensor]


@dataclass(frozen=True)
class EnsembleReturns:
    """Returns of all members deciding together. cut: number of episodes without an end."""

    episodes: int
    cut: int
    mean: float | None
    std: float | None


@dataclass(frozen=True)
class EvaluationResult(JsonRecord):
    """Mean and standard deviation of the returns of each member or agent of many, None if undefined.

    cut: number of episodes without an end, each of `MAX_STEPS`. ensemble: None for a single member.
    """

    episodes: int
    cut: list[int]
    mean: list[float | None]
    std: list[float | None]
    ensemble: EnsembleReturns | None = None


@dataclass
class Scores:
    """Scores of the members: mean return of the last 100 episodes. The score of a run is the highest one.

    last: recent returns of each member. unscored: number of episodes with NaN returns; the scores exclude them.
    """

    last: list[list[float]]
    episodes: int = 0
    unscored: int = 0
    best: float | None = None
    curve: list[tuple[int, float]] = field(default_factory=list)

    def add(self, episodes: Iterable[Episode], samples: int, steps: int) -> None:
        """Add finished episodes. samples: environment steps per member so far, of `steps`."""
        for episode in episodes:
            self.episodes += 1
            if math.isfinite(episode.total):
                self.last[episode.member] = [*self.last[episode.member], episode.total][-LAST:]
            else:
                self.unscored += 1
        now = self.now
        if now is None:
            return
        if self.best is None or now > self.best:
            self.best = now
        if not self.curve or samples >= self.curve[-1][0] + max(1, steps // POINTS):
            self.curve.append((samples, now))

    @property
    def member_scores(self) -> list[float | None]:
        """Score of each member, None before its first episode ended."""
        return [sum(returns) / len(returns) if returns else None for returns in self.last]

    @property
    def now(self) -> float | None:
        """Current score of the best member."""
        return max((score for score in self.member_scores if score is not None), default=None)


def episode_metrics(episodes: Sequence[Episode], members: int) -> dict[str, Tensor]:
    """Mean return and mean length of the episodes of each member [P], NaN for a member without one."""
    columns: dict[str, list[list[float]]] = {name: [[] for _ in range(members)] for name in EPISODE_METRICS}
    for episode in episodes:
        for rows, value in zip(columns.values(), (episode.total, episode.steps), strict=True):
            rows[episode.member].append(value)
    return {
        name: torch.tensor([sum(values) / len(values) if values else math.nan for values in rows])
        for name, rows in columns.items()
    }


def evaluate(
    act: Act, config: TrainingConfig, episodes: int, is_stopped: Callable[[], object] = lambda: False
) -> EvaluationResult | None:
    """Evaluate each member, and all members deciding together; None if episodes < 1.

    The episodes have their own seeds. is_stopped: checked after each step. Raises Interrupted if it returns a true
    value, RunError if an environment fails.
    """
    if episodes < 1:
        return None
    ensemble = None
    member_returns, cut = _returns(act, config, episodes, is_stopped)
    if config.members > 1:
        returns, ensemble_cut = _returns(ensemble_decision(act, config.members), config, episodes, is_stopped)
        statistics = (returns.mean().item(), returns.std(correction=0).item())
        ensemble = EnsembleReturns(returns.numel(), int(ensemble_cut.sum()), *to_plain(statistics))
    statistics_by_member = (member_returns.mean(1), member_returns.std(1, correction=0))
    mean, std = to_plain([x.tolist() for x in statistics_by_member])
    return EvaluationResult(episodes, cut.sum(1).tolist(), mean, std, ensemble)


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
    workers = max((n for n in range(1, config.workers + 1) if total % n == 0), default=0)
    env = acting_env(config, envs=episodes, workers=workers)

    def check_for_stop() -> None:
        if is_stopped():
            raise Interrupted("the evaluation was stopped")

    with contextlib.closing(env):
        return episode_returns(env, act, key(config.seed, 0, "evaluation"), check_for_stop)
