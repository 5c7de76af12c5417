"""Evaluation of trained agents without exploration: each member, and all members together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from finrl_pod.errors import Interrupted
from finrl_pod.files import to_plain
from finrl_pod.random import key
from finrl_pod.rl.experience.rollout import EpisodeReturns, episode_returns
from finrl_pod.types import Tensor
from finrl_pod_app.environment_training.config import TrainingConfig
from finrl_pod_app.environment_training.environments import open_env

EPISODES = 10

Act = Callable[[Any], Tensor]


def evaluate(
    act: Act, config: TrainingConfig, episodes: int, stopped: Callable[[], object] = lambda: False
) -> dict[str, Any] | None:
    """Mean and standard deviation of episode returns for each member, and for all members deciding together.

    Uses its own seeds. NaN returns become None; None if episodes < 1. cut: number of episodes without an end, each of
    `MAX_STEPS`. stopped: checked after each step. Raises
    Interrupted if it returns a true value, RunError if an environment fails.
    """
    if episodes < 1:
        return None
    each, cut = _returns(act, config, episodes, stopped)
    found: dict[str, Any] = {
        "episodes": episodes,
        "cut": cut.sum(1).tolist(),
        "mean": to_plain(each.mean(1).tolist()),
        "std": to_plain(each.std(1, correction=0).tolist()),
    }
    if config.members > 1:
        returns, cut = _returns(ensemble_decision(act, config.members), config, episodes, stopped)
        found["ensemble"] = {
            "episodes": returns.numel(),
            "cut": int(cut.sum()),
            "mean": to_plain(float(returns.mean())),
            "std": to_plain(float(returns.std(correction=0))),
        }
    return found


def ensemble_decision(act: Act, members: int) -> Act:
    """Joint decision of all members: the mean of their clipped actions, or their majority choice (ties: the lowest).

    act: rows [P, E, ...] -> actions [P, E, D], each member's for its own rows.
    """

    def decide(rows: Any) -> Tensor:
        # Member p acts on the rows of member p - k; its action is moved back to them.
        each = torch.stack([act(rows.roll(k, 0)).roll(-k, 0) for k in range(members)])  # [P, P, E, D]
        if each.is_floating_point():
            return each.clamp(-1.0, 1.0).mean(0)
        votes = torch.nn.functional.one_hot(each).sum(0)
        return votes.argmax(-1)

    return decide


def _returns(act: Act, config: TrainingConfig, episodes: int, stopped: Callable[[], object]) -> EpisodeReturns:
    """Returns of the episodes, [P, episodes] each."""
    total = config.members * episodes
    workers = max((n for n in range(1, config.workers + 1) if total % n == 0), default=None)
    env = open_env(
        config.env, envs=episodes, members=range(config.members), workers=workers, seconds=config.worker_timeout,
        device=config.device,
    )  # fmt: skip

    def check_for_stop() -> None:
        if stopped():
            raise Interrupted("the evaluation was stopped")

    with contextlib.closing(env):
        return episode_returns(env, act, key(config.seed, 0, "evaluation"), check_for_stop)
