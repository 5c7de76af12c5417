"""Volume in the market, from minute bars: usual shares traded in a window of the session, and those just traded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np

from finrl_pod.errors import BrokerError
from finrl_pod.paper.domain.port import DataFeed
from finrl_pod.paper.domain.schedule import calendar_of
from finrl_pod.paper.domain.slicing import SliceWindow
from finrl_pod.paper.settings import PaperConfig
from finrl_pod.types import Floats

HISTORY_SESSIONS = 20  # whose minute bars give the usual volume


@dataclass(frozen=True)
class UsualVolume:
    """profile: usual share of the window volume in each slice. shares: usual shares traded in the window."""

    profile: tuple[float, ...]
    shares: float


def usual_volumes(feed: DataFeed, config: PaperConfig, session: date, window: SliceWindow) -> dict[str, UsualVolume]:
    """Return the means over the `HISTORY_SESSIONS` before one, by symbol; symbols without volume are missing.

    Sessions whose window is shorter, such as half days, are left out. Raises BrokerError if the feed does not answer.
    """
    calendar = calendar_of(config)
    days = calendar.sessions(session - timedelta(days=2 * HISTORY_SESSIONS + 10), session - timedelta(days=1))
    days = days[-HISTORY_SESSIONS:]
    windows = [calendar.slice_window(day, config.schedule, config.slicing) for day in days]
    windows = [previous_window for previous_window in windows if previous_window.steps == window.steps]
    if not windows:
        return {}
    sums = np.zeros((window.steps, len(config.symbols)))
    for previous_window in windows:  # a request for each: the minutes between them are many more
        table = feed.minute_bars(config.symbols, previous_window.start, previous_window.end, "split")
        sums += _volumes(table.times, table.volume, previous_window)
    volumes = {}
    for n, symbol in enumerate(config.symbols):
        if (total := float(sums[:, n].sum())) > 0:
            profile = tuple(float(share) for share in (sums[:, n] / total).round(9))
            volumes[symbol] = UsualVolume(profile, total / len(windows))
    return volumes


def last_volumes(feed: DataFeed, symbols: Sequence[str], window: SliceWindow, step: int) -> Mapping[str, float]:
    """Return the shares traded in the slice before `step`, by symbol; empty before the first and without an answer."""
    if step < 1:
        return {}
    start = window.start + (step - 1) * window.interval
    try:
        table = feed.minute_bars(symbols, start, start + window.interval, "raw")
    except BrokerError:
        return {}
    if not len(table.times):
        return {}
    return dict(zip(table.symbols, np.nansum(table.volume, axis=0).tolist(), strict=True))


def _volumes(times: np.ndarray, volume: Floats, window: SliceWindow) -> Floats:
    """Volume [B, N] in each slice of a window."""
    start, interval = np.datetime64(window.start.replace(tzinfo=None), "ns"), np.timedelta64(window.interval)
    step = np.floor((times - start) / interval).astype(int)
    sums = np.zeros((window.steps, volume.shape[1]))
    inside = (step >= 0) & (step < window.steps)
    np.add.at(sums, step[inside], np.nan_to_num(volume[inside]))
    return sums
