"""Panels whose later bars differ: cut, permuted, or with other prices."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from finrl_pod.data.flaws import MAX_SPREAD
from finrl_pod.types import Panel


def cut(panel: Panel, first: int, stop: int) -> Panel:
    """Bars first to stop - 1 of a panel."""
    return _rows(panel, np.arange(first, stop))


def permuted(panel: Panel, t: int, seed: int) -> Panel:
    """The panel with the bars after t in random order, at the same times."""
    later = np.random.default_rng(seed).permutation(np.arange(t + 1, len(panel.times)))
    moved = _rows(panel, np.concatenate([np.arange(t + 1), later]))
    return dataclasses.replace(moved, times=panel.times.copy())


def perturbed(panel: Panel, t: int, seed: int, volatility: float = 0.05) -> Panel:
    """The panel with the prices and volumes after t multiplied by a random walk for each ticker."""
    rng = np.random.default_rng(seed)
    bars, assets = panel.close.shape
    walk = np.ones((bars, assets + 2))
    walk[t + 1 :] = np.exp(np.cumsum(rng.normal(0, volatility, (bars - t - 1, assets + 2)), 0))
    changed: dict[str, Any] = {
        c: getattr(panel, c) * (walk[:, -2:-1] if c == "volume" else walk[:, :assets]) for c in panel.columns
    }
    if "spread" in changed:  # a fraction of the price
        changed["spread"] = np.minimum(changed["spread"], np.nextafter(MAX_SPREAD, 0.0))
    benchmark = panel.benchmark
    if benchmark is not None:
        benchmark = dataclasses.replace(benchmark, close=benchmark.close * walk[:, -1])
    return dataclasses.replace(panel, benchmark=benchmark, **changed)


def _rows(panel: Panel, rows: np.ndarray) -> Panel:
    benchmark = panel.benchmark
    if benchmark is not None:
        benchmark = dataclasses.replace(benchmark, close=benchmark.close[rows].copy())
    columns: dict[str, Any] = {c: getattr(panel, c)[rows].copy() for c in panel.columns}
    if panel.members is not None:
        columns["members"] = panel.members[rows].copy()
    return dataclasses.replace(
        panel, times=panel.times[rows].copy(), tradable=panel.tradable[rows].copy(), benchmark=benchmark, **columns
    )
