"""What an environment showed while it was led by actions drawn from a seed, and where two such records differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from finrl_pod import random
from finrl_pod.protocols import VecEnv
from finrl_pod.types import Bools, Floats, Observation, Tensor

SHOWN = ("reward", "terminated", "truncated", "equity", "turnover", "cost")


class Shown(NamedTuple):
    """One step. day: [P, E] bar of the decision, the step's number where observations have no day. values: by name."""

    day: Floats
    values: dict[str, Floats]


def rollout(env: VecEnv, steps: int, seed: int = 0) -> list[Shown]:
    """The observation after reset and everything that `steps` steps return, under random actions."""
    stream = random.generator(seed, 0, "audit actions")
    observation = env.reset(seed)
    shown = [Shown(_days(observation, env, 0), {"observation": _flat(observation, env)})]
    for i in range(steps):
        action = random_actions(env, stream, torch.randn)
        day = _days(observation, env, i)
        outcome = env.step(action)
        values = {name: _array(getattr(outcome, name)) for name in SHOWN}
        values["final observation"] = _flat(outcome.final_observation, env)
        shown.append(Shown(day, values))
        observation = outcome.observation
        shown.append(Shown(_days(observation, env, i + 1), {"observation": _flat(observation, env)}))
    return shown


def random_actions(env: VecEnv, stream: torch.Generator, draw: Callable[..., Tensor]) -> Tensor:
    """Actions [P, E, D] of a seeded stream: by `draw` (torch.randn, torch.rand), or choices where there are so many."""
    shape = (env.members, env.envs, env.action_size)
    if env.action_kind == "discrete":
        return torch.randint(env.actions, shape, generator=stream)
    return draw(shape, generator=stream)


def first_difference(
    a: list[Shown], b: list[Shown], tolerance: float, known: float = float("inf")
) -> tuple[str, int] | None:
    """(what differs, the earliest bar at which it does), or None. Values are compared relatively; NaN equals NaN.

    known: last bar whose prices are the same in both. What a decision shows is compared up to this bar, what it led to
    up to the one before (it fills a bar later), and its reward up to the one before that.
    """
    earliest: tuple[str, int] | None = None
    for x, y in zip(a, b, strict=True):
        for name, values in x.values.items():
            wrong: Bools = ~np.isclose(values, y.values[name], rtol=tolerance, atol=tolerance, equal_nan=True)
            late = {"observation": 0, "reward": 2}.get(name, 1)
            wrong = np.asarray(wrong.reshape(*x.day.shape, -1).any(-1)) & (x.day <= known - late)
            if wrong.any():
                day = int(x.day[wrong].min())
                if earliest is None or day < earliest[1]:
                    earliest = name, day
    return earliest


def _days(observation: Any, env: VecEnv, step: int) -> Floats:
    if not isinstance(observation, Observation):
        return np.full((env.members, env.envs), float(step))
    day = _array(observation.day)  # [P, G]
    return np.repeat(day, env.envs // day.shape[1], axis=1)


def _flat(observation: Any, env: VecEnv) -> Floats:
    """[P, E, ...] without the day, which the record has of its own."""
    values = observation.account if isinstance(observation, Observation) else observation
    return _array(values).reshape(env.members, env.envs, -1)


def _array(tensor: Tensor) -> Floats:
    return np.asarray(tensor.detach().cpu().numpy(), dtype=np.float64)
