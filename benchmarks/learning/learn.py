"""The learning benchmarks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.harness.rows import Row
from benchmarks.learning.leaked_signal import EQUIVARIANT, MLP, capture_row, placebo_row
from benchmarks.learning.noise import TOURNAMENT, noise_row
from benchmarks.learning.planted import RECIPE, planted_row
from benchmarks.learning.training import RECIPE_NAMES, Recipe, recipe
from finrl_pod.errors import ConfigError


@dataclass(frozen=True)
class LearnSettings:
    """Flags of `python -m benchmarks learn`.

    seeds, samples: override each benchmark's number. samples: per agent (in the noise benchmark's tournaments: per pod
    and generation).
    """

    device: torch.device
    seeds: int | None = None
    samples: int | None = None

    def apply_to(self, recipe: Recipe) -> Recipe:
        """Return the recipe with the overridden number of samples."""
        return recipe if self.samples is None else replace(recipe, samples=self.samples)


def _captures(name: str, recipe: Recipe, seeds: int) -> Callable[[LearnSettings], Row]:
    return lambda settings: capture_row(name, settings.apply_to(recipe), settings.seeds or seeds, settings.device)


def _placebo(name: str, kind: str, seeds: int) -> Callable[[LearnSettings], Row]:
    return lambda settings: placebo_row(
        name, kind, settings.apply_to(EQUIVARIANT), settings.seeds or seeds, settings.device
    )


def _planted(settings: LearnSettings) -> Row:
    return planted_row("planted_ppo", settings.apply_to(RECIPE), settings.seeds or 3, settings.device)


def _noise(settings: LearnSettings) -> Row:
    tournament = (
        TOURNAMENT if settings.samples is None else replace(TOURNAMENT, samples_per_generation=settings.samples)
    )
    return noise_row("noise_ppo", tournament, settings.seeds or 20, settings.device)


BENCHMARKS: Mapping[str, Callable[[LearnSettings], Row]] = {
    "leaked_ppo": _captures("leaked_ppo", EQUIVARIANT, 3),
    "leaked_ppo_mlp": _captures("leaked_ppo_mlp", MLP, 1),
    **{f"leaked_{name}": _captures(f"leaked_{name}", recipe(name), 3) for name in RECIPE_NAMES},
    "placebo_shifted_ppo": _placebo("placebo_shifted_ppo", "shifted", 1),
    "placebo_shuffled_ppo": _placebo("placebo_shuffled_ppo", "shuffled", 1),
    "planted_ppo": _planted,
    "noise_ppo": _noise,
}


def learn_rows(settings: LearnSettings, only: Sequence[str] = ()) -> list[Row]:
    """Run the named benchmarks, or all, in order. Raises ConfigError for settings out of range."""
    for name, value in (("seeds", settings.seeds), ("samples", settings.samples)):
        if value is not None and value < 1:
            raise ConfigError(f"--{name} must be at least 1, got {value}")
    return [benchmark(settings) for name, benchmark in BENCHMARKS.items() if not only or name in only]
