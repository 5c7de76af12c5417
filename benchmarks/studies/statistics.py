"""Statistics of scores over seeds."""

from __future__ import annotations

import math

import numpy as np

DRAWS = 10_000
LEVEL = 0.90


def ratio_of_variances(scores: np.ndarray, reference: np.ndarray, *, is_paired: bool) -> tuple[float, float, float]:
    """Return var(scores) / var(reference) of scores [n] and [m], and its percentile bootstrap interval.

    is_paired: resample pairs of equal seeds (n = m), otherwise both samples independently.
    """
    rng = np.random.default_rng(0)
    indices = rng.integers(0, len(scores), (DRAWS, len(scores)))
    chosen_reference = indices if is_paired else rng.integers(0, len(reference), (DRAWS, len(reference)))
    denominator = reference[chosen_reference].var(1, ddof=1)
    is_usable = denominator > 0  # a resample may repeat a single seed
    ratios = scores[indices].var(1, ddof=1)[is_usable] / denominator[is_usable]
    low, high = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    variance = reference.var(ddof=1)
    return float(scores.var(ddof=1) / variance) if variance else math.inf, float(low), float(high)
