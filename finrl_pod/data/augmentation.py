"""Variations of a panel for training: bootstrapped histories, random subsets of the assets.

All functions return a new panel with the same bars and symbols, so that features and fills are computed from the
changed prices. Money traded (price times volume) of a bar is kept.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finrl_pod.types import PRICE_COLUMNS, Bools, Panel

REDRAWS = 16  # rows drawn for an asset that has no return in the first; then any in which it has one

Rows = NDArray[np.int64]


def bootstrap(panel: Panel, first: int, last: int, block: float, rng: np.random.Generator) -> Panel:
    """Panel whose returns after bar `first` are drawn from those of the bars first + 1..last in blocks.

    The stationary bootstrap of Politis and Romano (1994): blocks start anywhere, have geometric lengths of mean
    `block` bars, and continue at the range's start after its end. Whole rows are drawn, so that the dependence between
    assets and within a block is kept: close-to-close returns, each bar's open, high and low relative to its close, its
    money traded and spread, and the benchmark. When an asset trades is not changed; where it has no return in the
    drawn row, it takes that of the next row drawn in which it has one. Bars up to `first` and after `last` keep their
    returns.
    """
    drawn = np.stack([stationary_rows(first + 1, last, block, rng) for _ in range(REDRAWS)])
    return resample_returns(panel, first, drawn, rng)


def stationary_rows(first: int, last: int, block: float, rng: np.random.Generator) -> Rows:
    """[last - first + 1] rows in first..last drawn by the stationary bootstrap with mean block length `block`."""
    count = last - first + 1
    begins = rng.random(count) < 1 / block
    begins[0] = True
    starts = rng.integers(0, count, count)
    position = np.arange(count)
    begin = np.maximum.accumulate(np.where(begins, position, 0))  # where the block of each position begins
    rows: Rows = first + (starts[begin] + position - begin) % count
    return rows


def resample_returns(panel: Panel, first: int, drawn: Rows, rng: np.random.Generator) -> Panel:
    """Panel in which bar first + 1 + i has the returns of bar drawn[0, i].

    drawn: [K, L]; rows after the first are for assets without a return in the rows before, in order; after the last,
    `rng` draws any bar of the asset's own among the bars first + 1..first + L.
    """
    bars, assets = panel.close.shape
    target = slice(first + 1, first + 1 + drawn.shape[1])
    row, asset = np.arange(bars)[:, None], np.arange(assets)
    latest = np.maximum.accumulate(np.where(panel.tradable, row, -1), axis=0)
    previous = np.vstack([np.full((1, assets), -1), latest[:-1]])  # the asset's bar before each bar, -1 for none
    has_return = panel.tradable & (previous >= 0)
    log_close = np.log(np.where(panel.tradable, panel.close, 1.0))
    growth = np.where(has_return, log_close - log_close[previous, asset], 0.0)
    growth = np.where(panel.tradable & (previous < 0), log_close, growth)  # the level at an asset's first bar

    source = np.broadcast_to(row, (bars, assets)).copy()
    source[target] = _drawn_sources(has_return, target, drawn, rng)
    moved = np.where(has_return, np.take_along_axis(growth, source, 0), growth)
    close = np.exp(np.cumsum(moved, axis=0))
    columns: dict[str, Any] = {"close": np.where(panel.tradable, close, np.nan)}
    for name in panel.columns:
        if name != "close":
            unit = {"volume": 1 / panel.close, "spread": 1.0}.get(name, panel.close)
            drawn_unit = {"volume": 1 / columns["close"], "spread": 1.0}.get(name, columns["close"])
            columns[name] = np.take_along_axis(getattr(panel, name) / unit, source, 0) * drawn_unit
    benchmark = panel.benchmark
    if benchmark is not None:
        steps = np.diff(np.log(benchmark.close), prepend=np.log(benchmark.close[:1]))
        steps[target] = steps[drawn[0]]
        benchmark = dataclasses.replace(benchmark, close=benchmark.close[0] * np.exp(np.cumsum(steps)))
    return dataclasses.replace(panel, benchmark=benchmark, **columns)


def _drawn_sources(has_return: Bools, target: slice, drawn: Rows, rng: np.random.Generator) -> Rows:
    """[L, N] bar from which each asset takes its return; its own where it has none."""
    needed = has_return[target]
    own = np.arange(target.start, target.stop)[:, None]
    source: Rows = np.broadcast_to(own, needed.shape).copy()
    missing = needed.copy()
    for rows in drawn:
        found = missing & has_return[rows]
        np.copyto(source, rows[:, None], where=found)
        missing &= ~found
        if not missing.any():
            return source
    for asset in np.flatnonzero(missing.any(0)):
        cells = missing[:, asset]
        source[cells, asset] = target.start + rng.choice(np.flatnonzero(needed[:, asset]), cells.sum())
    return source


def without_assets(panel: Panel, kept: Bools) -> Panel:
    """Panel in which the assets that are not `kept` [N] never trade; features that compare assets exclude them."""
    prices = [name for name in panel.columns if name in PRICE_COLUMNS]
    columns: dict[str, Any] = {name: np.where(kept, getattr(panel, name), np.nan) for name in prices}
    return dataclasses.replace(panel, tradable=panel.tradable & kept, **columns)
