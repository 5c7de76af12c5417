"""PettingZoo environments for tests: agents that end early or join late, choices, and faults."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from pettingzoo import AECEnv, ParallelEnv

LIMIT = 6
Values = dict[str, Any]


class Staggered(ParallelEnv[str, Any, Any]):
    """Agents b and a: b ends after 2 steps, a is cut after 6; c joins after 3 steps and ends with a.

    An agent observes its number, the steps taken and a random number. Its reward is its number plus its action.
    """

    metadata = {"name": "staggered_v0"}  # noqa: RUF012  as PettingZoo declares it
    possible_agents = ["b", "a", "c"]  # noqa: RUF012

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def observation_space(self, agent: str) -> gymnasium.spaces.Space[Any]:
        return gymnasium.spaces.Box(-10, 10, (3,), np.float32)

    def action_space(self, agent: str) -> gymnasium.spaces.Space[Any]:
        high = {"b": 1.0, "a": 2.0, "c": 1.0}[agent] * self.scale
        return gymnasium.spaces.Box(-high, high, (1,), np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Values, Values]:
        self.random = np.random.default_rng(seed)
        self.t = 0
        self.agents = ["a", "b"]
        return self._seen(self.agents), {agent: {} for agent in self.agents}

    def _seen(self, agents: list[str]) -> Values:
        draw = self.random.uniform()
        return {x: np.array([self.possible_agents.index(x), self.t, draw], np.float32) for x in agents}

    def step(self, actions: Values) -> tuple[Values, Values, Values, Values, Values]:
        self.t += 1
        acting = list(self.agents)
        assert set(actions) == set(acting)
        rewards = {x: float(self.possible_agents.index(x) + actions[x][0]) for x in acting}
        terminations = {x: x == "b" and self.t == 2 for x in acting}
        truncations = dict.fromkeys(acting, self.t == LIMIT)
        self.agents = [x for x in acting if not (terminations[x] or truncations[x])]
        joining = ["c"] if self.t == 3 else []
        self.agents += joining
        return self._seen(acting + joining), rewards, terminations, truncations, {x: {} for x in acting}


class Choices(Staggered):
    """Two choices for each agent."""

    def action_space(self, agent: str) -> gymnasium.spaces.Space[Any]:
        return gymnasium.spaces.Discrete(2, start=1)

    def step(self, actions: Values) -> tuple[Values, Values, Values, Values, Values]:
        return super().step({x: [float(choice)] for x, choice in actions.items()})


class NaNRewards(Staggered):
    """Agent b earns NaN."""

    def step(self, actions: Values) -> tuple[Values, Values, Values, Values, Values]:
        observations, rewards, *more = super().step(actions)
        return observations, {**rewards, **({"b": float("nan")} if "b" in rewards else {})}, *more


class Unequal(Staggered):
    """One agent has two actions."""

    def action_space(self, agent: str) -> gymnasium.spaces.Space[Any]:
        return gymnasium.spaces.Box(-1, 1, (2 if agent == "c" else 1,), np.float32)


class Silent(Staggered):
    """Observations of agent a are missing."""

    def _seen(self, agents: list[str]) -> Values:
        return super()._seen([x for x in agents if x != "a"])


class Four(Staggered):
    """A step of four values."""

    def step(self, actions: Values) -> Any:
        return super().step(actions)[:4]


class Turns(AECEnv[str, Any, Any]):
    """Agents that take turns."""


def make(scale: float = 1.0) -> Staggered:
    """A function that makes an environment."""
    return Staggered(scale)
