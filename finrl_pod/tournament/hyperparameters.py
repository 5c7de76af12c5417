"""The search space: which hyperparameters are searched, and how they are sampled and perturbed.

Values are sampled and moved by factors. No factor leaves 0, so an entropy coefficient of 0 stays or is sampled from a
log-uniform range, at even odds; one that falls below that range becomes 0. Other values stay above 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from finrl_pod.settings.algorithm_configs import AgentConfig

Search = Literal["full", "narrow", "off"]
# Hyperparameters that are searched, if the algorithm has them, and their bounds. Samples are log-uniform within
# RATE_FACTOR of the value in the config, sensitive ones within RATE_FACTOR ** SENSITIVE_EXPONENT.
RATE_FACTOR = 3.0
SENSITIVE_EXPONENT = 0.37
BOUNDS: Mapping[str, tuple[float, float]] = {
    "learning_rate": (1e-5, 1e-1),
    "gamma": (0.0, 0.999),
    "gae_lambda": (0.0, 0.999),
    "clip_range": (0.05, 0.5),
    "exploration_noise": (0.01, 0.5),
    "tau": (1e-4, 1.0),
    "entropy_coefficient": (0.0, 0.1),
    "value_coefficient": (0.05, 5.0),
}
WIDE = ("entropy_coefficient", "value_coefficient")  # left out of a narrow search
HORIZONS, SENSITIVE = ("gamma", "gae_lambda"), ("clip_range", "exploration_noise")
# Log-uniform range from which a value of 0 is sampled when it changes. Below it a value becomes 0.
FROM_ZERO: Mapping[str, tuple[float, float]] = {"entropy_coefficient": (1e-4, 1e-2)}


def searched_names(config: AgentConfig, search: Search = "full") -> tuple[str, ...]:
    """Names of the hyperparameters that are searched for a config, of all `BOUNDS` or, if narrow, without `WIDE`.

    An entropy coefficient is searched unless it is negative.
    """
    left_out = {*BOUNDS} if search == "off" else {*WIDE} if search == "narrow" else set()
    names = [name for name in BOUNDS if name not in left_out and hasattr(config, name)]
    return tuple(name for name in names if getattr(config, name) >= 0)


def config_values(config: AgentConfig, search: Search = "full") -> dict[str, float]:
    """Values of the searched hyperparameters in a config."""
    return {name: float(getattr(config, name)) for name in searched_names(config, search)}


def sample_hyperparameters(config: AgentConfig, rng: np.random.Generator, search: Search = "full") -> dict[str, float]:
    """Sample hyperparameters: log-uniform within a factor of 3 of the values in the config, sensitive ones within 1.5.

    gamma and gae_lambda are sampled through their horizons 1 / (1 - x); an entropy coefficient of 0 as the module says.
    """
    return _sample(config_values(config, search), rng)


def perturb(
    values: Mapping[str, float],
    factor: float,
    resample: float,
    config: AgentConfig,
    rng: np.random.Generator,
    search: Search = "full",
) -> dict[str, float]:
    """Multiply or divide each value by `factor` at even odds, or resample it with probability `resample`."""
    centre = config_values(config, search)
    samples = _sample(centre, rng)
    perturbed_values = {}
    for name in centre:
        is_up = rng.random() < 0.5
        is_resampled = rng.random() < resample
        value = values.get(name, centre[name])
        perturbed_values[name] = (
            samples[name] if is_resampled else _move(name, value, factor if is_up else 1 / factor, rng)
        )
    return perturbed_values


def _sample(centre: Mapping[str, float], rng: np.random.Generator) -> dict[str, float]:
    spread = math.log(RATE_FACTOR)
    samples = {}
    for name, value in centre.items():
        exponent = SENSITIVE_EXPONENT if name in SENSITIVE else 1.0
        samples[name] = _move(name, value, math.exp(rng.uniform(-spread, spread) * exponent), rng)
    return samples


def _move(name: str, value: float, factor: float, rng: np.random.Generator) -> float:
    """Value times factor, or for discount factors the horizon times factor, clamped to the bounds."""
    low, high = BOUNDS[name]
    if name in FROM_ZERO:
        lowest, highest = FROM_ZERO[name]
        sample = math.exp(rng.uniform(math.log(lowest), math.log(highest)))
        if value == 0:
            return sample if factor > 1 else 0.0
        moved_value = value * factor
        return 0.0 if moved_value < lowest and factor < 1 else min(moved_value, high)
    # An infinite horizon is limited first: it cannot be multiplied.
    moved_value = 1 - (1 - min(value, high)) / factor if name in HORIZONS else value * factor
    return min(max(moved_value, low), high)
