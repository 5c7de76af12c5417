"""Learning on markets with a known optimum: leaked and planted signals, placebos, and markets without an edge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from benchmarks.harness.options import check_minimum
from benchmarks.harness.rows import CPU, Row
from benchmarks.learning.leaked_signal import EQUIVARIANT, MLP, capture_row, placebo_row
from benchmarks.learning.noise import TOURNAMENT, noise_row
from benchmarks.learning.planted import RECIPE, planted_row
from benchmarks.learning.training import RECIPE_NAMES, Recipe, recipe

Measure = Callable[[str, Recipe, int, torch.device], Row]
# name -> function, recipe, number of seeds
BENCHMARKS: Mapping[str, tuple[Measure, Recipe, int]] = {
    "leaked_ppo": (capture_row, EQUIVARIANT, 3),
    "leaked_ppo_mlp": (capture_row, MLP, 1),
    **{f"leaked_{name}": (capture_row, recipe(name), 3) for name in RECIPE_NAMES},
    "placebo_shifted_ppo": (partial(placebo_row, kind="shifted"), EQUIVARIANT, 1),
    "placebo_shuffled_ppo": (partial(placebo_row, kind="shuffled"), EQUIVARIANT, 1),
    "planted_ppo": (planted_row, RECIPE, 3),
}
NOISE = "noise_ppo"
NOISE_SEEDS = 20


@dataclass(frozen=True)
class LearnSettings:
    """Settings of `learn`. only: names of rows; empty for all.

    seeds, samples: numbers for every row; None for its own. samples: number per agent (noise_ppo: per pod and
    generation).
    """

    only: tuple[str, ...] = field(default=(), metadata={"choices": (*BENCHMARKS, NOISE)})
    seeds: int | None = None
    samples: int | None = None


def learn_rows(settings: LearnSettings, device: torch.device = CPU) -> Iterator[Row]:
    """Measure the selected rows in order. Raises ConfigError for settings out of range."""
    check_minimum(settings, seeds=1, samples=1)
    for name, (measure, default, seeds) in BENCHMARKS.items():
        if not settings.only or name in settings.only:
            sized_recipe = default if settings.samples is None else replace(default, samples=settings.samples)
            yield measure(name, sized_recipe, settings.seeds or seeds, device)
    if not settings.only or NOISE in settings.only:
        samples = settings.samples or TOURNAMENT.samples_per_generation
        tournament = replace(TOURNAMENT, samples_per_generation=samples)
        yield noise_row(NOISE, tournament, settings.seeds or NOISE_SEEDS, device)
