"""Base class of custom environments: a subclass defines start, step and observation of an episode."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from finrl_pod.errors import RunError
from finrl_pod.random import generators
from finrl_pod.types import EnvStep, Tensor
from finrl_pod.user_files import written_path

State = dict[str, Tensor]
STREAMS = "streams"
AGE = "age"  # in checkpoints, beside the state


class Transition(NamedTuple):
    """What a step leads to. state: the next one; reward: [P, E] float; terminated: [P, E] bool, or None for never."""

    state: State
    reward: Tensor
    terminated: Tensor | None = None


class BaseVecEnv(ABC):
    """P x E environments stepped together; implements `protocols.ResumableVecEnv`.

    Subclasses set the class attributes and define `start`, `transition` and `observe`. The state is a dict of tensors
    [P, E, ...]. Episodes that end are started again in the same step; a limit of `max_steps` truncates them: the value
    of the final observation then counts. Checkpoints contain the state and the random generators.
    """

    observation_size: int
    action_size: int = 1
    action_kind: str = "direct"  # actions in [-1, 1]; "discrete" for choices 0, 1, ..., `actions` - 1
    actions: int = 0  # number of choices, 0 unless discrete
    max_steps: ClassVar[int] = 1_000

    def __init__(self, *, envs: int = 16, members: Sequence[int] = (0,), device: torch.device | str = "cpu") -> None:
        """envs: environments of each agent. members: one id for each agent that is trained at the same time."""
        self.members = len(members)
        self.envs = envs
        self.member_ids = tuple(members)
        self.device = torch.device(device)

    @abstractmethod
    def start(self) -> State:
        """State of new episodes for all P x E environments; random numbers from `normal` and `uniform`."""

    @abstractmethod
    def transition(self, state: State, action: Tensor) -> Transition:
        """Step all environments by actions [P, E, D]; return new tensors, `state` stays as it is."""

    @abstractmethod
    def observe(self, state: State) -> Tensor:
        """Observations [P, E, observation_size] float32."""

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers [P, E, *shape] from the generator of each member."""
        return torch.stack([torch.randn(self.envs, *shape, generator=g, device=self.device) for g in self._generators])

    def uniform(self, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1) [P, E, *shape], each member's from its own generator."""
        return torch.stack([torch.rand(self.envs, *shape, generator=g, device=self.device) for g in self._generators])

    def reset(self, seed: int) -> Tensor:
        """Start all episodes; returns the observation [P, E, S]. All random numbers come from the seed."""
        self._generators = generators(seed, self.member_ids, type(self).__name__, self.device)
        self._state = self.start()
        self._age = torch.zeros(self.members, self.envs, dtype=torch.int64, device=self.device)
        return self.observe(self._state)

    def step(self, action: Tensor) -> EnvStep:
        """Step all environments by `action` [P, E, D]; those whose episode ends start a new one in the same call."""
        outcome = self.transition(self._state, action)
        self._check(outcome)
        state, reward, flags = outcome
        terminated = torch.zeros_like(self._age, dtype=torch.bool) if flags is None else flags
        self._age = self._age + 1
        truncated = (self._age >= self.max_steps) & ~terminated
        episode_ends = terminated | truncated
        final = self.observe(state)
        first_state = self.start()  # drawn at every step, so that episodes do not depend on other environments
        self._state = {
            name: torch.where(episode_ends[(..., *(None,) * (x.dim() - 2))], first_state[name], x)
            for name, x in state.items()
        }
        self._age = torch.where(episode_ends, 0, self._age)
        return EnvStep(self.observe(self._state), reward, terminated, truncated, final)

    def _check(self, outcome: Any) -> None:
        """Raises RunError with the name of the method if it returned no Transition or invalid flags."""
        shape = (self.members, self.envs)
        if not isinstance(outcome, tuple) or len(outcome) != 3 or not isinstance(outcome[0], Mapping):
            fix = "return Transition(state, reward, terminated), where state is a dict of tensors"
            raise RunError(f"{self._method('transition')} returned {type(outcome).__name__}; {fix}")
        flags = outcome[2]
        if flags is None:
            return
        if not isinstance(flags, Tensor) or flags.dtype != torch.bool:
            description = f"a tensor of dtype {flags.dtype}" if isinstance(flags, Tensor) else type(flags).__name__
            raise RunError(
                f"{self._method('transition')} returned {description} as terminated; return a bool tensor, such "
                "as x > limit "
                "or flag.bool(), or None if episodes only end by max_steps"
            )
        if tuple(flags.shape) != shape:
            raise RunError(
                f"{self._method('transition')} returned terminated of shape {tuple(flags.shape)}; return one flag for "
                f"each environment, of shape {shape}"
            )

    def _method(self, name: str) -> str:
        """A method with its place: file.py:Class.name (file.py, line 3)."""
        code = getattr(inspect.unwrap(getattr(type(self), name)), "__code__", None)
        if code is None:
            return f"{type(self).__name__}.{name}"
        path = written_path(Path(code.co_filename))
        return f"{path.name}:{type(self).__name__}.{name} ({path}, line {code.co_firstlineno})"

    def checkpoint(self) -> dict[str, Tensor]:
        """State of all episodes, for `--resume`."""
        generator_state = torch.stack([generator.get_state() for generator in self._generators])
        return {**{f"state.{name}": x for name, x in self._state.items()}, AGE: self._age, STREAMS: generator_state}

    def resume(self, state: Mapping[str, Tensor]) -> Tensor:
        """Continue from a checkpoint after a reset with the same seed; returns the current observation."""
        self._state = {name: state[f"state.{name}"].to(self.device).clone() for name in self._state}
        self._age = state[AGE].to(self.device).clone()
        for generator, generator_state in zip(self._generators, state[STREAMS], strict=True):
            generator.set_state(generator_state.clone())
        return self.observe(self._state)
