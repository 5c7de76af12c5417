"""The H-term: a regulariser of PPO that raises the likelihood of the best stored trajectories.

    python -m benchmarks h-term                                    # 8 seeds, 100,000 samples
    python -m benchmarks h-term --seeds 20 --weights 0 0.3 1 3     # the recorded results
    python -m benchmarks h-term --seeds 0                          # existing results

It is meant to reduce the variance over seeds (the paper that docs/algorithms.md cites); here on the planted signal. All
weights use the same seeds. Every finished training is a line of h_term.jsonl and is not repeated. Rows: fraction of the
attainable growth on held-out bars, and the ratio of variances to weight 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness.rows import CPU, FOLDER, Job, Row, median_row, read, run_missing
from benchmarks.learning.planted import RECIPE, attained_fraction, planted_market
from finrl_pod.settings.algorithm_configs import PPOConfig
from finrl_pod.settings.run import EnvironmentConfig

BARS = 4_000
ASSETS = 10
INFORMATION_COEFFICIENT = 0.1
FEWEST_PAIRS = 3
DRAWS = 10_000
LEVEL = 0.90


@dataclass(frozen=True)
class HTermSettings:
    """Settings of `h-term`. weights: weights of the H-term. samples: number per training."""

    seeds: int = 8
    samples: int = 100_000
    weights: tuple[float, ...] = (0.0, 1.0)
    results: Path = FOLDER / "h_term.jsonl"


def h_term_rows(settings: HTermSettings, device: torch.device = CPU) -> list[Row]:
    """Train what the file lacks; return the rows of all results with that number of samples."""
    samples = settings.samples
    jobs = (
        Job({"weight": weight, "seed": seed, "samples": samples}, partial(train, weight, seed, samples, device))
        for seed in range(settings.seeds)
        for weight in settings.weights
    )
    run_missing(settings.results, jobs)
    return [*rows_of([record for record in read(settings.results) if record["samples"] == samples])]


def train(weight: float, seed: int, samples: int, device: torch.device) -> dict[str, Any]:
    """Train PPO with a weight of the H-term; return the fraction of the attainable growth."""
    market, train_last = planted_market(0, BARS, ASSETS, INFORMATION_COEFFICIENT)
    recipe = replace(
        RECIPE,
        environment=EnvironmentConfig(envs=128, group=16),
        agent=PPOConfig(learning_rate=1e-2, h_term=weight),
        samples=samples,
    )
    share, details = attained_fraction(market, train_last, recipe, seed, device, f"h_term {weight:g} seed {seed}")
    return {"share": share, "seconds": details["seconds"]}


def rows_of(records: list[dict[str, Any]]) -> Iterator[Row]:
    """Rows of each weight: the fractions over seeds, and the ratio of variances to weight 0 over equal seeds."""
    weights = sorted({record["weight"] for record in records})
    shares = {w: {r["seed"]: r["share"] for r in records if r["weight"] == w} for w in weights}
    reference = shares.get(0.0, {})
    for weight, by_seed in shares.items():
        values = np.array(list(by_seed.values()))
        variance = float(values.var(ddof=1)) if len(values) > 1 else None
        config: dict[str, Any] = {"seeds": len(values), "mean": float(values.mean()), "variance": variance}
        yield median_row(f"h_term_{weight:g}", values.tolist(), "fraction of the attainable growth", config)
        pairs = sorted(by_seed.keys() & reference.keys())
        if weight and len(pairs) >= FEWEST_PAIRS:
            scores, reference_scores = (np.array([x[seed] for seed in pairs]) for x in (by_seed, reference))
            ratio, low, high = ratio_of_variances(scores, reference_scores)
            config = {"pairs": len(pairs), "interval": f"{LEVEL:.0%} bootstrap over pairs of seeds"}
            yield Row(f"h_term_{weight:g}_variance", ratio, low, high, "of the variance without it", config)


def ratio_of_variances(scores: np.ndarray, reference: np.ndarray) -> tuple[float, float, float]:
    """Return var(scores) / var(reference) of scores [n] of equal seeds, and its bootstrap interval over these pairs."""
    rng = np.random.default_rng(0)
    indices = rng.integers(0, len(scores), (DRAWS, len(scores)))
    denominator = reference[indices].var(1, ddof=1)
    is_usable = denominator > 0  # a resample may repeat a single seed
    ratios = scores[indices].var(1, ddof=1)[is_usable] / denominator[is_usable]
    low, high = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(scores.var(ddof=1) / reference.var(ddof=1)), float(low), float(high)
