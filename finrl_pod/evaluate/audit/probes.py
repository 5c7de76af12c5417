"""Probes of the audit: bars after which prices are changed, and panels whose later bars differ.

A feature that looks ahead on m of T bars shows it only if one of those bars is probed; K random bars miss all of them
with probability (1 - m / T)^K. Calendar events, sparse features, gaps and listings are therefore probed on purpose.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finrl_pod.data.blocks import row_blocks
from finrl_pod.data.flaws import MAX_SPREAD
from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.memory import release_mapped_pages
from finrl_pod.types import Bools, Floats, MarketTensor, Panel

DECISION_PROBES = 12  # at most, as each one runs the environment and every strategy
LEAD_IN = 24  # decisions that lead up to a probed bar
EARLY = (1, 5, 20, 60, 120, 250, 500)  # bars after the first, where a back-filled warm-up shows
SPARSE = 0.25  # a feature that is not zero on fewer bars than this is event-driven
JUMP = 8.0  # changes of a feature above this multiple of its median change
EVENTS = 100  # probes of a kind at most; features, gaps and listings each
WALK = 0.03  # standard deviation of the steps of a random walk of log prices
NOISE = 0.08  # standard deviation of the log factor of each price
VOLUME_NOISE = 0.7
CHANGED_SHARE = 1 / 3  # of the tickers, whose later bars are missing or added
MISSING_SHARE = 0.3  # of the later bars of a ticker with gaps
DIVIDEND_SHARE = 0.1  # of the later bars
DIVIDEND = 0.01  # of the close
Bars = NDArray[np.int64]


def decision_bars(pipeline: Pipeline, probes: int) -> list[int]:
    """Bars spread from the end of training to the last bar but one, none within a gap of a ticker."""
    low = max(pipeline.out_of_sample, LEAD_IN + 2)
    high = len(pipeline.panel.times) - 2
    spaced = np.unique(np.linspace(low, high, max(probes, 1)).round().astype(int))
    found = []
    for t in spaced:
        near = [s for s in (t, *range(t - 1, max(t - 10, low) - 1, -1)) if _tradable_everywhere(pipeline.panel, s)]
        found += [int(near[0])] if near else []
    return sorted(set(found))


def table_bars(panel: Panel, market: MarketTensor, probes: int, *, every_bar: bool = False, seed: int = 0) -> list[int]:
    """Bars at which prices and features are probed: `probes` random ones and those of events, or all of them.

    market: of the whole panel. Events are the ends of years, bars where a feature jumps or a sparse one is not zero,
    the ends and the middle of gaps, the bars around listings, and the first bars of the panel.
    """
    last = len(panel.times) - 2
    if every_bar:
        return list(range(1, last + 1))
    rng = np.random.default_rng(seed)
    chosen = [rng.choice(np.arange(1, last + 1), min(probes, last), replace=False)]
    chosen += [np.array(EARLY), _year_ends(panel), _gap_bars(panel)]
    raw = market.raw_features.cpu().numpy()
    chosen += [_event_bars(raw[..., i]) for i in range(raw.shape[-1])]
    bars = np.unique(np.concatenate([values.astype(np.int64) for values in chosen]))
    return [int(t) for t in bars if 1 <= t <= last]


def _year_ends(panel: Panel) -> Bars:
    """The two last bars of each year."""
    last = np.flatnonzero(np.diff(panel.times.astype("datetime64[Y]").astype(np.int64)))
    return np.concatenate([last - 1, last])


def _gap_bars(panel: Panel) -> Bars:
    """Around listings, and the bar before, the first, the middle and the last bar of gaps; the longest gaps first."""
    gaps: list[tuple[int, int]] = []  # length, first bar
    found: list[int] = []
    for n in range(panel.tradable.shape[1]):
        traded = np.flatnonzero(panel.tradable[:, n])
        if not len(traded):
            continue
        if traded[0] > 0:
            found += [int(traded[0]) + offset for offset in (-2, -1, 0, 1, *EARLY[1:])]
        breaks = np.flatnonzero(np.diff(traded) > 1)
        gaps += [(int(traded[i + 1] - traded[i] - 1), int(traded[i]) + 1) for i in breaks]
    gaps.sort(reverse=True)
    for length, first in gaps[: EVENTS // 4]:
        found += [first - 1, first, first + length // 2, first + length - 1]
    return np.array(found[: 2 * EVENTS], dtype=np.int64)


def _event_bars(raw: NDArray[np.float32]) -> Bars:
    """Bars at which a feature [T, N] jumps, or is not zero if it is zero on most bars."""
    active, change = np.empty(len(raw), dtype=bool), np.zeros(len(raw))
    for rows in row_blocks(raw.shape):
        before = max(rows.start - 1, 0)
        values = np.nan_to_num(raw[before : rows.stop].astype(np.float64))
        active[rows] = (values[rows.start - before :] != 0).any(1)
        change[before + 1 : rows.stop] = np.abs(np.diff(values, axis=0)).max(1)
        release_mapped_pages()
    bars = np.flatnonzero(active)
    if not len(bars):
        return bars
    if active.mean() > SPARSE:
        bars = np.flatnonzero(change > JUMP * max(float(np.median(change[active])), 1e-300))
        bars = np.unique(np.concatenate([bars - 1, bars]))
    if len(bars) <= EVENTS:
        return bars
    spread: Bars = bars[np.linspace(0, len(bars) - 1, EVENTS).round().astype(int)]
    return spread


def _tradable_everywhere(panel: Panel, t: int) -> bool:
    """Whether every ticker listed around t has a bar at t, so that dropping later bars cuts through no gap."""
    listed = np.asarray(panel.tradable[: t + 1].any(0) & panel.tradable[t:].any(0))
    return bool(panel.tradable[t][listed].all())


# ---------------------------------------------------------------------- changed panels


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
