"""CSV and Parquet files and DataFrames, long or wide, one file or a folder with one file for each ticker.

Long: a column "time" (or date, datetime, timestamp), "symbol" (or ticker, tic), close and any of open, high, low,
volume, spread (a fraction of the price), sector (text) and "adj close". Wide: a time column, then one column of closes
for each ticker. Two levels of names, as yfinance writes them, are read too. Times without a zone are UTC.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finrl_pod.data.panel import check_repeats, without_repeats
from finrl_pod.data.sources.frames import ADJUSTED_CLOSE, adjusted_rows, panel_of_rows
from finrl_pod.data.sources.tables import (
    ACTIONS,
    SUFFIXES,
    SYMBOL_NAMES,
    TIME_NAMES,
    Origin,
    check_date_format,
    check_names,
    epoch_unit,
    is_table,
    live_rows,
    long_of_levels,
    name_fault,
    name_list,
    parse_numbers,
    parse_times,
    quote,
    read_table,
    table_of_frame,
    without_suffix,
)
from finrl_pod.errors import DataError, InputError
from finrl_pod.prices import PANEL_COLUMNS, Panel, taken_as
from finrl_pod.settings.toml import closest_key

SECTOR = "sector"
CLOCK = ("time",)  # a column of hours beside one of days
DAYS = ("date", "day")
DECIMALS = (".", ",")
SHAPES = "A table is long (date, symbol, close) or wide (date, then one column of closes for each ticker)"
_IGNORED = re.compile("|".join([r"unnamed: \d+", "index", *map(re.escape, ACTIONS)]))  # of no use in a panel
_CLOSES = ("price", "prices", "last", "px", "px_last", "value")  # what closes are called elsewhere
_VOLUME = re.compile(r"(?:.*[\s_.-])?volume(?:[\s_.-].*)?")  # in a wide table

Rows = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True)
class ReadOptions:
    """How a file of prices is read.

    bar: length of its bars. adjusted: prices are adjusted for splits and dividends; a column "adj close" then adjusts
    open, high, low and close by its ratio to the close, else it is ignored. allow_gaps: bars missing between the first
    and last of a ticker become untradable instead of an error. drop_repeated_bars, allow_repeated_bars: leave out or
    keep bars on which every ticker repeats its prices; otherwise many of them are an error. symbol: ticker of a file
    without such a column. decimal: "." or ",". date_format: format for strftime of dates that are not ISO 8601.
    separator: one character between the cells of a CSV file, found from its header if None. columns: what columns of
    the file are called here, as in "Last=close, Code=symbol".
    """

    bar: str = "1d"
    adjusted: bool = True
    allow_gaps: bool = False
    drop_repeated_bars: bool = False
    allow_repeated_bars: bool = False
    symbol: str | None = None
    decimal: str = "."
    date_format: str | None = None
    separator: str | None = None
    columns: str = ""

    def __post_init__(self) -> None:
        """Raises DataError for an invalid option."""
        if self.decimal not in DECIMALS:
            raise DataError(f"--decimal must be '.' or ',', got {self.decimal!r}")
        if self.symbol is not None and not self.symbol.strip():
            raise DataError("--symbol must name a ticker, got an empty text")
        if self.date_format is not None:
            check_date_format(self.date_format)
        if self.separator is not None and (len(self.separator) != 1 or self.separator in '"\r\n'):
            raise DataError(f"--separator must be one character such as ; or a tab, got {quote(self.separator)}")
        _ = self.names_by_column

    @property
    def names_by_column(self) -> dict[str, str]:
        """Name here by name in the file. Raises DataError if `columns` does not have that form."""
        pairs = [pair.split("=") for pair in self.columns.split(",") if pair.strip()]
        if any(len(pair) != 2 or not all(map(str.strip, pair)) for pair in pairs):
            raise DataError(f"--columns takes pairs such as Last=close, Code=symbol, got {quote(self.columns)}")
        return {theirs.strip(): ours.strip() for theirs, ours in pairs}

    @classmethod
    def from_keywords(cls, options: Mapping[str, Any]) -> ReadOptions:
        """The options of a call in Python. Raises InputError for an unknown one, else as the class."""
        field_names = [field.name for field in dataclasses.fields(cls)]
        if unknown := [name for name in options if name not in field_names]:
            raise InputError(f"there is no option {unknown[0]!r} for prices; {closest_key(unknown[0], field_names)}")
        for name in ("adjusted", "allow_gaps", "drop_repeated_bars", "allow_repeated_bars"):
            if not isinstance(options.get(name, True), bool):
                raise InputError(f"{name} must be True or False, got {options[name]!r}")
        return cls(**options)


def read_file(path: Path, **options: Any) -> Panel:
    """Read a CSV or Parquet file, or a folder with one for each ticker. options: the fields of `ReadOptions`.

    Files of a folder are named by their tickers. Daily bars are dated by the calendar day of their time; intraday times
    are converted to UTC. Raises DataError naming the invalid line (or row).
    """
    read_options = ReadOptions.from_keywords(options)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if is_table(file.name))
        if not files:
            raise DataError(f"the folder {path} has no file that ends in {', '.join(SUFFIXES)}")
        tickers = [without_suffix(file.name) for file in files]
        tables = [
            _of_cells(*read_table(file, read_options.separator), dataclasses.replace(read_options, symbol=name))
            for file, name in zip(files, tickers, strict=True)
        ]
        _check_tickers(files, tickers, tables)
    else:
        tables = [_of_cells(*read_table(path, read_options.separator), read_options)]
    source = f"{'folder' if path.is_dir() else 'file'} {path.name}"
    return _panel(tables, read_options, source, without_suffix(path.name))


def _check_tickers(files: Sequence[Path], tickers: Sequence[str], tables: Sequence[_FileRows]) -> None:
    """Raises DataError for two files that name the same ticker: the prices of both would become its own.

    Files that are named otherwise than their tickers, such as by year, may share them.
    """
    file_by_ticker: dict[str, Path] = {}
    for file, ticker, table in zip(files, tickers, tables, strict=True):
        if set(table.rows["symbol"].unique()) == {ticker}:
            if ticker in file_by_ticker:
                raise DataError(
                    f"{file_by_ticker[ticker].name} and {file.name} are both of the ticker {ticker}; remove or rename "
                    "one"
                )
            file_by_ticker[ticker] = file


def read_frame(frame: pd.DataFrame, *, name: str = "", source: str = "DataFrame", **options: Any) -> Panel:
    """Read a DataFrame as the file that it would be saved as; its rows may come in any order.

    name, source: name and source of the panel. options: fields of `ReadOptions`. Raises DataError naming the invalid
    row.
    """
    read_options = ReadOptions.from_keywords(options)
    return _panel([_of_cells(*table_of_frame(frame), read_options).sorted_by_time()], read_options, source, name)


def _panel(tables: Sequence[_FileRows], read_options: ReadOptions, source: str, name: str) -> Panel:
    """The panel of all files."""
    rows = pd.concat([table.rows for table in tables], ignore_index=True) if len(tables) > 1 else tables[0].rows
    starts = np.cumsum([0, *(len(table.rows) for table in tables)])

    def location(row: int) -> str:
        number = int(np.searchsorted(starts, row, "right")) - 1
        return tables[number].where(row - int(starts[number]))

    notes = [taken_as(read_options.adjusted), *(note for table in tables for note in table.notes)]
    panel = panel_of_rows(
        rows,
        bar=read_options.bar,
        source=source,
        name=name,
        adjusted=read_options.adjusted,
        flaws=tuple(dict.fromkeys(notes)),
        allow_gaps=read_options.allow_gaps,
        location=location,
    )
    if read_options.drop_repeated_bars:
        return without_repeats(panel)
    if not read_options.allow_repeated_bars:
        check_repeats(panel)
    return panel


@dataclass(frozen=True)
class _FileRows:
    """Rows of one file for `panel_of_rows`, the place of row i, and notes on how it was read."""

    rows: pd.DataFrame
    where: Callable[[int], str]
    notes: tuple[str, ...] = ()

    def sorted_by_time(self) -> _FileRows:
        """The rows of each ticker in order of time; tickers keep the order of their first row."""
        order = np.lexsort((self.rows["time"].to_numpy(), pd.factorize(self.rows["symbol"])[0]))
        rows = self.rows.iloc[order].reset_index(drop=True)
        return dataclasses.replace(self, rows=rows, where=lambda row: self.where(int(order[row])))


def _of_cells(cells: pd.DataFrame, origin: Origin, options: ReadOptions) -> _FileRows:
    """Read the cells of one file or DataFrame."""
    file = origin.file
    count: Rows = np.arange(len(cells))
    levels = cells.columns.nlevels > 1
    empty: tuple[str, ...] = ()
    actions = {str(label).strip().lower() for name in cells.columns for label in (name if levels else (name,))} & set(
        ACTIONS
    )
    if levels:
        cells, count, empty = long_of_levels(cells, file)
    cells = cells.set_axis([str(name).strip() for name in cells.columns], axis=1)
    new_names = options.names_by_column
    if unknown := [name for name in new_names if name not in cells.columns]:
        names_in_file = name_list(cells.columns)
        raise DataError(f"{file} has no column {quote(unknown[0])} to rename by --columns; it has {names_in_file}")
    cells = cells.rename(columns=new_names)
    check_names(list(cells.columns), file)
    names = {c: c.lower().replace("_", " ") if c.lower() == "adj_close" else c.lower() for c in cells.columns}
    if options.adjusted and not {"open", "high", "low", "close"} & set(names.values()):
        names = {c: "close" if name == ADJUSTED_CLOSE else name for c, name in names.items()}
    time = next((c for c in cells.columns if names[c] in TIME_NAMES), None)
    day, clock = (next((c for c in cells.columns if names[c] in group), None) for group in (DAYS, CLOCK))
    if day and clock and not levels and cells[clock].astype(str).str.contains(":").any():
        time = day
        dates = cells[day].astype(str).str.strip()
        if options.date_format is not None:
            dates = parse_times(cells[day], origin.where, "1d", options.date_format).dt.strftime("%Y-%m-%d")
            options = dataclasses.replace(options, date_format=None)
        hours = cells[clock].astype(str).str.strip().str.replace(r"^(?=\d:)", "0", regex=True)
        cells = cells.assign(**{day: (dates + " " + hours).str.strip()}).drop(columns=clock)
    if time is None:
        raise DataError(
            f"{file} has no time column (its columns: {name_list(cells.columns)}): it needs one named "
            f"{' or '.join(TIME_NAMES)}. {SHAPES}"
        )
    symbol = next((c for c in cells.columns if names[c] in SYMBOL_NAMES), None)
    single = symbol is None and "close" in names.values()
    if single and options.symbol is None:
        problem = f"{file} has a column 'close' but no column 'symbol' that names the ticker"
        candidates = [
            c for c in cells.columns if c != time and names[c] not in (*PANEL_COLUMNS, SECTOR, ADJUSTED_CLOSE)
        ]
        if words := next((c for c in candidates if _is_text(cells[c])), None):
            raise DataError(f"{problem}: if {quote(words)} does, rename it to 'symbol'")
        name = re.fullmatch(r"[A-Za-z0-9^=.-]+", without_suffix(file)) if is_table(file) else None
        ticker = name[0].upper() if name else "TICKER"
        raise DataError(f"{problem}; pass --symbol {ticker} (symbol={ticker!r} in Python)")
    if single:
        cells = cells.assign(symbol=str(options.symbol).strip())
        symbol = "symbol"
    is_wide = symbol is None
    values = [c for c in cells.columns if c not in (time, symbol) and not _IGNORED.fullmatch(names.get(c, c))]
    notes: tuple[str, ...] = (f"Tickers without any price were left out: {name_list(empty)}.",) if empty else ()
    if is_wide:
        prices = [c for c in values if names[c] in ("open", "high", "low", ADJUSTED_CLOSE)]
        # OPEN and LOW are tickers too: capital letters beside other tickers.
        alone = all(c in prices or _VOLUME.fullmatch(names[c]) for c in values)
        if prices and (alone or not all(c.isupper() for c in prices)):
            raise DataError(
                f"{file} has a column {quote(prices[0])} but no 'close': name the closing prices 'close', and the "
                "ticker in a column 'symbol' or by --symbol (symbol= in Python)"
            )
        volumes = [c for c in values if _VOLUME.fullmatch(names[c])]
        values = [c for c in values if c not in volumes]
        notes = (f"Columns of volumes were left out: {name_list(volumes)}.",) if volumes else ()
    if not values or cells.empty:
        raise DataError(f"{file} holds no prices: it needs a column of closes and at least one row")
    if not is_wide:
        unknown = [c for c in values if names[c] not in (*PANEL_COLUMNS, SECTOR, ADJUSTED_CLOSE)]
        if unknown:
            known_names = ", ".join(("time", "symbol", *PANEL_COLUMNS, SECTOR, ADJUSTED_CLOSE))
            fix = "rename or remove it"
            if "close" not in names.values() and names[unknown[0]] in _CLOSES:
                fix = "rename it to 'close' if it holds the closing prices"
            raise DataError(f"{file}: unknown column {quote(unknown[0])}; known are {known_names}: {fix}")

    def where(row: int) -> str:
        place = origin.where(int(count[row]))
        return f"{place}, {cells['symbol'].iloc[row]}" if levels else place

    return _parse_cells(cells, time, symbol, values, names, where, options, notes, file, with_actions=bool(actions))


def _is_text(values: pd.Series) -> bool:
    """Whether a column has different words, and no numbers."""
    known_values = values.dropna()
    return known_values.nunique() > 1 and bool(pd.to_numeric(known_values, errors="coerce").isna().all())


def _parse_cells(
    cells: pd.DataFrame,
    time: str,
    symbol: str | None,
    values: Sequence[str],
    names: Mapping[str, str],
    location: Callable[[int], str],
    options: ReadOptions,
    notes: tuple[str, ...],
    file: str,
    *,
    with_actions: bool,
) -> _FileRows:
    """The times and numbers of the cells. time, symbol: columns; without a symbol the table is wide."""
    is_wide = symbol is None
    times = parse_times(cells[time], location, options.bar, options.date_format)
    if options.bar == "1d":
        kept_rows = np.flatnonzero(~live_rows(cells[time], times, None if symbol is None else cells[symbol]))
        if len(kept_rows) < len(cells):
            note = "The last row, of a day that has a row already and of another hour, was left out."
            return _parse_cells(
                cells.iloc[kept_rows].reset_index(drop=True), time, symbol, values, names,
                lambda row: location(int(kept_rows[row])), options, (*notes, note), file, with_actions=with_actions,
            )  # fmt: skip
    if options.date_format is None and (unit := epoch_unit(cells[time])):
        notes = (*notes, f"Times were read as {unit} since 1970, in UTC.")
    sector = next((c for c in values if not is_wide and names[c] == SECTOR), None)
    if is_wide:
        close = np.empty((len(cells), len(values)))
        for n, column in enumerate(values):  # one at a time: all of them would be a second copy
            close[:, n] = parse_numbers(cells[column], column, location, options.decimal)
        bars, count = close.shape
        tickers = pd.Categorical.from_codes(np.repeat(np.arange(count), bars), categories=pd.Index(list(values)))
        wide_rows = {"time": np.tile(times.to_numpy(), count), "symbol": tickers, "close": close.T.ravel()}
        return _FileRows(pd.DataFrame(wide_rows), lambda row: location(row % bars), notes)
    numbers = {c: parse_numbers(cells[c], c, location, options.decimal) for c in values if c != sector}
    symbols = cells[symbol].astype(str).str.strip()
    nameless = np.flatnonzero(symbols.eq("") | cells[symbol].isna())
    if nameless.size:
        raise DataError(f"{location(int(nameless[0]))}: the ticker is missing")
    for name in symbols.unique():
        if fault := name_fault(name):
            row = int(np.flatnonzero(symbols.eq(name))[0])
            raise DataError(f"{location(row)}: the ticker {quote(name)} {fault}")
    rows = pd.DataFrame({"time": times, "symbol": symbols, **{names[c]: numbers[c] for c in numbers}})
    if sector is not None:
        rows[SECTOR] = cells[sector].astype(str).where(cells[sector].notna(), "").str.strip()
    if ADJUSTED_CLOSE in rows:
        if "close" not in rows:
            raise DataError(f"{file} has a column 'adj close' but no 'close' that it adjusts: add or rename it")
        blank = np.flatnonzero(rows[ADJUSTED_CLOSE].isna() & rows["close"].notna())
        if options.adjusted and blank.size:
            row = int(blank[0])
            raise DataError(
                f"{location(row)}: {symbols.iloc[row][:80]} has a close but a blank 'adj close' (as on {blank.size:,} "
                "rows): complete the column or remove it, or pass --unadjusted (adjusted=False in Python)"
            )
        notes = (*notes, _ADJUSTED_NOTE[options.adjusted])
        if options.adjusted:
            rows, wrong = adjusted_rows(rows)
            notes = (*notes, *wrong)
        else:
            rows = rows.drop(columns=ADJUSTED_CLOSE)
    elif with_actions and options.adjusted:
        notes = (*notes, _ACTIONS_NOTE)
    return _FileRows(rows, location, notes)


_ACTIONS_NOTE = (
    "Dividends or splits are listed without 'adj close': closes were taken as adjusted for both, as by "
    "auto_adjust=True of yfinance."
)
_ADJUSTED_NOTE = {
    True: "Open, high, low and close were adjusted at import by the ratio of 'adj close' to 'close'.",
    False: "The column 'adj close' was left out: prices were imported as unadjusted.",
}
