"""What a Gymnasium environment shows and takes, as flat rows of numbers. Needs numpy and Gymnasium, not torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from finrl_pod.errors import ConfigError, SetupError

if TYPE_CHECKING:
    import gymnasium

PREFIX = "gym:"
Row = NDArray[np.float32]


@dataclass(frozen=True)
class Shapes:
    """Sizes of one environment.

    row: numbers of a flat observation. choices: of a discrete action, 0 where actions are numbers; first: the number
    of the first choice. low, high: bounds of each number of a continuous action; action, dtype: its shape and type
    there.
    """

    row: int
    choices: int
    first: int
    action: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    dtype: str = "float32"

    @cached_property
    def bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """low and high as arrays."""
        return np.asarray(self.low), np.asarray(self.high)

    @property
    def columns(self) -> int:
        """Numbers of an action as the agent gives it: 1 for a choice."""
        return 1 if self.choices else len(self.low)


def make_gymnasium(name: str) -> gymnasium.Env[Any, Any]:
    """The environment of "gym:NAME". Raises ConfigError for a name there is none of, SetupError for a package."""
    try:
        import gymnasium
    except ImportError:
        raise SetupError("Gymnasium is not installed; pip install gymnasium") from None
    if not name.startswith(PREFIX) or name == PREFIX:
        raise ConfigError(f"an environment's name begins with {PREFIX}, such as gym:Hopper-v5, got {name!r}")
    try:
        return gymnasium.make(name.removeprefix(PREFIX), disable_env_checker=True)
    except gymnasium.error.DependencyNotInstalled as error:
        raise SetupError(f"{name} needs a package that is not installed: {error}") from None
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        known = str(error).rstrip(". ")
        raise ConfigError(f"there is no Gymnasium environment {name.removeprefix(PREFIX)!r}: {known}") from None
    except Exception as error:
        raise ConfigError(f"{name} cannot be made: {type(error).__name__}: {error}") from error


def shapes_of(env: gymnasium.Env[Any, Any], name: str) -> Shapes:
    """Raises ConfigError for spaces that no agent here can read or drive."""
    from gymnasium import spaces

    try:
        row = spaces.flatdim(env.observation_space)
    except (NotImplementedError, ValueError):
        raise ConfigError(f"{name} shows {env.observation_space}, which is no flat row of numbers") from None
    if row < 1:
        raise ConfigError(f"{name} shows {env.observation_space}, which holds no number")
    action = env.action_space
    if isinstance(action, spaces.Discrete):
        return Shapes(int(row), int(action.n), int(action.start), (), (), ())
    if not isinstance(action, spaces.Box):
        raise ConfigError(f"{name} takes actions of {action}, and agents here drive Box and Discrete alone")
    if not np.issubdtype(action.dtype, np.floating) or not action.low.size:
        raise ConfigError(
            f"{name} takes actions of {action}, and agents here give one fraction or more; wrap it in a TransformAction"
        )
    low, high = (np.asarray(x, dtype=np.float64).ravel() for x in (action.low, action.high))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ConfigError(
            f"{name} takes actions without bounds ({action}), and agents act within bounds; wrap it in a RescaleAction"
        )
    bounds = (tuple(low.tolist()), tuple(high.tolist()))
    return Shapes(int(row), 0, 0, tuple(action.shape), *bounds, dtype=str(action.dtype))


class Flattener:
    """From what an environment gives to a flat row."""

    def __init__(self, space: Any, name: str) -> None:
        from gymnasium import spaces

        self._space, self._name = space, name
        self._box = isinstance(space, spaces.Box)
        self._flatten = spaces.flatten

    def __call__(self, observation: Any) -> Row:
        """[S] float32. Raises ConfigError for another shape than the space's, naming both."""
        if self._box:
            row = np.asarray(observation, dtype=np.float32)
            if row.shape != self._space.shape:
                raise ConfigError(
                    f"{self._name} returned an observation of shape {row.shape}, and its space says "
                    f"{self._space.shape}; mend the environment or its observation_space"
                )
            return row.ravel()
        if not self._space.contains(observation):
            raise ConfigError(f"{self._name} returned {observation!r}, which is not in its space {self._space}")
        return np.asarray(self._flatten(self._space, observation), dtype=np.float32)


def to_action(values: Row, shapes: Shapes) -> Any:
    """What the environment takes: a choice, or [-1, 1] stretched to its bounds (and cut off there)."""
    if shapes.choices:
        return int(values[0]) + shapes.first
    low, high = shapes.bounds
    share = (values.astype(np.float64).clip(-1.0, 1.0) + 1) / 2
    return (low + share * (high - low)).clip(low, high).astype(shapes.dtype).reshape(shapes.action)
