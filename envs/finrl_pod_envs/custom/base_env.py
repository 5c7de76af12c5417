"""Base of environments of one's own: what remains to write is the start, the step and the observation of an episode."""

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
    [P, E, ...]. Episodes that end are started again in the same step; a limit of `max_steps` truncates them, which the
    value of the final observation takes into account. Checkpoints contain the state and the random generators.
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
        """Standard normal numbers [P, E, *shape], each member's from its own generator."""
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
        state, reward, ended = outcome
        terminated = torch.zeros_like(self._age, dtype=torch.bool) if ended is None else ended
        self._age = self._age + 1
        truncated = (self._age >= self.max_steps) & ~terminated
        over = terminated | truncated
        final = self.observe(state)
        new = self.start()  # drawn at every step, so that episodes do not depend on those of other environments
        self._state = {name: torch.where(_wide(over, x), new[name], x) for name, x in state.items()}
        self._age = torch.where(over, 0, self._age)
        return EnvStep(self.observe(self._state), reward, terminated, truncated, final)

    def _check(self, outcome: Any) -> None:
        """Raises RunError, which names the user's method, for what is no Transition or has another form of flags."""
        shape = (self.members, self.envs)
        if not isinstance(outcome, tuple) or len(outcome) != 3 or not isinstance(outcome[0], Mapping):
            fix = "return Transition(state, reward, terminated), where state is a dict of tensors"
            raise RunError(f"{self._method('transition')} returned {type(outcome).__name__}; {fix}")
        ended = outcome[2]
        if ended is None:
            return
        if not isinstance(ended, Tensor) or ended.dtype != torch.bool:
            got = f"a tensor of dtype {ended.dtype}" if isinstance(ended, Tensor) else type(ended).__name__
            raise RunError(
                f"{self._method('transition')} returned {got} as terminated; return a bool tensor, such as x > limit "
                "or flag.bool(), or None if episodes only end by max_steps"
            )
        if tuple(ended.shape) != shape:
            raise RunError(
                f"{self._method('transition')} returned terminated of shape {tuple(ended.shape)}; return one flag for "
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
        saved = torch.stack([generator.get_state() for generator in self._generators])
        return {**{f"state.{name}": x for name, x in self._state.items()}, AGE: self._age, STREAMS: saved}

    def resume(self, state: Mapping[str, Tensor]) -> Tensor:
        """Continue from a checkpoint after a reset with the same seed; returns the current observation."""
        self._state = {name: state[f"state.{name}"].to(self.device).clone() for name in self._state}
        self._age = state[AGE].to(self.device).clone()
        for generator, saved in zip(self._generators, state[STREAMS], strict=True):
            generator.set_state(saved.clone())
        return self.observe(self._state)


def _wide(over: Tensor, like: Tensor) -> Tensor:
    """[P, E] with as many trailing dimensions as `like` [P, E, ...]."""
    return over.view(*over.shape, *(1,) * (like.dim() - 2))
