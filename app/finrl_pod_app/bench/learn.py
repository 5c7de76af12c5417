"""Which learning benchmarks there are, and how each is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from finrl_pod.errors import ConfigError
from finrl_pod_app.bench.leaked import EQUIVARIANT, MLP, capture_row, placebo_row
from finrl_pod_app.bench.noise import TOURNAMENT, noise_row
from finrl_pod_app.bench.planted import RECIPE, planted_row
from finrl_pod_app.bench.rows import Row
from finrl_pod_app.bench.training import NAMES, Recipe, recipe


@dataclass(frozen=True)
class LearnSettings:
    """seeds, samples: replace each benchmark's own where given. samples count for an agent (and, in the tournaments of
    the noise benchmark, for a pod and generation)."""

    device: torch.device
    seeds: int | None = None
    samples: int | None = None

    def of(self, recipe: Recipe) -> Recipe:
        """The recipe with these samples."""
        return recipe if self.samples is None else replace(recipe, samples=self.samples)


def _captures(name: str, recipe: Recipe, seeds: int) -> Callable[[LearnSettings], Row]:
    return lambda settings: capture_row(name, settings.of(recipe), settings.seeds or seeds, settings.device)


def _placebo(name: str, kind: str, seeds: int) -> Callable[[LearnSettings], Row]:
    return lambda settings: placebo_row(name, kind, settings.of(EQUIVARIANT), settings.seeds or seeds, settings.device)


def _planted(settings: LearnSettings) -> Row:
    return planted_row("planted_ppo", settings.of(RECIPE), settings.seeds or 3, settings.device)


def _noise(settings: LearnSettings) -> Row:
    tournament = (
        TOURNAMENT if settings.samples is None else replace(TOURNAMENT, samples_per_generation=settings.samples)
    )
    return noise_row("noise_ppo", tournament, settings.seeds or 20, settings.device)


BENCHMARKS: Mapping[str, Callable[[LearnSettings], Row]] = {
    "leaked_ppo": _captures("leaked_ppo", EQUIVARIANT, 3),
    "leaked_ppo_mlp": _captures("leaked_ppo_mlp", MLP, 1),
    **{f"leaked_{name}": _captures(f"leaked_{name}", recipe(name), 3) for name in NAMES},
    "placebo_shifted_ppo": _placebo("placebo_shifted_ppo", "shifted", 1),
    "placebo_shuffled_ppo": _placebo("placebo_shuffled_ppo", "shuffled", 1),
    "planted_ppo": _planted,
    "noise_ppo": _noise,
}


def learn_rows(settings: LearnSettings, only: Sequence[str] = ()) -> list[Row]:
    """The rows of the benchmarks named, or of all, in the order above. Raises ConfigError for settings out of range."""
    for name, value in (("seeds", settings.seeds), ("samples", settings.samples)):
        if value is not None and value < 1:
            raise ConfigError(f"--{name} must be at least 1, got {value}")
    return [benchmark(settings) for name, benchmark in BENCHMARKS.items() if not only or name in only]
