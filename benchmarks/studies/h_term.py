"""Measure the H-term: a regulariser of PPO that raises the likelihood of the best stored trajectories.

It is meant to reduce the variance over seeds (the paper that docs/algorithms.md cites); here on the planted signal.

    python -m benchmarks h-term                              # small: 8 seeds, 100,000 samples
    python -m benchmarks h-term --seeds 20 --weights 0 0.3 1 3   # the recorded results
    python -m benchmarks h-term --seeds 0                    # existing results

Every finished training is a line of `benchmarks/h_term.jsonl` (weight, seed, samples, seconds, and share: the
fraction of the attainable growth on held-out bars); existing ones are not repeated, so a study can be interrupted. All
weights use the same seeds. The table shows mean and variance over the seeds, and the ratio of variances to weight 0
with its 90% interval, by a bootstrap over pairs of equal seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness.results import FOLDER, append, read
from benchmarks.learning.planted import RECIPE, attained_fraction, planted_market
from finrl_pod.settings.algorithm_configs import PPOConfig
from finrl_pod.settings.run import EnvironmentConfig

RESULTS_FILE = FOLDER / "h_term.jsonl"
BARS, ASSETS = 4_000, 10
DRAWS, LEVEL = 10_000, 0.90
INFORMATION_COEFFICIENT = 0.1


def main() -> int:
    options = _options()
    rows = read(options.results)
    market, train_last = planted_market(0, BARS, ASSETS, INFORMATION_COEFFICIENT)
    for seed in range(options.seeds):
        for weight in options.weights:
            if any(_matches(row, weight, seed, options.samples) for row in rows):
                continue
            agent = PPOConfig(learning_rate=1e-2, h_term=weight)
            recipe = dataclasses.replace(
                RECIPE, environment=EnvironmentConfig(envs=128, group=16), agent=agent, samples=options.samples
            )
            label = f"h_term {weight:g} seed {seed}"
            fraction, run = attained_fraction(market, train_last, recipe, seed, torch.device("cpu"), label)
            row = {
                "weight": weight,
                "seed": seed,
                "samples": options.samples,
                "share": fraction,
                "seconds": run["seconds"],
            }
            rows.append(row)
            append(options.results, row)
    sys.stdout.write(table([row for row in rows if row["samples"] == options.samples]))
    return 0


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table: per weight the seeds, mean, variance, and ratio of variances to weight 0."""
    weights = sorted({r["weight"] for r in rows})
    fractions = {w: {r["seed"]: r["share"] for r in rows if r["weight"] == w} for w in weights}
    lines = [
        "| h_term | seeds | mean fraction | variance | variance against none (90% interval) |",
        "|---|---|---|---|---|",
    ]
    without = fractions.get(0.0, {})
    for weight, own in fractions.items():
        values = np.array(list(own.values()))
        both = sorted(own.keys() & without.keys())
        text = "–"
        if weight and len(both) >= 3:
            ratio, low, high = ratio_of_variances(
                np.array([own[s] for s in both]), np.array([without[s] for s in both]), np.random.default_rng(0)
            )
            text = f"{ratio:.2f} ({low:.2f} to {high:.2f})"
        variance = f"{values.var(ddof=1):.2e}" if len(values) > 1 else "–"
        lines.append(f"| {weight:g} | {len(values)} | {values.mean():.3f} | {variance} | {text} |")
    return "\n".join(lines) + "\n"


def ratio_of_variances(
    one: np.ndarray, other: np.ndarray, generator: np.random.Generator
) -> tuple[float, float, float]:
    """Return var(one) / var(other) of paired scores [n] and its percentile interval over resampled pairs."""
    chosen = generator.integers(0, len(one), (DRAWS, len(one)))
    below = other[chosen].var(1)
    usable = below > 0  # a resample may repeat a single seed
    drawn = one[chosen].var(1)[usable] / below[usable]
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(one.var() / other.var()), float(low), float(high)


def _matches(row: dict[str, Any], weight: float, seed: int, samples: int) -> bool:
    return {"weight": weight, "seed": seed, "samples": samples}.items() <= row.items()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8, help="number of seeds, default %(default)s")
    parser.add_argument("--samples", type=int, default=100_000, help="samples of each training, default %(default)s")
    parser.add_argument(
        "--weights", type=float, nargs="+", default=[0.0, 1.0], help="weights of the H-term, default 0 and 1"
    )
    parser.add_argument("--results", type=Path, default=RESULTS_FILE, help="default %(default)s")
    return parser.parse_args()
