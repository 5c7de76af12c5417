"""Gymnasium environments in the lanes of a pool: spaces as flat rows, the memory that lanes share, episodes, seeds.

Needs numpy and Gymnasium, not torch: worker processes import it.
"""

from __future__ import annotations

import math
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from finrl_pod.errors import ConfigError, FinrlPodError, SetupError, shown
from finrl_pod.user_files import is_custom, unpinned, user_object, written_path

if TYPE_CHECKING:
    import gymnasium

PREFIX = "gym:"
Row = NDArray[np.float32]
CACHE_LINE = 64  # bytes; arrays of a block never share one
NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})
MAX_CHOICES = 4096  # combinations of a MultiDiscrete action: each is an output of the network
_LIBRARIES = (str(Path(__file__).parents[1]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))


@dataclass(frozen=True)
class Shapes:
    """Sizes of observations and actions of an environment.

    row: numbers in a flat observation. counts: choices of each part of a discrete action, () if continuous; several
    parts (MultiDiscrete) are one choice among all combinations. first: number of the first choice of each part. low,
    high: bounds of a continuous action. action, dtype: shape and type of an action; a plain int has an empty shape.
    agents: M of an environment of many agents, else 0.
    """

    row: int
    counts: tuple[int, ...]
    first: tuple[int, ...]
    action: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    dtype: str = "float32"
    agents: int = 0

    @cached_property
    def choices(self) -> int:
        """Number of discrete actions, 0 if continuous."""
        return math.prod(self.counts) if self.counts else 0

    @cached_property
    def bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """`low` and `high` as arrays."""
        return np.asarray(self.low), np.asarray(self.high)

    @cached_property
    def is_unit(self) -> bool:
        """Whether continuous actions are bounded by -1 and 1, so that nothing is rescaled."""
        low, high = self.bounds
        return bool((low == -1).all() and (high == 1).all())

    @property
    def columns(self) -> int:
        """Numbers in an action; 1 for a choice."""
        return 1 if self.choices else len(self.low)

    @property
    def rows(self) -> int:
        """Observations in a lane: one of each agent."""
        return self.agents or 1

    def of_agents(self, agents: int) -> Shapes:
        """The sizes in an environment of that many agents."""
        return replace(self, agents=agents)


def is_gymnasium(name: str) -> bool:
    """Whether `name` is "gym:NAME", or file.py:Class of a class of Gymnasium. Raises InputError as `user_object`."""
    if name.startswith(PREFIX):
        return True
    try:
        import gymnasium
    except ImportError:
        return False
    env_class = user_object(name, f"the environment {name}")
    return isinstance(env_class, type) and issubclass(env_class, gymnasium.Env)


def make_gymnasium(
    name: str, render_mode: str | None = None, arguments: Mapping[str, Any] = NO_ARGUMENTS
) -> gymnasium.Env[Any, Any]:
    """Make "gym:NAME", "gym:MODULE:NAME", whose module may be in the current folder, or file.py:Class of Gymnasium.

    arguments: passed to the environment. Raises ConfigError for an unknown name, SetupError for a missing package.
    """
    try:
        import gymnasium
    except ImportError:
        raise SetupError("Gymnasium is not installed; pip install gymnasium") from None
    if name == PREFIX or not (name.startswith(PREFIX) or is_custom(name)):
        raise ConfigError(f"the name of an environment must start with {PREFIX}, such as gym:Hopper-v5, got {name!r}")
    # Not every environment has the mode.
    options = dict(arguments) if render_mode is None else {**arguments, "render_mode": render_mode}
    try:
        if not name.startswith(PREFIX):
            made: gymnasium.Env[Any, Any] = user_object(name, f"the environment {name}")(**options)
            return made
        if ":" in name.removeprefix(PREFIX) and str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
        return gymnasium.make(name.removeprefix(PREFIX), disable_env_checker=True, **options)
    except FinrlPodError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise SetupError(f"{unpinned(name)} needs a package that is not installed: {error}") from None
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        reason = str(error).rstrip(". ")
        raise ConfigError(f"there is no Gymnasium environment {name.removeprefix(PREFIX)!r}: {reason}") from None
    except Exception as error:
        raise ConfigError(f"{unpinned(name)} cannot be made: {describe_failure(error)}") from error


def shapes_of(env: gymnasium.Env[Any, Any], name: str) -> Shapes:
    """Sizes of an environment. Raises ConfigError for spaces that agents do not support."""
    return shapes_of_spaces(env.observation_space, env.action_space, name)


def shapes_of_spaces(observation: Any, action: Any, name: str) -> Shapes:
    """Sizes of the spaces of an agent. name: name of its environment. Raises ConfigError as `shapes_of`."""
    from gymnasium import spaces

    try:
        row = spaces.flatdim(observation)
    except (NotImplementedError, ValueError):
        raise ConfigError(f"observations of {name} are {observation}: they cannot be flattened to numbers") from None
    if row < 1:
        raise ConfigError(f"{name} has observations {observation} without numbers")
    if isinstance(action, spaces.Discrete):
        return Shapes(int(row), (int(action.n),), (int(action.start),), (), (), (), dtype="int64")
    if isinstance(action, spaces.MultiDiscrete | spaces.MultiBinary):
        return _combinations(action, int(row), name)
    if not isinstance(action, spaces.Box):
        raise ConfigError(
            f"actions of {name} are {action}; agents support Box, Discrete, MultiDiscrete and MultiBinary"
        )
    if not np.issubdtype(action.dtype, np.floating) or not action.low.size:
        raise ConfigError(
            f"actions of {name} are {action}; agents need floating-point numbers: wrap it in TransformAction"
        )
    low, high = (np.asarray(x, dtype=np.float64).ravel() for x in (action.low, action.high))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ConfigError(
            f"actions of {name} have no bounds ({action}); give it some, such as "
            f"TransformAction(env, lambda x: x, Box(-1, 1, {tuple(action.shape)})) of gymnasium.wrappers"
        )
    bounds = (tuple(low.tolist()), tuple(high.tolist()))
    return Shapes(int(row), (), (), tuple(action.shape), *bounds, dtype=str(action.dtype))


def _combinations(action: Any, row: int, name: str) -> Shapes:
    """Shapes of MultiDiscrete and MultiBinary actions. Raises ConfigError for too many combinations."""
    counts = np.broadcast_to(getattr(action, "nvec", 2), action.shape).ravel()
    first = np.broadcast_to(getattr(action, "start", 0), action.shape).ravel()
    shapes = Shapes(row, tuple(counts.tolist()), tuple(first.tolist()), tuple(action.shape), (), (), str(action.dtype))
    if shapes.choices > MAX_CHOICES:
        raise ConfigError(
            f"actions of {name} are {action}: {shapes.choices:,} combinations, and agents choose among at most "
            f"{MAX_CHOICES:,}; use fewer parts or a Box"
        )
    return shapes


class Flattener:
    """Converts observations of a space to flat rows. gaps: rows so far with numbers that were not finite."""

    def __init__(self, space: Any, name: str) -> None:
        from gymnasium import spaces

        self._space = space
        self._name = name
        self._box = isinstance(space, spaces.Box)
        self._flatten = spaces.flatten
        self._last: Row | None = None
        self.gaps = 0

    def first(self, observation: Any) -> Row:
        """[S] float32, the first row of an episode."""
        self._last = None
        return self(observation)

    def __call__(self, observation: Any) -> Row:
        """[S] float32; numbers that are not finite repeat the last row, or 0 in the first one.

        Raises ConfigError for another shape than the space's, naming both.
        """
        row = self._to_row(observation)
        if not np.isfinite(row).all():
            self.gaps += 1
            row = np.where(np.isfinite(row), row, 0.0 if self._last is None else self._last)
        self._last = row
        return row

    def _to_row(self, observation: Any) -> Row:
        if self._box:
            try:
                with np.errstate(over="ignore"):  # numbers that are too large become infinite, and are counted as gaps
                    row = np.asarray(observation, dtype=np.float32)
            except (TypeError, ValueError):
                raise ConfigError(
                    f"{self._name} returned {shown(observation)} as observation, its observation_space is "
                    f"{self._space}; fix the environment"
                ) from None
            if row.shape != self._space.shape:
                raise ConfigError(
                    f"{self._name} returned an observation of shape {row.shape}, its observation_space has "
                    f"{self._space.shape}; fix the environment"
                )
            return row.ravel()
        if not self._space.contains(observation):
            raise ConfigError(f"{self._name} returned {observation!r}, not a member of its space {self._space}")
        return np.asarray(self._flatten(self._space, observation), dtype=np.float32)


def to_action(values: Row, shapes: Shapes) -> Any:
    """Action of the environment from an agent action: a choice, or [-1, 1] rescaled to the bounds and clipped."""
    if shapes.choices:
        if not shapes.action:
            return int(values[0]) + shapes.first[0]
        parts = np.add(np.unravel_index(int(values[0]), shapes.counts), shapes.first)
        return parts.astype(shapes.dtype).reshape(shapes.action)
    if shapes.is_unit:
        return values.clip(-1.0, 1.0).astype(shapes.dtype).reshape(shapes.action)
    low, high = shapes.bounds
    fraction = (values.astype(np.float64).clip(-1.0, 1.0) + 1) / 2
    return (low + fraction * (high - low)).clip(low, high).astype(shapes.dtype).reshape(shapes.action)


# ---------------------------------------------------------------------- lanes


class Block:
    """Arrays of L lanes of M agents in one block of memory, for exchange between the environment and its workers.

    M is 1 for environments of one agent. row, final: [L, M, S] float32, the current observation and the one before a
    reset. action: [L, M, C] float32. reward: [L, M] float64. terminated, truncated, idle: [L, M] bool. over: [L] bool,
    lanes whose episode has ended. episode: [L] int64, number of the current episode. gaps: [L] int64, observations that
    were not finite.
    """

    row: NDArray[np.float32]
    final: NDArray[np.float32]
    action: NDArray[np.float32]
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    idle: NDArray[np.bool_]
    over: NDArray[np.bool_]
    episode: NDArray[np.int64]
    gaps: NDArray[np.int64]

    def __init__(self, lanes: int, shapes: Shapes, memory: Any = None) -> None:
        """memory: a writable shared buffer of `block_size` bytes; None allocates a private one."""
        dtype = _block_dtype(lanes, shapes)
        block = np.frombuffer(bytearray(dtype.itemsize) if memory is None else memory, dtype, 1)
        for name in dtype.names or ():
            setattr(self, name, block[name][0])


def block_size(lanes: int, shapes: Shapes) -> int:
    """Bytes of a block."""
    return _block_dtype(lanes, shapes).itemsize


def _block_dtype(lanes: int, shapes: Shapes) -> np.dtype[Any]:
    each = (lanes, shapes.rows)
    arrays = [
        ("row", np.float32, (*each, shapes.row)),
        ("final", np.float32, (*each, shapes.row)),
        ("action", np.float32, (*each, shapes.columns)),
        ("reward", np.float64, each),
        ("terminated", np.bool_, each),
        ("truncated", np.bool_, each),
        ("idle", np.bool_, each),
        ("over", np.bool_, (lanes,)),
        ("episode", np.int64, (lanes,)),
        ("gaps", np.int64, (lanes,)),
    ]
    ends = np.cumsum([-(-np.dtype(array[1:]).itemsize // CACHE_LINE) * CACHE_LINE for array in arrays]).tolist()
    layout: Any = {
        "names": [array[0] for array in arrays],
        "formats": [array[1:] for array in arrays],
        "offsets": [0, *ends[:-1]],
        "itemsize": ends[-1],
    }
    dtype: np.dtype[Any] = np.dtype(layout)
    return dtype


@dataclass(frozen=True)
class LanePlan:
    """Name and shapes of the environments of a pool, the seed stream of each lane, and arguments of all."""

    name: str
    shapes: Shapes
    streams: tuple[int, ...]
    arguments: Mapping[str, Any]


def episode_seed(stream: int, episode: int) -> int:
    """Seed of an episode, from lane stream and number only: any episode can be repeated."""
    return int(np.random.SeedSequence([stream, episode]).generate_state(1, np.uint32)[0])


def describe_failure(error: BaseException) -> str:
    """Type, first line of the message and location of an error of an environment: its line, not one of a library."""
    frames = traceback.extract_tb(error.__traceback__)
    own_frames = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    location = own_frames[-1] if own_frames else frames[-1]
    file = written_path(Path(location.filename))
    text = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {text} ({file}, line {location.lineno})"


class Lane:
    """One Gymnasium environment: it reads its action from lane `index` of a block and writes the outcome there."""

    def __init__(self, plan: LanePlan, block: Block, index: int) -> None:
        name = plan.name
        self.env = make_gymnasium(name, arguments=plan.arguments)
        self._name = unpinned(name)
        self._shapes = plan.shapes
        self._stream = plan.streams[index]
        self._block = block
        self._index = index
        self._row = Flattener(self.env.observation_space, self._name)
        self._earlier_gaps = int(block.gaps[index])  # of a worker that was replaced

    def begin(self, episode: int) -> None:
        """Start an episode by its number."""
        values: Any = self.env.reset(seed=episode_seed(self._stream, episode))
        if not (isinstance(values, tuple) and len(values) == 2):
            raise ConfigError(f"the reset of {self._name} must return two values, (observation, info)")
        observation, _ = values
        self._block.row[self._index, 0] = self._row.first(observation)
        self._block.episode[self._index] = episode

    def step(self) -> None:
        """Step once; at the end of an episode the next one starts in the same call."""
        block = self._block
        i = self._index
        observation, reward, terminated, truncated, _ = self._step(block.action[i, 0])
        block.row[i, 0] = block.final[i, 0] = self._row(observation)
        block.gaps[i] = self._earlier_gaps + self._row.gaps
        block.reward[i, 0] = to_number(reward, self._name)
        # An environment may terminate at the very step of its time limit: that counts as terminated.
        block.terminated[i, 0] = terminated
        block.truncated[i, 0] = truncated and not terminated
        block.over[i] = terminated or truncated
        if block.over[i]:
            self.begin(int(block.episode[i]) + 1)

    def repeat(
        self, episode: int, actions: Sequence[NDArray[np.float32]], after_each: Callable[[], None] = lambda: None
    ) -> None:
        """Restore an episode by repeating its actions; environments are deterministic under a seed."""
        self.begin(episode)
        for action in actions:
            observation, *_ = self._step(np.asarray(action, dtype=np.float32))
            self._block.row[self._index, 0] = self._row(observation)
            after_each()

    def _step(self, action: Row) -> tuple[Any, Any, Any, Any, Any]:
        """Step the environment. Raises ConfigError for one that does not return five values."""
        try:
            values: Any = self.env.step(to_action(action, self._shapes))
            count = len(values)
        except ValueError as error:  # of a wrapper of Gymnasium, such as its time limit
            unpacked = re.fullmatch(r"not enough values to unpack \(expected 5, got (\d)\)", str(error))
            if unpacked is None:
                raise
            values = ()
            count = int(unpacked[1])
        return check_five(values, self._name, count)

    def close(self) -> None:
        self.env.close()


def check_five(values: Any, name: str, count: int | None = None) -> tuple[Any, Any, Any, Any, Any]:
    """What a step returned. count: number of values if it is known. Raises ConfigError for other than five."""
    count = len(values) if count is None else count
    if count != 5:
        raise ConfigError(
            f"the step of {name} returns {count} values, as in old versions of Gym; return five: "
            "observation, reward, terminated, truncated, info"
        )
    five: tuple[Any, Any, Any, Any, Any] = values
    return five


def to_number(reward: Any, name: str) -> float:
    """A reward as a number. Raises ConfigError for anything else."""
    if isinstance(reward, float):
        return reward
    values = np.asarray(reward)
    if values.size != 1 or values.dtype.kind not in "fiub":
        raise ConfigError(f"{name} returned a reward of {reward!r}, a reward must be one number; fix the environment")
    return float(values.item())
