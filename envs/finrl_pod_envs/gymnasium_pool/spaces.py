"""Observations and actions of Gymnasium environments as flat rows. Needs numpy and Gymnasium, not torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
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
    """Sizes of observations and actions of an environment.

    row: numbers in a flat observation. choices: number of discrete actions, 0 if continuous; first: number of the first
    choice. low, high: bounds of a continuous action; action, dtype: its shape and type.
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


def make_gymnasium(name: str, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """Make the environment "gym:NAME". Raises ConfigError for an unknown name, SetupError for a missing package."""
    try:
        import gymnasium
    except ImportError:
        raise SetupError("Gymnasium is not installed; pip install gymnasium") from None
    if not name.startswith(PREFIX) or name == PREFIX:
        raise ConfigError(f"the name of an environment must start with {PREFIX}, such as gym:Hopper-v5, got {name!r}")
    try:
        make = partial(gymnasium.make, name.removeprefix(PREFIX), disable_env_checker=True)
        return make() if render_mode is None else make(render_mode=render_mode)  # not every environment has the mode
    except gymnasium.error.DependencyNotInstalled as error:
        raise SetupError(f"{name} needs a package that is not installed: {error}") from None
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        reason = str(error).rstrip(". ")
        raise ConfigError(f"there is no Gymnasium environment {name.removeprefix(PREFIX)!r}: {reason}") from None
    except Exception as error:
        raise ConfigError(f"{name} cannot be made: {type(error).__name__}: {error}") from error


def shapes_of(env: gymnasium.Env[Any, Any], name: str) -> Shapes:
    """Sizes of an environment. Raises ConfigError for spaces that agents do not support."""
    from gymnasium import spaces

    try:
        row = spaces.flatdim(env.observation_space)
    except (NotImplementedError, ValueError):
        raise ConfigError(
            f"observations of {name} are {env.observation_space}: they cannot be flattened to numbers"
        ) from None
    if row < 1:
        raise ConfigError(f"{name} has observations {env.observation_space} without numbers")
    action = env.action_space
    if isinstance(action, spaces.Discrete):
        return Shapes(int(row), int(action.n), int(action.start), (), (), ())
    if not isinstance(action, spaces.Box):
        raise ConfigError(f"actions of {name} are {action}; agents support Box and Discrete only")
    if not np.issubdtype(action.dtype, np.floating) or not action.low.size:
        raise ConfigError(
            f"actions of {name} are {action}; agents need floating-point numbers: wrap it in TransformAction"
        )
    low, high = (np.asarray(x, dtype=np.float64).ravel() for x in (action.low, action.high))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ConfigError(f"actions of {name} have no bounds ({action}); wrap it in RescaleAction")
    bounds = (tuple(low.tolist()), tuple(high.tolist()))
    return Shapes(int(row), 0, 0, tuple(action.shape), *bounds, dtype=str(action.dtype))


class Flattener:
    """Converts observations of a space to flat rows."""

    def __init__(self, space: Any, name: str) -> None:
        from gymnasium import spaces

        self._space = space
        self._name = name
        self._box = isinstance(space, spaces.Box)
        self._flatten = spaces.flatten

    def __call__(self, observation: Any) -> Row:
        """[S] float32. Raises ConfigError for another shape than the space's, naming both."""
        if self._box:
            row = np.asarray(observation, dtype=np.float32)
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
        return int(values[0]) + shapes.first
    if shapes.is_unit:
        return values.clip(-1.0, 1.0).astype(shapes.dtype).reshape(shapes.action)
    low, high = shapes.bounds
    fraction = (values.astype(np.float64).clip(-1.0, 1.0) + 1) / 2
    return (low + fraction * (high - low)).clip(low, high).astype(shapes.dtype).reshape(shapes.action)
