"""Synthetic panels with the features of real ones: gaps, late listings and delistings."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from finrl_pod.types import Benchmark, Floats, Panel

START, END = 40, 360


def panel(close: Floats, name: str = "synthetic", **columns: Any) -> Panel:
    """A panel of closes [T, N] (tradable where finite), with optional further columns."""
    bars, assets = close.shape
    return Panel(
        times=np.datetime64("2020-01-01", "ns") + np.arange(bars).astype("timedelta64[D]"),
        symbols=tuple(f"S{i}" for i in range(assets)),
        close=close,
        tradable=np.isfinite(close),
        name=name,
        **columns,
    )


def random_panel(seed: int = 0, bars: int = 420, assets: int = 6) -> Panel:
    """OHLCV, sectors and an index. S1 starts at bar START, S2 ends with bar END, S3 has gaps, S4 repeats closes.

    The sectors are "a" for S0, S1, S3, ..., "b" for S2, S4, ... and "c" for the last asset.
    """
    rng = np.random.default_rng(seed)
    returns = rng.normal(3e-4, 0.015, (bars, assets)) + rng.normal(0, 0.01, (bars, 1))
    returns[rng.random(bars) < 0.3, 4] = 0.0
    close = 50 * np.exp(returns.cumsum(0))
    open_ = close * np.exp(rng.normal(0, 0.005, close.shape))
    high = np.maximum(open_, close) * np.exp(rng.random(close.shape) * 0.01)
    low = np.minimum(open_, close) * np.exp(-rng.random(close.shape) * 0.01)
    listed = np.ones(close.shape, dtype=bool)
    listed[:START, 1] = False
    listed[END + 1 :, 2] = False
    listed[rng.random(bars) < 0.1, 3] = False
    listed[100:112, 3] = False
    masked: dict[str, Any] = {
        name: np.where(listed, values, np.nan)
        for name, values in {
            "open": open_,
            "high": high,
            "low": low,
            "volume": rng.uniform(1e5, 1e6, close.shape),
        }.items()
    }
    index = Benchmark("synthetic index", 1000 * np.exp(rng.normal(0, 0.01, bars).cumsum()), True)
    sectors = ["b" if n % 2 == 0 and n else "a" for n in range(assets - 1)]
    return dataclasses.replace(
        panel(np.where(listed, close, np.nan), **masked), benchmark=index, sectors=(*sectors, "c")
    )


def changed_after(source: Panel, bar: int, how: str, seed: int = 1) -> Panel:
    """The panel with the bars after `bar` changed: "perturbed", "permuted", "missing", "filled" (gaps trade), "cut"."""
    rng = np.random.default_rng(seed)
    columns = {name: getattr(source, name).copy() for name in source.columns}
    index, later = source.benchmark, slice(bar + 1, None)
    if how == "cut":
        return dataclasses.replace(
            source,
            times=source.times[: bar + 1],
            tradable=source.tradable[: bar + 1],
            benchmark=None if index is None else dataclasses.replace(index, close=index.close[: bar + 1]),
            **{name: values[: bar + 1] for name, values in columns.items()},
        )
    order = bar + 1 + rng.permutation(len(source.times) - bar - 1)
    missing = rng.random(source.close[later].shape) < 0.5
    for values in columns.values():
        if how == "perturbed":
            values[later] *= np.exp(rng.normal(0, 0.3, values[later].shape))
        elif how == "permuted":
            values[later] = values[order]
        elif how == "missing":
            values[later][missing] = np.nan
        elif how == "filled":
            values[later] = np.where(np.isfinite(values[later]), values[later], 77.0)
    if index is not None:
        later_index = index.close[order] * np.exp(rng.normal(0, 0.3))
        index = dataclasses.replace(index, close=np.concatenate([index.close[: bar + 1], later_index]))
    return dataclasses.replace(
        source,
        tradable=np.isfinite(columns["close"]),
        benchmark=index,
        **columns,
    )
