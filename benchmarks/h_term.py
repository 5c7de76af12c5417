"""What the H-term does to the spread over seeds: PPO with and without it, on the planted signal, seed by seed.

    python benchmarks/h_term.py                              # small: 8 seeds, 100,000 samples
    python benchmarks/h_term.py --seeds 20 --weights 0 0.3 1 3   # what is recorded
    python benchmarks/h_term.py --seeds 0                    # no training: the table of what is there

Every finished training is a line of `benchmarks/h_term.jsonl` (weight, seed, samples, share of the reachable growth on
bars not trained on, seconds), and lines that are there are not run again: a study can be stopped and gone on with.
All weights see the same seeds. The table gives the mean over the seeds, their variance, and the ratio of variances to
that without the term with its 90% interval, by a bootstrap over pairs of equal seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from finrl_pod_app.bench.planted import RECIPE, planted_market, share_of_attainable
from results_file import append, read

from finrl_pod.settings.algorithm_configs import PPOConfig
from finrl_pod.settings.run import EnvironmentConfig

RESULTS_FILE = Path(__file__).with_name("h_term.jsonl")
BARS, ASSETS = 4_000, 10
DRAWS, LEVEL = 10_000, 0.90
INFORMATION = 0.1


def main() -> int:
    options = _options()
    rows = read(options.keep)
    market, train_last = planted_market(0, BARS, ASSETS, INFORMATION)
    for seed in range(options.seeds):
        for weight in options.weights:
            if any(_same(row, weight, seed, options.samples) for row in rows):
                continue
            agent = PPOConfig(learning_rate=1e-2, h_term=weight)
            recipe = dataclasses.replace(
                RECIPE, environment=EnvironmentConfig(envs=128, group=16), agent=agent, samples=options.samples
            )
            label = f"h_term {weight:g} seed {seed}"
            share, run = share_of_attainable(market, train_last, recipe, seed, torch.device("cpu"), label)
            row = {
                "weight": weight,
                "seed": seed,
                "samples": options.samples,
                "share": share,
                "seconds": run["seconds"],
            }
            rows.append(row)
            append(options.keep, row)
    sys.stdout.write(table([row for row in rows if row["samples"] == options.samples]))
    return 0


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: for each weight the seeds, the mean, the variance, and its ratio to that of weight 0."""
    shares = {w: {r["seed"]: r["share"] for r in rows if r["weight"] == w} for w in sorted({r["weight"] for r in rows})}
    lines = [
        "| h_term | seeds | mean share | variance | variance against none (90% interval) |",
        "|---|---|---|---|---|",
    ]
    plain = shares.get(0.0, {})
    for weight, own in shares.items():
        values = np.array(list(own.values()))
        both = sorted(own.keys() & plain.keys())
        text = "–"
        if weight and len(both) >= 3:
            ratio, low, high = ratio_of_variances(
                np.array([own[s] for s in both]), np.array([plain[s] for s in both]), np.random.default_rng(0)
            )
            text = f"{ratio:.2f} ({low:.2f} to {high:.2f})"
        variance = f"{values.var(ddof=1):.2e}" if len(values) > 1 else "–"
        lines.append(f"| {weight:g} | {len(values)} | {values.mean():.3f} | {variance} | {text} |")
    return "\n".join(lines) + "\n"


def ratio_of_variances(
    one: np.ndarray, other: np.ndarray, generator: np.random.Generator
) -> tuple[float, float, float]:
    """var(one) / var(other) of pairs [n] and its percentile interval over resampled pairs."""
    chosen = generator.integers(0, len(one), (DRAWS, len(one)))
    below = other[chosen].var(1)
    usable = below > 0  # a resample may repeat a single seed
    drawn = one[chosen].var(1)[usable] / below[usable]
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(one.var() / other.var()), float(low), float(high)


def _same(row: dict[str, Any], weight: float, seed: int, samples: int) -> bool:
    return row["weight"] == weight and row["seed"] == seed and row["samples"] == samples


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8, help="default %(default)s")
    parser.add_argument("--samples", type=int, default=100_000, help="of each training, default %(default)s")
    parser.add_argument("--weights", type=float, nargs="+", default=[0.0, 1.0], help="default 0 and 1")
    parser.add_argument("--keep", type=Path, default=RESULTS_FILE, help="default %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
