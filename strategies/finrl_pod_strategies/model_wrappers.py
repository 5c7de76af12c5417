"""Observations and actions of a model of another library as the wrappers of its training environment change them.

Stable-Baselines3 keeps the environment of a model in `model.env`. Its wrappers, of Stable-Baselines3 and of Gymnasium,
are applied to the observations of the market without changing their statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from finrl_pod.errors import InputError
from finrl_pod.types import Tensor

Array = NDArray[np.float32]
UNCHANGED = ("VecMonitor", "VecCheckNan", "VecVideoRecorder")  # wrappers that do not change what a model observes
# Wrappers of Gymnasium whose observations depend on the steps before.
STATEFUL = ("TimeAwareObservation", "DelayObservation", "FrameStackObservation", "MaxAndSkipObservation")


@dataclass(frozen=True)
class ModelView:
    """What a model observes of a market, and what its actions mean there.

    observation: converts an observation of the market [size]. action: converts an action of the model. statistics:
    the numbers that observations are normalised by, by name.
    """

    observation: Callable[[Array], Any]
    action: Callable[[Any], Any]
    statistics: Mapping[str, Tensor]


def model_view(model: object, size: int) -> ModelView:
    """The view of a model through the wrappers of its environment. size: number of values of a market observation.

    Raises InputError for wrappers that cannot be applied to one bar, and for a model whose observations have another
    shape.
    """
    name = type(model).__name__
    observations: list[Callable[[Any], Any]] = []
    actions: list[Callable[[Any], Any]] = []
    statistics: dict[str, Tensor] = {}
    for wrapper in _wrappers(getattr(model, "env", None)):  # outermost first
        if hasattr(wrapper, "venv"):
            _add_vector_wrapper(wrapper, name, observations, statistics)
        else:
            _add_wrapper(wrapper, name, observations, actions, statistics)
    observations.reverse()

    def observation(row: Array) -> Any:
        return _apply(observations, row)

    _check_shape(model, np.shape(observation(np.zeros(size, np.float32))))
    return ModelView(observation, lambda action: _apply(actions, action), statistics)


def _wrappers(env: Any) -> list[Any]:
    """Wrappers of the batch and then of a single environment, outermost first; only the first environment counts."""
    wrappers = []
    while hasattr(env, "venv"):
        wrappers.append(env)
        env = env.venv
    inner = getattr(env, "envs", ())
    env = inner[0] if inner else None
    while hasattr(env, "env"):
        wrappers.append(env)
        env = env.env
    return wrappers


def _add_vector_wrapper(
    wrapper: Any, name: str, observations: list[Callable[[Any], Any]], statistics: dict[str, Tensor]
) -> None:
    kind = type(wrapper).__name__
    if _is_a(wrapper, "VecNormalize"):
        if wrapper.norm_obs:
            observations.append(wrapper.normalize_obs)  # leaves the statistics as they are
            statistics |= _statistics(kind, wrapper.obs_rms)
    elif not _is_a(wrapper, *UNCHANGED):
        raise _refusal(name, kind)


def _add_wrapper(
    wrapper: Any,
    name: str,
    observations: list[Callable[[Any], Any]],
    actions: list[Callable[[Any], Any]],
    statistics: dict[str, Tensor],
) -> None:
    kind = type(wrapper).__name__
    if _is_a(wrapper, "NormalizeObservation"):
        observations.append(_normalisation(wrapper))
        statistics |= _statistics(kind, wrapper.obs_rms)
    elif _is_a(wrapper, *STATEFUL):
        raise _refusal(name, kind)
    elif _is_a(wrapper, "ObservationWrapper"):
        observations.append(wrapper.observation)
    elif _is_a(wrapper, "ActionWrapper"):
        actions.append(wrapper.action)
    elif wrapper.observation_space != wrapper.env.observation_space or wrapper.action_space != wrapper.env.action_space:
        raise _refusal(name, kind)


def _normalisation(wrapper: Any) -> Callable[[Any], Any]:
    """What NormalizeObservation of Gymnasium returns, without an update of its statistics."""

    def normalise(row: Any) -> Any:
        scale = np.sqrt(wrapper.obs_rms.var + wrapper.epsilon)
        return np.float32((row - wrapper.obs_rms.mean) / scale)

    return normalise


def _statistics(kind: str, running: Any) -> dict[str, Tensor]:
    return {f"{kind}.{name}": torch.as_tensor(np.asarray(getattr(running, name))) for name in ("mean", "var")}


def _apply(functions: list[Callable[[Any], Any]], value: Any) -> Any:
    for function in functions:
        value = function(value)
    return value


def _is_a(wrapper: object, *names: str) -> bool:
    """Whether a wrapper is of a class with one of the names, or derived from one; the libraries are optional."""
    return any(parent.__name__ in names for parent in type(wrapper).__mro__)


def _check_shape(model: object, shape: tuple[int, ...]) -> None:
    space_shape = getattr(getattr(model, "observation_space", None), "shape", None)
    if space_shape is not None and tuple(space_shape) != shape:
        raise InputError(
            f"{type(model).__name__} was trained on observations of shape {tuple(space_shape)}, the market shows its "
            f"normalised observation of one bar, of shape {shape}: train it on market.gym() without a frame stack"
        )


def _refusal(name: str, kind: str) -> InputError:
    return InputError(
        f"{name} was trained behind {kind}, and a backtest shows a model the normalised observation of one bar only: "
        f"train it without {kind}, or backtest an object whose predict(observation) does the same"
    )
