"""What the tournament may change in an agent: ranges around the config's values, draws and perturbations."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from finrl_pod.config import AgentConfig

# How far a fresh draw may lie from the config's value: a factor, a smaller one for what is sensitive, and bounds. Of
# these settings an algorithm is searched over those that it has.
RATE_FACTOR = 3.0
NARROW = 0.37  # of the logarithm of that factor
BOUNDS: Mapping[str, tuple[float, float]] = {
    "learning_rate": (1e-5, 1e-1),
    "discount": (0.0, 0.999),
    "gae_lambda": (0.0, 0.999),
    "clip": (0.05, 0.5),
    "exploration": (0.01, 0.5),
    "target_rate": (1e-4, 1.0),
}
HORIZONS, SENSITIVE = ("discount", "gae_lambda"), ("clip", "exploration")


def searched(config: AgentConfig) -> tuple[str, ...]:
    """The settings of an algorithm that may change."""
    return tuple(name for name in BOUNDS if hasattr(config, name))


def configured(config: AgentConfig) -> dict[str, float]:
    """The config's own values of what may change."""
    return {name: float(getattr(config, name)) for name in searched(config)}


def draw(config: AgentConfig, stream: np.random.Generator) -> dict[str, float]:
    """A fresh choice: rates log-uniform within a factor of 3 of the config's, the sensitive ones within 1.5.

    discount and gae_lambda are drawn through their horizons 1 / (1 - x), which is where they act.
    """
    centre = configured(config)
    spread = math.log(RATE_FACTOR)
    values = {
        name: _move(name, value, math.exp(stream.uniform(-spread, spread) * (NARROW if name in SENSITIVE else 1.0)))
        for name, value in centre.items()
    }
    return values


def perturb(
    values: Mapping[str, float], factor: float, resample: float, config: AgentConfig, stream: np.random.Generator
) -> dict[str, float]:
    """Each value multiplied or divided by `factor` at even odds, or with probability `resample` drawn anew."""
    fresh = draw(config, stream)
    moved = {}
    for name in searched(config):
        up, anew = stream.random() < 0.5, stream.random() < resample
        moved[name] = fresh[name] if anew else _move(name, values[name], factor if up else 1 / factor)
    return moved


def _move(name: str, value: float, factor: float) -> float:
    """A value times a factor, or its horizon times the factor, held within its bounds."""
    low, high = BOUNDS[name]
    # A horizon without end is brought to the longest that is drawn: it could not be multiplied.
    moved = 1 - (1 - min(value, high)) / factor if name in HORIZONS else value * factor
    return min(max(moved, low), high)
