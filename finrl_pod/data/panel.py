"""Building, checking and slicing panels.

Invalid data raise DataError. Suspicious data (a jump above 40%, a ticker that ends early) are kept and listed in
`Panel.flaws`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from finrl_pod.arguments import check_arguments, numbers
from finrl_pod.data.dates import first_moment, last_moment, stamp
from finrl_pod.data.flaws import (
    REPEATED_BARS_MAX,
    REPEATS_MIN_BARS,
    check,
    repeated_bars,
    repeated_cells,
    sentences,
    share_of_bars,
)
from finrl_pod.errors import DataError, listed, shown
from finrl_pod.prices import PANEL_COLUMNS, Benchmark, Bools, Floats, Panel

BARS = ("1d", "1h", "15m", "1m")
OPTIONAL_VALUES = ("volume", "spread", "dividend")  # a bar trades without them; without a price they make no bar

Locate = Callable[[int, int], str]


@check_arguments
def make_panel(
    times: ArrayLike,
    symbols: Sequence[str],
    columns: Mapping[str, ArrayLike],
    *,
    name: str = "",
    source: str = "",
    bar: str = "1d",
    adjusted: bool = True,
    benchmark: Benchmark | None = None,
    sectors: Sequence[str] | None = None,
    flaws: Sequence[str] = (),
    cash_rates: tuple[tuple[str, float], ...] = (),
    allow_gaps: bool = False,
    locate: Locate | None = None,
) -> Panel:
    """Build a panel from arrays after checking them.

    times: [T] datetime64, naive and in UTC; daily bars carry the date of their session at 00:00.
    columns: "close" and any of "open", "high", "low", each [T, N] float; NaN where there is no bar. Also "volume" and
        "spread" [T, N], NaN where unknown, and "dividend" [T, N], NaN where there is none.
    sectors: [N], sector of each symbol. flaws: sentences known to the source; the checks append theirs. allow_gaps: a
    bar between the first and last of a ticker that lacks a price becomes untradable and is listed as a flaw;
        otherwise it is an error. Before its first and after its last bar a ticker is untradable either way.
    locate: source of cell (t, n) for messages, such as "prices.csv, line 7"; "" if unknown.
    Raises DataError for unknown columns, no bars, times that do not increase, prices that are not positive and
    finite, gaps, and dividends beside adjusted prices.
    """
    check_bar(bar)
    unknown = [c for c in columns if c not in PANEL_COLUMNS]
    if unknown:
        raise DataError(f"unknown column {unknown[0]!r}: a panel has {', '.join(PANEL_COLUMNS)}; rename or remove it")
    if "close" not in columns:
        raise DataError("column 'close' is missing: every panel needs closing prices")
    try:
        moments = np.asarray(times, dtype="datetime64[ns]").copy()
    except (ValueError, TypeError):
        raise DataError(f"times must be an array of datetime64, got {shown(times)}") from None
    values = {c: numbers(f"the column {c!r} of columns", columns[c]) for c in PANEL_COLUMNS if c in columns}
    if moments.ndim != 1 or not moments.size or not symbols:
        raise DataError("there are no prices: a panel needs at least one bar of one ticker")
    for column, value in values.items():
        if value.shape != (len(moments), len(symbols)):
            raise DataError(f"column {column!r} must have shape {(len(moments), len(symbols))}, has {value.shape}")
    if "dividend" in values:
        if adjusted:
            raise DataError(
                "prices that are adjusted for dividends must not pay them too; pass --unadjusted, or remove the column "
                "'dividend'"
            )
        values["dividend"] = np.nan_to_num(values["dividend"])
    quotes = {c: value for c, value in values.items() if c not in OPTIONAL_VALUES}
    # Infinite values count: the checks report them by name.
    tradable: Bools = ~np.logical_or.reduce([np.isnan(value) for value in quotes.values()])
    if not allow_gaps:
        _check_gaps(moments, tuple(symbols), quotes, tradable, bar, locate)
    for value in values.values():
        value[~tradable] = np.nan
    panel = Panel(
        times=moments,
        symbols=tuple(symbols),
        tradable=tradable,
        benchmark=benchmark,
        sectors=None if sectors is None else tuple(sectors),
        members=None,
        adjusted=adjusted,
        bar=bar,
        name=name,
        source=source,
        flaws=tuple(flaws),
        cash_rates=cash_rates,
        tables=(),
        read_as={},
        **values,
    )
    return _check_panel(panel, locate)


def select(panel: Panel, symbols: Sequence[str]) -> Panel:
    """Select `symbols`, in that order; all if empty.

    Raises DataError for symbols that the panel lacks and for duplicates.
    """
    if not symbols:
        return panel
    unknown = [s for s in symbols if s not in panel.symbols]
    if unknown:
        close_matches = difflib.get_close_matches(unknown[0], panel.symbols, n=3)
        hint = f"did you mean {' or '.join(close_matches)}?" if close_matches else f"it has {listed(panel.symbols)}"
        raise DataError(f"panel {panel.name!r} has no ticker {', '.join(unknown)}: {hint}")
    columns = [panel.symbols.index(s) for s in symbols]
    return _derive(panel, slice(None), columns, tuple(symbols))


def between(panel: Panel, start: str | pd.Timestamp | None, end: str | pd.Timestamp | None) -> Panel:
    """Select the bars with start <= time <= end; a bare end date includes the whole day, None means no limit.

    Raises DataError if no bar is left, or start is after end.
    """
    low = panel.times[0] if start is None else first_moment(start).to_datetime64()
    high = panel.times[-1] if end is None else last_moment(end).to_datetime64()
    if start is not None and end is not None and low > high:
        raise DataError(f"the start {start} is after the end {end}: swap the dates")
    first, stop = np.searchsorted(panel.times, low, "left"), np.searchsorted(panel.times, high, "right")
    if first >= stop:
        have = f"{stamp(panel.times[0], panel.bar)} to {stamp(panel.times[-1], panel.bar)}"
        request = " ".join(f"{word} {date}" for word, date in (("from", start), ("to", end)) if date is not None)
        raise DataError(f"panel {panel.name!r} has no bars {request}: it covers {have}")
    return _derive(panel, slice(int(first), int(stop)), list(range(len(panel.symbols))), panel.symbols)


def first_bars(panel: Panel, bars: int, symbols: int) -> Panel:
    """The first bars of the first symbols of a panel, as it was before others were appended."""
    first_panel = _derive(panel, slice(bars), list(range(symbols)), panel.symbols[:symbols])
    if first_panel.members is not None and first_panel.members.all():
        return dataclasses.replace(first_panel, members=None)
    return first_panel


def cut(panel: Panel, first: int, stop: int) -> Panel:
    """Bars first to stop - 1 of a panel, and the values of its tables that are known before the last of them."""
    last = panel.times[stop - 1]
    tables = tuple(table.rows(np.flatnonzero(table.known_at < last)) for table in panel.tables)
    return dataclasses.replace(take_bars(panel, slice(first, stop)), tables=tables)


def take_bars(panel: Panel, rows: slice | NDArray[np.intp]) -> Panel:
    """Some bars of a panel, as copies; its tables stay as they are, and nothing is checked."""
    benchmark = panel.benchmark
    if benchmark is not None:
        benchmark = dataclasses.replace(benchmark, close=benchmark.close[rows].copy())
    columns = {c: getattr(panel, c)[rows].copy() for c in panel.columns}
    if panel.members is not None:
        columns["members"] = panel.members[rows].copy()
    return dataclasses.replace(
        panel, times=panel.times[rows].copy(), tradable=panel.tradable[rows].copy(), benchmark=benchmark, **columns
    )


def without_repeats(panel: Panel) -> Panel:
    """Leave out the bars on which every ticker repeats its prices, such as filled weekends, and state their number."""
    is_repeat = repeated_bars(panel, repeated_cells(panel))
    count = int(is_repeat.sum())
    if not count:
        return panel
    panel_without = _derive(panel, ~is_repeat, list(range(len(panel.symbols))), panel.symbols)
    bars, verb = ("1 bar", "was") if count == 1 else (f"{count} bars", "were")
    subject = f"{bars} that repeated every price of the bar before {verb}"
    return dataclasses.replace(panel_without, flaws=(f"{subject} left out.", *panel_without.flaws))


def check_repeats(panel: Panel) -> None:
    """Raises DataError if several tickers repeat all their prices on more than `REPEATED_BARS_MAX` of the bars."""
    bars = len(panel.times)
    count = int(repeated_bars(panel, repeated_cells(panel)).sum())
    if len(panel.symbols) > 1 and bars >= REPEATS_MIN_BARS and count > REPEATED_BARS_MAX * bars:
        raise DataError(
            f"{share_of_bars(count, bars)} repeat every price of the bar before: leave them out with "
            "--drop-repeated-bars (drop_repeated_bars=True in Python), or keep them with --allow-repeated-bars"
        )


def _derive(panel: Panel, rows: slice | Bools, columns: list[int], symbols: tuple[str, ...]) -> Panel:
    """Slice rows and columns. Flaws found by the checks are recomputed, flaws of the source are kept."""
    check_messages = set(sentences(check(panel)))
    cut = {c: getattr(panel, c)[rows][:, columns].copy() for c in panel.columns}
    benchmark = panel.benchmark
    if benchmark is not None:
        benchmark = dataclasses.replace(benchmark, close=benchmark.close[rows].copy())
    derived_panel = dataclasses.replace(
        panel,
        times=panel.times[rows].copy(),
        symbols=symbols,
        tradable=panel.tradable[rows][:, columns].copy(),
        sectors=None if panel.sectors is None else tuple(panel.sectors[n] for n in columns),
        members=None if panel.members is None else panel.members[rows][:, columns].copy(),
        benchmark=benchmark,
        flaws=tuple(f for f in panel.flaws if f not in check_messages),
        **cut,
    )
    return _check_panel(derived_panel, None)


def _check_panel(panel: Panel, locate: Locate | None) -> Panel:
    """Raise DataError for the first hard flaw, record the soft ones."""
    flaws = check(panel, locate)
    for flaw in flaws:
        if flaw.hard:
            raise DataError(flaw.message)
    return dataclasses.replace(panel, flaws=tuple(dict.fromkeys((*panel.flaws, *sentences(flaws)))))


def check_bar(bar: str) -> None:
    """Raises DataError unless `bar` is one of `BARS`."""
    if bar not in BARS:
        raise DataError(f"bar must be one of {', '.join(BARS)}, got {bar!r}")


def _check_gaps(
    times: np.ndarray[tuple[int, ...], np.dtype[np.datetime64]],
    symbols: tuple[str, ...],
    values: Mapping[str, Floats],
    tradable: Bools,
    bar: str,
    locate: Locate | None,
) -> None:
    """A bar that lacks a price is a gap if it has some other price, or lies between bars with prices."""
    has_price = np.logical_or.reduce([~np.isnan(value) for value in values.values()])
    priced_before = np.logical_or.accumulate(has_price, 0)
    priced_after = np.logical_or.accumulate(has_price[::-1], 0)[::-1]
    gaps = np.argwhere(~tradable & priced_before & priced_after)
    if not len(gaps):
        return
    t, n = map(int, gaps[0])
    missing = [c for c, value in values.items() if np.isnan(value[t, n])]
    location = locate(t, n) if locate else ""
    prefix = f"{location}: " if location else ""
    further_gaps = f" (and {len(gaps) - 1} more such bars)" if len(gaps) > 1 else ""
    day = stamp(times[t], bar)
    if locate and not location:
        fact = f"there is no row for {symbols[n]} on {day}"
    else:
        lacks = "prices" if len(missing) == len(values) > 1 else " and no ".join(missing)
        fact = f"{symbols[n]} has no {lacks} on {day}"
    raise DataError(
        f"{prefix}{fact}, a gap{further_gaps}: "
        "fill it in, or pass --allow-gaps (allow_gaps=True in Python) to make such bars untradable"
    )
