"""What the tournament may change in an agent: ranges around the config's values, draws and perturbations."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from finrl_pod.config import AgentConfig

# How far a fresh draw may lie from the config's value: factors for rates, bounds for the rest.
RATE_FACTOR = 3.0
BOUNDS: Mapping[str, tuple[float, float]] = {
    "learning_rate": (1e-5, 1e-1),
    "discount": (0.0, 0.999),
    "gae_lambda": (0.0, 0.999),
    "clip": (0.05, 0.5),
}
LEARNING_RATE, HORIZONS = "learning_rate", ("discount", "gae_lambda")


def configured(config: AgentConfig) -> dict[str, float]:
    """The config's own values of what may change."""
    return {name: float(getattr(config, name)) for name in BOUNDS}


def draw(config: AgentConfig, stream: np.random.Generator) -> dict[str, float]:
    """A fresh choice: rates log-uniform within a factor of 3 of the config's, clip within 1.5.

    discount and gae_lambda are drawn through their horizons 1 / (1 - x), which is where they act.
    """
    centre = configured(config)
    spread = math.log(RATE_FACTOR)
    values = {
        name: _move(name, value, math.exp(stream.uniform(-spread, spread) * (0.37 if name == "clip" else 1.0)))
        for name, value in centre.items()
    }
    return values


def perturb(
    values: Mapping[str, float], factor: float, resample: float, config: AgentConfig, stream: np.random.Generator
) -> dict[str, float]:
    """Each value multiplied or divided by `factor` at even odds, or with probability `resample` drawn anew."""
    fresh = draw(config, stream)
    moved = {}
    for name in BOUNDS:
        up, anew = stream.random() < 0.5, stream.random() < resample
        moved[name] = fresh[name] if anew else _move(name, values[name], factor if up else 1 / factor)
    return moved


def _move(name: str, value: float, factor: float) -> float:
    """A value times a factor, or its horizon times the factor, held within its bounds."""
    low, high = BOUNDS[name]
    moved = 1 - (1 - value) / factor if name in HORIZONS and value < 1 else value * factor
    return min(max(moved, low), high)
