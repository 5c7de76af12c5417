"""PettingZoo environments of many agents that act at once, in the lanes of a pool.

Agents have the order of `possible_agents`. An agent that ends before the others is idle until the episode is over: it
observes zeros, its reward is 0, and each of its steps is terminated. The same holds for one that has not joined yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from finrl_pod.errors import ConfigError, FinrlPodError
from finrl_pod.user_files import error_text, is_custom, stdout_to_stderr, unpinned, user_object
from finrl_pod_envs.gymnasium_pool.lanes import (
    NO_ARGUMENTS,
    Block,
    Flattener,
    Lane,
    LanePlan,
    Shapes,
    check_five,
    episode_seed,
    shapes_of_spaces,
    to_action,
    to_number,
)

if TYPE_CHECKING:
    import pettingzoo

    ParallelEnv: TypeAlias = pettingzoo.ParallelEnv[Any, Any, Any]

AnyLane: TypeAlias = "Lane | ParallelLane"


def is_parallel(name: str) -> bool:
    """Whether `name` is a parallel environment of PettingZoo: a class, or a function that makes one.

    Raises InputError as `user_object`.
    """
    if not is_custom(name):
        return False
    maker = user_object(name, f"the environment {name}")
    return not isinstance(maker, type) or hasattr(maker, "possible_agents") or _is_pettingzoo(maker)


def _is_pettingzoo(maker: type) -> bool:
    return any(base.__module__.partition(".")[0] == "pettingzoo" for base in maker.__mro__)


def make_parallel(name: str, arguments: Mapping[str, Any] = NO_ARGUMENTS) -> ParallelEnv:
    """Make file.py:NAME or package.module:NAME. Raises ConfigError for an environment that cannot be made or used."""
    display_name = unpinned(name)
    try:
        with stdout_to_stderr():
            env: ParallelEnv = user_object(name, f"the environment {name}")(**arguments)
    except FinrlPodError:
        raise
    except Exception as error:
        raise ConfigError(f"{display_name} cannot be made: {error_text(error)}") from error
    if hasattr(env, "agent_iter"):
        raise ConfigError(
            f"the agents of {display_name} take turns; wrap it in pettingzoo.utils.conversions.aec_to_parallel"
        )
    if not getattr(env, "possible_agents", None):
        raise ConfigError(f"{display_name} has no possible_agents; list the names of all agents there")
    return env


def shapes_of_agents(env: ParallelEnv, name: str) -> dict[str, Shapes]:
    """Sizes and bounds of the observations and actions of all agents. Raises ConfigError unless the sizes are equal."""
    by_agent = {str(agent): _agent_shapes(env, agent, name) for agent in env.possible_agents}
    first, shapes = next(iter(by_agent.items()))
    for agent, other_shapes in by_agent.items():
        if _sizes(other_shapes) != _sizes(shapes):
            raise ConfigError(
                f"the agents of {unpinned(name)} must have observations and actions of one size: {first} has "
                f"{_sizes_text(shapes)}, {agent} has {_sizes_text(other_shapes)}; pad them, as wrappers of SuperSuit do"
            )
    return by_agent


def _agent_shapes(env: ParallelEnv, agent: Any, name: str) -> Shapes:
    display_name = f"agent {agent} of {unpinned(name)}"
    return shapes_of_spaces(env.observation_space(agent), env.action_space(agent), display_name)


def _sizes(shapes: Shapes) -> tuple[int, int, int]:
    return shapes.row, shapes.columns, shapes.choices


def _sizes_text(shapes: Shapes) -> str:
    actions = f"{shapes.choices} choices" if shapes.choices else f"{shapes.columns} numbers"
    return f"{shapes.row} observed numbers and actions of {actions}"


def make_lane(plan: LanePlan, block: Block, index: int) -> AnyLane:
    """The environment of a lane: of one agent, or of many."""
    return ParallelLane(plan, block, index) if plan.shapes.agents else Lane(plan, block, index)


class ParallelLane:
    """One environment of M agents in lane `index` of a block."""

    def __init__(self, plan: LanePlan, block: Block, index: int) -> None:
        name = plan.name
        self.env = make_parallel(name, plan.arguments)
        self._name = unpinned(name)
        self._agents = list(self.env.possible_agents)
        self._shapes = [_agent_shapes(self.env, agent, name) for agent in self._agents]
        self._flatteners = [Flattener(self.env.observation_space(agent), self._name) for agent in self._agents]
        self._stream = plan.streams[index]
        self._block = block
        self._index = index
        self._earlier_gaps = int(block.gaps[index])  # of a worker that was replaced
        self._is_active = np.zeros(len(self._agents), np.bool_)
        self._has_ended = np.zeros(len(self._agents), np.bool_)

    def begin(self, episode: int) -> None:
        """Start an episode by its number."""
        values = self.env.reset(seed=episode_seed(self._stream, episode))
        if not (isinstance(values, tuple) and len(values) == 2):
            raise ConfigError(f"the reset of {self._name} must return observations and infos, two dictionaries")
        self._has_ended[:] = False
        self._is_active[:] = self._listed()
        row = self._block.row[self._index]
        row[:] = 0.0
        for m in np.flatnonzero(self._is_active).tolist():
            row[m] = self._flatteners[m].first(self._value(values[0], m, "observation"))
        self._block.episode[self._index] = episode

    def step(self) -> None:
        """Step once; at the end of an episode the next one starts in the same call."""
        block = self._block
        i = self._index
        self._advance(block.action[i])
        block.over[i] = not self._is_active.any()
        if block.over[i]:
            self.begin(int(block.episode[i]) + 1)

    def repeat(
        self, episode: int, actions: Sequence[NDArray[np.float32]], after_each: Callable[[], None] = lambda: None
    ) -> None:
        """Restore an episode by repeating its actions; environments are deterministic under a seed."""
        self.begin(episode)
        for action in actions:
            self._advance(np.asarray(action, dtype=np.float32).reshape(len(self._agents), -1))
            after_each()

    def close(self) -> None:
        self.env.close()

    def _advance(self, action: NDArray[np.float32]) -> None:
        """Step by the actions [M, C] of the agents that are listed, and write the outcome of each agent."""
        block = self._block
        i = self._index
        actions = {self._agents[m]: to_action(action[m], self._shapes[m]) for m in np.flatnonzero(self._listed())}
        observations, rewards, terminations, truncations, _ = check_five(self.env.step(actions), self._name)
        was_active = self._is_active.copy()
        block.reward[i] = 0.0
        block.truncated[i] = False
        block.terminated[i] = block.idle[i] = ~was_active
        block.final[i] = 0.0
        is_listed = self._listed()
        for m in np.flatnonzero(was_active).tolist():
            block.final[i, m] = self._flatteners[m](self._value(observations, m, "observation"))
            block.reward[i, m] = to_number(self._value(rewards, m, "reward"), self._name)
            # An agent that is no longer listed has ended, whatever is said of it.
            is_cut = bool(self._value(truncations, m, "truncation"))
            block.terminated[i, m] = self._value(terminations, m, "termination") or not (is_cut or is_listed[m])
            block.truncated[i, m] = is_cut and not block.terminated[i, m]
        self._has_ended |= was_active & (block.terminated[i] | block.truncated[i])
        self._is_active = is_listed & ~self._has_ended
        block.row[i] = np.where(self._is_active[:, None], block.final[i], 0.0)
        for m in np.flatnonzero(self._is_active & ~was_active).tolist():  # it has just joined
            block.row[i, m] = self._flatteners[m].first(self._value(observations, m, "observation"))
        block.gaps[i] = self._earlier_gaps + sum(flatten.gaps for flatten in self._flatteners)

    def _listed(self) -> NDArray[np.bool_]:
        """Agents that the environment lists as present: [M]."""
        present = set(self.env.agents)
        return np.array([agent in present for agent in self._agents])

    def _value(self, values: Mapping[Any, Any], m: int, what: str) -> Any:
        """What the environment returned for an agent. Raises ConfigError if there is nothing."""
        agent = self._agents[m]
        if agent not in values:
            raise ConfigError(f"{self._name} returned no {what} of agent {agent}; return one of every agent that acts")
        return values[agent]
