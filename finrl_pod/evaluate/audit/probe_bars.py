"""Bars after which the audit changes prices: random ones, and those where a look-ahead is likely to show.

A feature that looks ahead on m of T bars shows it only if one of those bars is probed; K random bars miss all of them
with probability (1 - m / T)^K. Calendar events, sparse features, gaps and listings are therefore probed on purpose.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from finrl_pod.data.blocks import row_blocks
from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.memory import release_mapped_pages
from finrl_pod.types import MarketTensor, Panel

DECISION_PROBES = 12  # at most, as each one runs the environment and every strategy
LEAD_IN = 24  # decisions that lead up to a probed bar
EARLY = (1, 5, 20, 60, 120, 250, 500)  # bars after the first, where a back-filled warm-up shows
SPARSE = 0.25  # a feature that is not zero on fewer bars than this is event-driven
JUMP = 8.0  # changes of a feature above this multiple of its median change
EVENTS = 100  # probes of a kind at most; features, gaps and listings each
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
