"""Statistics of the study of agents: an account beside its base, seeds averaged first, with bootstrap intervals."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.harness.rows import FOLDER, Record
from finrl_pod.evaluate.intervals import resample_bars
from finrl_pod.types import Floats

YEAR = 252
# bootstrap histories, mean block in bars, coverage
DRAWS = 2_000
BLOCK = 63.0
LEVEL = 0.90
MEASURES = ("sharpe_difference", "information_ratio", "alpha", "active_return", "tracking_error", "beta")

Cell = Sequence[tuple[Floats, Floats]]  # simple returns [T] of an account and of its base, for each seed


def protocol(name: str) -> str:
    return hashlib.sha256((FOLDER / name).read_bytes()).hexdigest()


def measures(account: Floats, base: Floats) -> dict[str, Floats]:
    """Annual measures [D] of simple returns [D, T] against a base [D, T]; see `MEASURES` and agents-protocol-1.md."""
    active = account - base
    deviations = base - base.mean(1, keepdims=True)
    slope = (active * deviations).sum(1) / (deviations**2).sum(1)
    alpha = active - slope[:, None] * base
    return {
        "sharpe_difference": _ratio(account) - _ratio(base),
        "information_ratio": _ratio(alpha),
        "alpha": YEAR * alpha.mean(1),
        "active_return": YEAR * active.mean(1),
        "tracking_error": np.sqrt(YEAR) * active.std(1, ddof=1),
        "beta": 1 + slope,
    }


def _ratio(returns: Floats) -> Floats:
    """Annual ratios [D] of mean and standard deviation of [D, T]; 0 where nothing varies."""
    deviation = returns.std(1, ddof=1)
    return np.asarray(returns.mean(1) / np.where(deviation > 1e-12, deviation, np.inf) * np.sqrt(YEAR))


def pool_measures(cells: Mapping[str, Cell]) -> dict[str, tuple[float, float, float]]:
    """Mean of each measure over seeds, then over cells, with its interval.

    Keys of cells that share their test years end in the same four digits and more after the last "/": they and all
    seeds of a cell get the same bars in a draw.
    """
    values = dict.fromkeys(MEASURES, 0.0)
    resamples = {name: np.zeros(DRAWS) for name in MEASURES}
    for key, seeds in cells.items():
        year = int(key.rsplit("/", 1)[1][:4])
        bars = resample_bars(len(seeds[0][0]), BLOCK, DRAWS, np.random.default_rng([year]))
        for account, base in seeds:
            share = 1 / (len(seeds) * len(cells))
            for name, value in measures(account[None], base[None]).items():
                values[name] += share * float(value[0])
            for name, value in measures(account[bars], base[bars]).items():
                resamples[name] += share * value
    result = {}
    for name in MEASURES:
        low, high = np.quantile(resamples[name], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        result[name] = (values[name], float(low), float(high))
    return result


def record(name: str, value: float, low: float, high: float, config: Mapping[str, Any], unit: str = "") -> Record:
    return {"name": name, "value": value, "low": low, "high": high, "unit": unit, "config": dict(config)}


def single_record(name: str, value: float, config: Mapping[str, Any]) -> Record:
    return record(name, value, value, value, config)


def autoregressive(rng: np.random.Generator, bars: int, assets: int, half_life: float) -> Floats:
    """AR(1) series [T, N] of unit variance with a half-life in bars."""
    from scipy.signal import lfilter

    persistence = 0.5 ** (1 / half_life)
    shocks = rng.normal(size=(bars, assets)) * np.sqrt(1 - persistence**2)
    shocks[0] /= np.sqrt(1 - persistence**2)
    return np.asarray(lfilter([1.0], [1.0, -persistence], shocks, axis=0))
