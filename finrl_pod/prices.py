"""Records of prices. They need numpy alone: lists of panels and of trials are shown without loading torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from finrl_pod.display import growth_figure, table_html
from finrl_pod.errors import listed

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Times = NDArray[np.datetime64]

PRICE_COLUMNS = ("open", "high", "low", "close", "volume")
PANEL_COLUMNS = (*PRICE_COLUMNS, "spread", "dividend", "split_close")
FLAWS_SHOWN = 3  # in a notebook


def taken_as(adjusted: bool) -> str:
    """The note of a panel whose file does not say whether its prices are adjusted."""
    return f"Prices were taken as {'adjusted' if adjusted else 'not adjusted'}; this was not checked."


def read_as_sentence(read_as: Mapping[str, str | None]) -> str:
    """How the columns of a file were read, for a terminal; empty without any."""
    columns_by_meaning: dict[str | None, list[str]] = {}
    for column, meaning in read_as.items():
        columns_by_meaning.setdefault(meaning, []).append(column)
    parts = []
    for meaning, columns in columns_by_meaning.items():
        names = listed(columns)
        if meaning is not None:
            parts.append(names if names.lower() == meaning else f"{names} as {meaning}")
    if None in columns_by_meaning:
        parts.append(f"left out: {listed(columns_by_meaning[None])}")
    return "; ".join(parts)


def fills_sentence(columns: Sequence[str]) -> str:
    """At which price orders fill by default, with these columns of a panel."""
    return "orders fill at the next open" if "open" in columns else "no opens: orders fill at the next close"


@dataclass(frozen=True, eq=False)
class Benchmark:
    """An index to compare with, not tradable in the panel.

    close: [T] float64, same bars as the panel. price_only: whether it excludes dividends.
    """

    name: str
    close: Floats
    price_only: bool


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """R values of each of C columns, in the order in which they became known; see `finrl_pod.data.as_of`.

    name: file name without its suffix. sha256: of the file. columns: [C]. known_at: [R] datetime64[ns], not
    decreasing; a value is used at bars whose time is later. symbols: [R], or None for values of the whole market.
    values: [R, C] float64, NaN where unknown. periods: [R] datetime64[ns], end of the period that a value describes, or
    None. max_age: time from `known_at` to the last bar that uses a value; None for no limit. flaws: field of `Panel`.
    """

    name: str
    sha256: str
    columns: tuple[str, ...]
    known_at: Times
    values: Floats
    symbols: NDArray[np.object_] | None = None
    periods: Times | None = None
    max_age: np.timedelta64 | None = None
    flaws: tuple[str, ...] = ()

    def rows(self, rows: NDArray[np.intp]) -> FeatureTable:
        """The table with the given rows."""
        symbols = None if self.symbols is None else self.symbols[rows]
        periods = None if self.periods is None else self.periods[rows]
        known_at = self.known_at[rows]
        return replace(self, known_at=known_at, values=self.values[rows], symbols=symbols, periods=periods)


@dataclass(frozen=True, eq=False)
class Panel:
    """Prices of N symbols over T bars.

    times: [T] datetime64[ns], UTC, strictly increasing; a daily bar carries its session date at 00:00.
    close, open, high, low, volume: [T, N] float64, or None if absent; NaN where `tradable` is False, volumes also where
    unknown. Prices are in the quote currency, volumes in shares.
    split_close: [T, N] float64 or None, closes that are adjusted for splits alone, where `close` is for dividends too.
    spread: [T, N] float64 or None, quoted spread (ask less bid) of the bar as a fraction of the price; NaN where
    unknown. sectors: sector of each symbol [N], or None.
    dividend: [T, N] float64 or None, cash per share that holders from the close before receive on the first bar of the
    ticker on or after the ex-date, 0 on other bars; NaN where `tradable` is False.
    tradable: [T, N] bool; False before the first bar of a ticker, after its last, and on missing bars.
    members: [T, N] bool, whether a ticker belonged to the universe; None if all always did.
    adjusted: prices are adjusted for splits and dividends, so that there is no `dividend`. flaws: known data problems,
    one sentence each. cash_rates: (date, annual rate), the return from each date on of cash that could be held instead,
    NaN where it is unknown; Sharpe and Sortino ratios are in excess of it. Accounts earn `environment.cash_rates`.
    tables: values other than prices that features read; not part of the hash of the prices. read_as: what each column
    of the file was taken for, None if it was left out; empty for prices from elsewhere.
    """

    times: Times
    symbols: tuple[str, ...]
    close: Floats
    tradable: Bools
    open: Floats | None = None
    high: Floats | None = None
    low: Floats | None = None
    volume: Floats | None = None
    spread: Floats | None = None
    dividend: Floats | None = None
    split_close: Floats | None = None
    sectors: tuple[str, ...] | None = None
    members: Bools | None = None
    benchmark: Benchmark | None = None
    adjusted: bool = True
    bar: str = "1d"
    name: str = ""
    source: str = ""
    flaws: tuple[str, ...] = ()
    cash_rates: tuple[tuple[str, float], ...] = ()
    tables: tuple[FeatureTable, ...] = ()
    read_as: Mapping[str, str | None] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"Panel({self.name!r}, symbols {self._symbol_summary()}; {self._period()}; "
            f"columns {', '.join(self.columns)}; {fills_sentence(self.columns)})"
        )

    def _repr_html_(self) -> str:
        missing = 1 - float(self.tradable.mean())
        index = self.benchmark
        flaws = list(self.flaws)
        if len(flaws) > FLAWS_SHOWN + 1:
            flaws = [*flaws[:FLAWS_SHOWN], f"{len(flaws) - FLAWS_SHOWN:,} more, see Panel.flaws"]
        rows = [
            ("symbols", f"{len(self.symbols):,}: {self._symbol_summary()}"),
            ("bars", self._period()),
            *([("without a price", f"{missing:.1%} of all bars and symbols")] if missing else []),
            ("columns", f"{', '.join(self.columns)}; {fills_sentence(self.columns)}"),
            ("adjusted", self._adjustment()),
            *([("index", f"{index.name}{', without dividends' * index.price_only}")] if index is not None else []),
            *((f"table {table.name}", ", ".join(table.columns)) for table in self.tables),
            *([("source", self.source)] if self.source else []),
            *(("known flaws" if number == 0 else "", flaw) for number, flaw in enumerate(flaws)),
        ]
        return table_html(f"Panel {self.name}".strip(), rows)

    def to_frame(self) -> pd.DataFrame:
        """Closes with times as index and a column for each symbol, NaN where it has no bar."""
        import pandas as pd

        return pd.DataFrame(self.close, pd.DatetimeIndex(self.times, name="time"), list(self.symbols))

    def plot(self) -> Figure:
        """Close of each symbol as a multiple of its first, on a log axis, and of the index; a Plotly figure."""
        lines = dict(zip(self.symbols, self.close.T, strict=True))
        index = self.benchmark
        if index is not None:
            lines[f"index: {index.name}"] = index.close
        figure = growth_figure(self.times, lines, f"{self.name or 'Prices'}: closes, {self._period()}")
        if index is not None:
            figure.data[-1].line = {"color": "#000000", "dash": "dot", "width": 2}
        return figure

    def _adjustment(self) -> str:
        if not self.adjusted:
            return "no"
        return f"{'assumed, ' * (taken_as(adjusted=True) in self.flaws)}for splits and dividends"

    def _symbol_summary(self) -> str:
        """The first symbols, and how many more there are."""
        return ", ".join(self.symbols[:5]) + f" and {len(self.symbols) - 5} more" * (len(self.symbols) > 5)

    def _period(self) -> str:
        """Number and length of the bars, and the first and last of them."""
        unit = "D" if self.bar == "1d" else "m"
        first, last = (str(self.times[i].astype(f"datetime64[{unit}]")) for i in (0, -1))
        return f"{len(self.times):,} bars of {self.bar}, {first} to {last}"

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the present columns, in the order of `PANEL_COLUMNS`."""
        return tuple(c for c in PANEL_COLUMNS if getattr(self, c) is not None)

    @property
    def dollar_volume(self) -> Floats | None:
        """[T, N] close times volume as they were traded, in the quote currency; None without volumes."""
        if self.volume is None:
            return None
        return self.volume * (self.close if self.split_close is None else self.split_close)

    @property
    def investable(self) -> Bools:
        """[T, N] bool: tradable, and a member of the universe."""
        return self.tradable if self.members is None else self.tradable & self.members

    @cached_property
    def sha256(self) -> str:
        """Hash of all numbers and names of the panel, equal on all machines; computed once."""
        digest = hashlib.sha256()
        digest.update(repr((self.symbols, self.bar, self.adjusted, self.columns)).encode())
        digest.update(self.times.astype("datetime64[ns]").astype("<i8").data)
        for column in self.columns:
            digest.update(np.ascontiguousarray(getattr(self, column), dtype="<f8").data)
        digest.update(np.packbits(self.tradable).data)
        if self.members is not None:
            digest.update(b"members")
            digest.update(np.packbits(self.members).data)
        if self.benchmark is not None:
            digest.update(self.benchmark.name.encode())
            digest.update(np.ascontiguousarray(self.benchmark.close, dtype="<f8").data)
        if self.sectors is not None:
            digest.update(repr(self.sectors).encode())
        return digest.hexdigest()
