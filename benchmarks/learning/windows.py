"""Learning with environments that share a window of days and with a separate window for each.

Trains agents on the leaked and the planted signal twice from equal seeds: in the default groups, and with a group for
each environment; all else is equal, in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch

from benchmarks.harness.rows import CPU, Row
from benchmarks.learning.leaked_signal import EQUIVARIANT, MLP, capture_row
from benchmarks.learning.planted import RECIPE, planted_row

Task = Literal["leaked_ppo", "leaked_ppo_mlp", "planted_ppo"]
TASKS = {
    "leaked_ppo": (capture_row, EQUIVARIANT),
    "leaked_ppo_mlp": (capture_row, MLP),
    "planted_ppo": (planted_row, RECIPE),
}


@dataclass(frozen=True)
class WindowSettings:
    """Settings of `windows`. samples: training samples of every agent; None for the numbers of its recipe."""

    only: tuple[Task, ...] = ()
    seeds: int = 3
    samples: int | None = None


def window_rows(settings: WindowSettings, device: torch.device = CPU) -> Iterator[Row]:
    """Measure every task with shared and with separate windows."""
    for name in settings.only or TASKS:
        measure, recipe = TASKS[name]
        for group in (recipe.environment.group, 1):
            grouped_recipe = replace(
                recipe, samples=settings.samples or recipe.samples, environment=replace(recipe.environment, group=group)
            )
            yield measure(f"{name}, {group} per window", grouped_recipe, settings.seeds, device)
