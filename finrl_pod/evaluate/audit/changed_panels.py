"""Panels whose later bars differ: cut, permuted, or random."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from finrl_pod.data.flaws import MAX_SPREAD
from finrl_pod.types import Bools, Floats, Panel

WALK, NOISE = 0.03, 0.08  # standard deviations of log factors: steps of a ticker's level, and each price by itself
VOLUME_NOISE = 0.7
CHANGED_SHARE = 1 / 3  # of the tickers, whose later bars are missing or added
MISSING_SHARE = 0.3  # of the later bars of a ticker with gaps
DIVIDEND_SHARE, DIVIDEND = 0.1, 0.01  # of the later bars, and of the close


def cut(panel: Panel, first: int, stop: int) -> Panel:
    """Bars first to stop - 1 of a panel."""
    return _rows(panel, np.arange(first, stop))


def permuted(panel: Panel, t: int, seed: int) -> Panel:
    """The panel with the bars after t in random order, at the same times."""
    later = np.random.default_rng(seed).permutation(np.arange(t + 1, len(panel.times)))
    moved = _rows(panel, np.concatenate([np.arange(t + 1), later]))
    return dataclasses.replace(moved, times=panel.times.copy())


def with_random_future(panel: Panel, t: int, seed: int, *, gaps: bool = True) -> Panel:
    """The panel with other prices, volumes, spreads, dividends and members after bar t, and the same up to it.

    Every ticker and every column gets factors of its own, so that neither a comparison of tickers nor a ratio of
    columns cancels them; low <= open, close <= high stays true where it was.
    gaps: a third of the tickers also ends after t, or has gaps, or trades on bars where it did not. A ticker that ended
    by t does not come back, and one in a gap does not end: environments pay for what is delisted when it ends.
    """
    rng = np.random.default_rng(seed)
    after = slice(t + 1, None)
    columns: dict[str, Any] = {name: getattr(panel, name).copy() for name in panel.columns}
    later = {name: values[after] for name, values in columns.items()}  # views
    tradable = panel.tradable.copy()
    if gaps:
        traded = _other_availability(panel, t, rng)
        _fill_new_bars(panel, later, traded & ~tradable[after])
        for values in later.values():
            values[~traded] = np.nan
        tradable[after] = traded
    _randomise(later, rng)
    members = panel.members
    if members is not None and gaps:
        members = members.copy()
        members[after] ^= rng.random(len(panel.symbols)) < CHANGED_SHARE
    benchmark = panel.benchmark
    if benchmark is not None:
        close = benchmark.close.copy()
        close[after] *= _level(close[after].shape, rng) * _factors(close[after].shape, NOISE, rng)
        benchmark = dataclasses.replace(benchmark, close=close)
    return dataclasses.replace(panel, tradable=tradable, members=members, benchmark=benchmark, **columns)


def _randomise(later: dict[str, Floats], rng: np.random.Generator) -> None:
    """Multiply the later rows of all columns, in place, by random factors."""
    shape = later["close"].shape
    level = _level(shape, rng)
    before = {name: values.copy() for name, values in later.items()}
    inner = [column for column in ("open", "close") if column in later]
    for column in inner:
        later[column] *= level * _factors(shape, NOISE, rng)
    # The distances of the high above, and of the low below, the open and the close.
    for name, extreme, sign in (("high", np.maximum, 1.0), ("low", np.minimum, -1.0)):
        if name in later:
            distance = before[name] / extreme.reduce([before[column] for column in inner])
            wider = np.exp(sign * np.abs(rng.normal(0, NOISE, shape)))
            later[name][:] = extreme.reduce([later[column] for column in inner]) * distance * wider
    if "volume" in later:
        later["volume"] *= _factors(shape, VOLUME_NOISE, rng)
    if "spread" in later:  # a fraction of the price
        limit = np.nextafter(MAX_SPREAD, 0.0)
        later["spread"][:] = np.minimum(later["spread"] * _factors(shape, VOLUME_NOISE, rng), limit)
    if "dividend" in later:
        later["dividend"][:] = DIVIDEND * (rng.random(shape) < DIVIDEND_SHARE) * later["close"]


def _level(shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Random walks that start at 1, one per column."""
    walk: Floats = np.exp(np.cumsum(rng.normal(0, WALK, shape), 0))
    return walk


def _factors(shape: tuple[int, ...], scale: float, rng: np.random.Generator) -> Floats:
    factors: Floats = np.exp(rng.normal(0, scale, shape))
    return factors


def _other_availability(panel: Panel, t: int, rng: np.random.Generator) -> Bools:
    """[T - t - 1, N], True on the later bars on which a ticker trades, with changes to a third of the tickers."""
    traded = panel.tradable[t + 1 :].copy()
    bars, assets = traded.shape
    count = int(assets * CHANGED_SHARE + rng.random())
    for n in rng.permutation(assets)[:count] if bars else ():
        trades_now, later = bool(panel.tradable[t, n]), np.flatnonzero(traded[:, n])
        # Often at once: some code looks one bar ahead, other code further.
        first = 0 if rng.random() < 0.5 else int(rng.integers(bars))
        kind = rng.choice(["end", "gap", "new bars"])
        if kind == "end" and trades_now:
            traded[first:, n] = False
        elif kind == "gap" and len(later) > 1:
            missing = later[:-1][rng.random(len(later) - 1) < MISSING_SHARE]
            traded[missing, n] = traded[min(first, later[-2]), n] = False
        elif len(later) or not panel.tradable[: t + 1, n].any():
            traded[first:, n] = True
    return traded


def _fill_new_bars(panel: Panel, later: dict[str, Floats], added: Bools) -> None:
    """Set the `added` [K, N] bars of the last K rows of all columns to usual values, in place."""
    for n in np.flatnonzero(added.any(0)):
        closes = panel.close[panel.tradable[:, n], n]
        price = closes[0] if len(closes) else np.nanmedian(panel.close)
        for name, values in later.items():
            known = getattr(panel, name)
            usual = price if name in ("open", "high", "low", "close") else np.nanmedian(known[panel.tradable])
            values[added[:, n], n] = usual


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
