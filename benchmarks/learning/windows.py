"""Compare learning with environments that share a window of days and with a separate window for each.

    python -m benchmarks windows --out benchmarks/windows.json

Trains the agents of the learning benchmarks on the leaked and the planted signal twice from equal seeds: in the default
groups, and with a group for each environment; all else is equal, in float32.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.harness.rows import Row, as_json, as_table, describe, document
from benchmarks.learning.leaked_signal import EQUIVARIANT, MLP, capture_row
from benchmarks.learning.planted import RECIPE, planted_row
from benchmarks.learning.training import Recipe

TASKS: dict[str, tuple[Callable[[str, Recipe, int, torch.device], Row], Recipe]] = {
    "leaked_ppo": (capture_row, EQUIVARIANT),
    "leaked_ppo_mlp": (capture_row, MLP),
    "planted_ppo": (planted_row, RECIPE),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(TASKS), help="may be given repeatedly")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samples", type=int, help="training samples of every agent")
    parser.add_argument("--out", type=Path, help="write the JSON to this file")
    options = parser.parse_args()
    rows = []
    for name in options.only or TASKS:
        measure, recipe = TASKS[name]
        recipe = replace(recipe, samples=options.samples or recipe.samples)
        separate = replace(recipe, environment=replace(recipe.environment, group=1))
        for label, each in (
            (f"{name}, {recipe.environment.group} per window", recipe),
            (f"{name}, 1 per window", separate),
        ):
            rows.append(measure(label, each, options.seeds, torch.device("cpu")))
    sys.stdout.write(as_table(rows))
    if options.out is not None:
        options.out.write_text(as_json(document(rows, describe(torch.device("cpu")))))
