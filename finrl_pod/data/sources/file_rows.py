"""Rows of one file of prices: its layout, the meaning of its columns, its numbers, and their adjustment."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from finrl_pod.data.side_tables import MAX_RATIO, CorporateAction
from finrl_pod.data.sources.bar_columns import MAX_COLUMNS, bar_columns
from finrl_pod.data.sources.cells import (
    NumberFormat,
    are_hours,
    decimal_mark,
    epoch_unit,
    live_rows,
    parse_numbers,
    parse_times,
    with_hours,
)
from finrl_pod.data.sources.frames import ADJUSTED_CLOSE, SPLIT, adjusted_rows
from finrl_pod.data.sources.layouts import COMMON_NAMES, OWN_FILE, Adjustment, Layout, Meaning, label_of, layout_of
from finrl_pod.data.sources.read_options import ReadOptions
from finrl_pod.data.sources.tables import (
    MAX_QUOTE,
    Origin,
    check_names,
    is_table,
    long_of_levels,
    name_fault,
    name_list,
    quote,
    without_suffix,
)
from finrl_pod.errors import DataError, listed
from finrl_pod.prices import Floats

SECTOR = "sector"
SHAPES = "A table is long (date, symbol, close) or wide (date, then one column of closes for each ticker)"
_CLOSES = ("price", "prices", "last", "px", "px last", "value")  # what closes are called elsewhere
_VOLUME = re.compile(r"(?:.*[\s.-])?volume(?:[\s.-].*)?")  # in a wide table
_PRICES = ("open", "high", "low", "close")
_DATE = re.compile(r"\d[./-]\d|^(?:19|20)\d{6}")
_NUMBER = r"[^\w.,]*[\d.,'\s]*\d[\d.,'\s]*(?:%|[eE][+-]?\d+)?[^\w]*"  # also with a sign of a currency
_ACTIONS_NOTE = (
    "Dividends or splits are listed without 'adj close': closes were taken as adjusted for both, as by "
    "auto_adjust=True of yfinance."
)

Rows = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True)
class FileRows:
    """Rows of one file for `panel_of_rows`.

    where: place of row i, for messages. adjusted: prices are adjusted for splits and dividends. read_as: what each
    column of the file was taken for, None if it was left out. notes: how it was read. actions: splits and dividends
    that the file states beside prices as they were traded. symbol_of_name: ticker that is in no column.
    """

    rows: pd.DataFrame
    where: Callable[[int], str]
    adjusted: bool
    read_as: Mapping[str, Meaning | None]
    notes: tuple[str, ...] = ()
    actions: tuple[CorporateAction, ...] = ()
    symbol_of_name: str | None = None

    def sorted_by_time(self) -> FileRows:
        """The rows of each ticker in order of time; tickers keep the order of their first row."""
        return self._in_order(np.lexsort((self.rows["time"].to_numpy(), pd.factorize(self.rows["symbol"])[0])))

    def from_the_oldest(self) -> FileRows:
        """The rows from the oldest to the newest if every ticker runs backwards; otherwise the same object."""
        times = self.rows["time"].to_numpy()
        codes = pd.factorize(self.rows["symbol"])[0]
        by_ticker = np.argsort(codes, kind="stable")
        steps = np.diff(times[by_ticker])[np.diff(codes[by_ticker]) == 0].astype(np.int64)
        if not steps.size or steps.max() > 0 or steps.min() == 0:
            return self
        return self._in_order(np.lexsort((self.rows["symbol"].to_numpy(dtype=str), times)))

    def _in_order(self, order: Rows) -> FileRows:
        rows = self.rows.iloc[order].reset_index(drop=True)
        return dataclasses.replace(self, rows=rows, where=lambda row: self.where(int(order[row])))


@dataclass(frozen=True)
class _Table:
    """Cells of one file. row_numbers: row of the file of each row. has_levels: columns had two levels of names."""

    cells: pd.DataFrame
    origin: Origin
    row_numbers: Rows
    has_levels: bool

    def where(self, row: int) -> str:
        """Place of a row, for messages."""
        location = self.origin.where(int(self.row_numbers[row]))
        return f"{location}, {self.cells['symbol'].iloc[row]}" if self.has_levels else location

    def rows(self, rows: Rows) -> _Table:
        """The table with some of its rows."""
        cells = self.cells.iloc[rows].reset_index(drop=True)
        return dataclasses.replace(self, cells=cells, row_numbers=self.row_numbers[rows])


def rows_of_cells(
    cells: pd.DataFrame, origin: Origin, options: ReadOptions, *, stem: str = "", ticker: str | None = None
) -> FileRows:
    """Read the cells of one file or DataFrame.

    stem: name of the file without suffix, in which some layouts write the ticker. ticker: ticker of a file whose name
    and columns have none. Raises DataError naming the row for cells that cannot be read.
    """
    table, names, notes = _named_table(cells, origin, options)
    file = origin.file
    columns = list(table.cells.columns)
    layout = layout_of(names.values(), stem)
    layout = layout_of(columns, stem) if layout is OWN_FILE else layout
    meanings, unknown = layout.meanings(columns)
    hours = next((column for column in columns if meanings.get(column) == "hours"), None)
    if hours is not None and not are_hours(table.cells[hours]):
        del meanings[hours]
        unknown = tuple(column for column in columns if column not in meanings)
        hours = None
    time = next((column for column in columns if meanings.get(column) == "time"), None)
    if time is None:
        raise _missing_time(table, unknown, meanings, layout, options)
    if options.adjusted is not False and not set(_PRICES) & set(meanings.values()):
        meanings = {column: "close" if meaning == ADJUSTED_CLOSE else meaning for column, meaning in meanings.items()}
    symbol = next((column for column in columns if meanings.get(column) == "symbol"), None)
    symbol_of_name = None
    if symbol is None and "close" in meanings.values():
        symbol_of_name = options.symbol or layout.symbol_of_file(stem) or ticker
        if symbol_of_name is None:
            raise _missing_symbol(table, unknown, options)
        symbol = "symbol"
        table = dataclasses.replace(table, cells=table.cells.assign(symbol=symbol_of_name.strip()))
    if symbol is None:
        if all(name in meanings for name in options.names_by_column.values()):  # others name tickers
            _check_closes(table, time, layout, options, ticker)
        meanings, unknown, wide_notes = _wide_meanings(table, meanings, time, hours)
        notes += wide_notes
    if unknown and not options.ignore_unknown:
        raise _unknown_columns(file, unknown, meanings)
    if symbol is not None:
        _check_no_repeats(file, meanings)
    is_adjusted = _is_adjusted(layout, meanings, options)
    meanings = _without_unused(layout, meanings, is_adjusted)
    values = [column for column in columns if meanings.get(column) not in (None, "time", "hours", "symbol")]
    if not values or table.cells.empty:
        raise DataError(f"{file} holds no prices: it needs a column of closes and at least one row")
    moments, table, time_notes = _times(table, (time, hours, symbol), layout, options)
    numbers = _number_format(table, [column for column in values if meanings[column] != SECTOR], layout, options)
    file_rows = FileRows(
        rows=pd.DataFrame(),
        where=table.where,
        adjusted=is_adjusted,
        read_as={names[column]: meanings.get(column) for column in columns},
        notes=(*notes, *time_notes),
        symbol_of_name=symbol_of_name,
    )
    if symbol is None:
        return _wide_rows(file_rows, table, moments, values, numbers)
    rows = _long_rows(table, moments, symbol, {column: meanings[column] for column in values}, numbers, layout)
    return _adjusted(dataclasses.replace(file_rows, rows=rows), layout, file)


def _named_table(
    cells: pd.DataFrame, origin: Origin, options: ReadOptions
) -> tuple[_Table, dict[str, str], tuple[str, ...]]:
    """(the table with a single level of names, renamed by the options; name in the file of each column; notes)."""
    row_numbers: Rows = np.arange(len(cells))
    has_levels = cells.columns.nlevels > 1
    empty_tickers: tuple[str, ...] = ()
    if has_levels:
        cells, row_numbers, empty_tickers = long_of_levels(cells, origin.file)
    file_names = [str(name).strip() for name in cells.columns]
    new_names = options.names_by_column
    if missing := [quote(name) for name in new_names if name not in file_names]:
        raise DataError(
            f"{origin.file} has no column {listed(missing)} to rename by --columns; it has {name_list(file_names)}"
        )
    columns = [new_names.get(name, name) for name in file_names]
    check_names(columns, origin.file)
    notes = (f"Tickers without any price were left out: {name_list(empty_tickers)}.",) if empty_tickers else ()
    table = _Table(cells.set_axis(columns, axis=1), origin, row_numbers, has_levels)
    return table, dict(zip(columns, file_names, strict=True)), notes


# ---------------------------------------------------------------------- meaning of columns


def _missing_time(
    table: _Table, unknown: Sequence[str], meanings: Mapping[str, Meaning | None], layout: Layout, options: ReadOptions
) -> DataError:
    columns = list(table.cells.columns)
    first_cells = table.cells.iloc[0] if len(table.cells) else columns
    is_dated = (column for column, cell in zip(columns, first_cells, strict=True) if _DATE.search(str(cell)))
    time = next(is_dated, columns[0])
    bars = _bars(table, time, layout, options)
    others = [column for column in unknown if column != time and column not in bars]
    problem = f"{table.origin.file} has no time column (its columns: {name_list(columns)})"
    fix = f"if {quote(time)} holds the times, pass {_columns_option({time: 'time', **bars}, options)}"
    rest = _left_out(others) if (bars or "close" in meanings.values()) and not options.ignore_unknown else ""
    return DataError(f"{problem}: {fix}{rest}. {SHAPES}")


def _missing_symbol(table: _Table, unknown: Sequence[str], options: ReadOptions) -> DataError:
    problem = f"{table.origin.file} has a column 'close' but no column 'symbol' that names the ticker"
    words = next((column for column in unknown if _is_text(table.cells[column])), None)
    fix = f"pass {_symbol_option(table)}"
    if words:
        fix = f"if {quote(words)} does, pass {_columns_option({words: 'symbol'}, options)}"
    others = [column for column in unknown if column != words]
    return DataError(f"{problem}: {fix}{'' if options.ignore_unknown else _left_out(others)}")


def _symbol_option(table: _Table) -> str:
    """The option that names the ticker of a table, with a ticker from the name of its file."""
    file = table.origin.file
    name = re.fullmatch(r"[A-Za-z0-9^=.-]+", without_suffix(file)) if is_table(file) else None
    ticker = name[0].upper() if name else "TICKER"
    return f"--symbol {ticker} (symbol={ticker!r} in Python)"


def _columns_option(meanings: Mapping[str, Meaning], options: ReadOptions) -> str:
    """The option that names columns here, beside those that it names already."""
    named_columns = {
        column: meaning for column, meaning in meanings.items() if COMMON_NAMES.get(label_of(column)) != meaning
    }
    names = {**options.names_by_column, **named_columns}
    pairs = ",".join(f"{theirs[:MAX_QUOTE]}={ours}" for theirs, ours in names.items())
    return f"--columns {shlex.quote(pairs)} (columns= in Python)"


def _left_out(columns: Sequence[str]) -> str:
    """How unknown columns are left out, as the end of a message."""
    return f"; leave out {listed([quote(column) for column in columns])} with --ignore-unknown" if columns else ""


def _is_text(values: pd.Series) -> bool:
    """Whether a column has different words, and no numbers."""
    return values.dropna().nunique() > 1 and _has_words(values)


def _has_words(values: pd.Series) -> bool:
    """Whether a column has words and no numbers."""
    if pd.api.types.is_numeric_dtype(values.dtype):
        return False
    text = values.dropna().astype(str).str.strip()
    return bool(text.str.contains(r"[^\W\d_]").any()) and not text.str.fullmatch(_NUMBER).any()


def _check_closes(table: _Table, time: str, layout: Layout, options: ReadOptions, ticker: str | None) -> None:
    """Raises DataError for a table without a ticker that has the bars of one instrument, not closes of several."""
    if bars := _bars(table, time, layout, options):
        names = list(bars)
        symbol = "" if ticker else f" and {_symbol_option(table)}"
        raise DataError(
            f"{table.origin.file} seems to have the bars of one instrument in {name_list(names)}, not closes of "
            f"tickers: pass {_columns_option(bars, options)}{symbol}; if they are tickers, name one there too: "
            f"{names[0]}={names[0]}"
        )


def _bars(table: _Table, time: str, layout: Layout, options: ReadOptions) -> dict[str, Meaning]:
    """What columns of the bars of one instrument hold; empty for another table."""
    values = [column for column in table.cells.columns if column != time]
    if not len(_PRICES) <= len(values) <= MAX_COLUMNS or table.cells.empty:
        return {}
    ends = [str(table.cells[time].iloc[row]) for row in (0, -1)]
    first, last = pd.to_datetime(ends, format="mixed", dayfirst=True, errors="coerce", utc=True)
    step = -1 if last < first else 1
    prices = {}
    for column in values:
        with contextlib.suppress(DataError):  # of words, and of commas that may mean two things
            numbers = _number_format(table, [column], layout, options)
            prices[column] = parse_numbers(table.cells[column], column, table.where, numbers).to_numpy()[::step]
    return bar_columns(prices)


def _wide_meanings(
    table: _Table, meanings: Mapping[str, Meaning | None], time: str, hours: str | None
) -> tuple[dict[str, Meaning | None], tuple[str, ...], tuple[str, ...]]:
    """(meanings of the columns of a wide table, unknown columns of words, a note on its volumes).

    Raises DataError for bars without a close.
    """
    file = table.origin.file
    columns = list(table.cells.columns)
    values = [c for c in columns if c not in (time, hours) and (c not in meanings or meanings[c] is not None)]
    prices = [column for column in values if meanings.get(column) in (*_PRICES, ADJUSTED_CLOSE)]
    volumes = [column for column in values if _VOLUME.fullmatch(label_of(column))]
    # OPEN and LOW are tickers too: capital letters beside other tickers.
    if prices and (len(prices) + len(volumes) == len(values) or not all(column.isupper() for column in prices)):
        raise DataError(
            f"{file} has a column {quote(prices[0])} but no 'close': name the closing prices with --columns, such as "
            "Last=close (columns= in Python), and the ticker in a column 'symbol' or by --symbol (symbol=)"
        )
    words = tuple(column for column in values if column not in volumes and _has_words(table.cells[column]))
    wide_meanings: dict[str, Meaning | None] = {time: "time"}
    if hours is not None:
        wide_meanings[hours] = "hours"
    wide_meanings |= {column: "close" for column in values if column not in (*volumes, *words)}
    return wide_meanings, words, (f"Columns of volumes were left out: {name_list(volumes)}.",) if volumes else ()


def _check_no_repeats(file: str, meanings: Mapping[str, Meaning | None]) -> None:
    """Raises DataError for two columns that hold the same."""
    first_columns: dict[Meaning, str] = {}
    for column, meaning in meanings.items():
        if meaning is not None and first_columns.setdefault(meaning, column) != column:
            raise DataError(
                f"{file} has the columns {quote(first_columns[meaning])} and {quote(column)}, which are both read as "
                f"{meaning}: remove one, or give it another name with --columns and pass --ignore-unknown"
            )


def _unknown_columns(file: str, unknown: Sequence[str], meanings: Mapping[str, Meaning | None]) -> DataError:
    known_names = ", ".join(name for name, meaning in COMMON_NAMES.items() if name == meaning)
    subject = f"unknown column{'s' * (len(unknown) > 1)} {listed([quote(column) for column in unknown])}"
    fix = "rename with --columns, or leave out with --ignore-unknown (columns=, ignore_unknown=True in Python)"
    if "close" not in meanings.values() and label_of(unknown[0]) in _CLOSES:
        pair = shlex.quote(f"{unknown[0]}=close")
        fix = f"pass --columns {pair} (columns= in Python) if it holds the closing prices"
    return DataError(f"{file}: {subject}; known are {known_names}: {fix}")


# ---------------------------------------------------------------------- adjustment


def _is_adjusted(layout: Layout, meanings: Mapping[str, Meaning | None], options: ReadOptions) -> bool:
    """Whether the prices are adjusted for splits and dividends once they are read."""
    if options.adjusted is not None:
        return options.adjusted
    return ADJUSTED_CLOSE in meanings.values() or layout.closes in (Adjustment.UNKNOWN, Adjustment.EVERYTHING)


def _without_unused(
    layout: Layout, meanings: Mapping[str, Meaning | None], is_adjusted: bool
) -> dict[str, Meaning | None]:
    """Meanings without the columns that adjusted prices, or prices as they were traded, do not need."""
    unused: set[Meaning] = set()
    if is_adjusted and (ADJUSTED_CLOSE in meanings.values() or layout.closes is Adjustment.EVERYTHING):
        unused = {"dividend"}
    if is_adjusted and ADJUSTED_CLOSE not in meanings.values():
        unused |= {"split"}
    return {column: None if meaning in unused else meaning for column, meaning in meanings.items()}


def _adjusted(file_rows: FileRows, layout: Layout, file: str) -> FileRows:
    """The rows with adjusted prices, or with the corporate actions of prices as they were traded; and notes."""
    rows = file_rows.rows
    notes = list(file_rows.notes)
    actions: tuple[CorporateAction, ...] = ()
    read_as = dict(file_rows.read_as)
    if ADJUSTED_CLOSE in rows and file_rows.adjusted:
        _check_adjusted_close(file_rows, file)
        is_split_adjusted = layout.closes in (Adjustment.SPLITS, Adjustment.EVERYTHING)
        rows, wrong = adjusted_rows(rows, is_split_adjusted=is_split_adjusted)
        notes += ["Open, high, low and close were adjusted at import by the ratio of 'adj close' to 'close'.", *wrong]
    elif ADJUSTED_CLOSE in rows:
        rows = rows.drop(columns=ADJUSTED_CLOSE)
        read_as = {column: None if meaning == ADJUSTED_CLOSE else meaning for column, meaning in read_as.items()}
        notes.append("The column 'adj close' was left out: prices were imported as unadjusted.")
    elif file_rows.adjusted and layout.closes is Adjustment.EVERYTHING:
        notes.append(_ACTIONS_NOTE)
    elif not file_rows.adjusted and layout.closes in (Adjustment.NOTHING, Adjustment.SPLITS):
        notes.append(f"Prices of {layout.name} are adjusted for {layout.closes}.")
    if SPLIT in rows:
        actions = _actions(rows, file_rows.where)
        rows = rows.drop(columns=[SPLIT, "dividend"], errors="ignore")
    return dataclasses.replace(file_rows, rows=rows, notes=tuple(notes), actions=actions, read_as=read_as)


def _check_adjusted_close(file_rows: FileRows, file: str) -> None:
    """Raises DataError for an adjusted close without a close, in all rows or in one of them."""
    rows = file_rows.rows
    if "close" not in rows:
        raise DataError(f"{file} has a column 'adj close' but no 'close' that it adjusts: add or rename it")
    blank = np.flatnonzero(rows[ADJUSTED_CLOSE].isna() & rows["close"].notna())
    if blank.size:
        row = int(blank[0])
        raise DataError(
            f"{file_rows.where(row)}: {rows['symbol'].iloc[row][:80]} has a close but a blank 'adj close' (as on "
            f"{blank.size:,} rows): complete the column or remove it, or pass --unadjusted (adjusted=False in Python)"
        )


def _actions(rows: pd.DataFrame, location: Callable[[int], str]) -> tuple[CorporateAction, ...]:
    """Splits and dividends of rows with the columns "split" and perhaps "dividend"; 0 and blanks are none."""
    split: Floats = rows[SPLIT].fillna(0.0).replace(0.0, 1.0).to_numpy()
    dividend: Floats = rows["dividend"].fillna(0.0).to_numpy() if "dividend" in rows else np.zeros(len(rows))
    wrong = np.flatnonzero(~((split >= 1 / MAX_RATIO) & (split <= MAX_RATIO) & (dividend >= 0) & np.isfinite(dividend)))
    if wrong.size:
        row = int(wrong[0])
        raise DataError(
            f"{location(row)}: a split is new shares per old one and a dividend cash per share, got {split[row]:g} and "
            f"{dividend[row]:g}"
        )
    return tuple(
        CorporateAction(str(rows["symbol"].iloc[row]), rows["time"].iloc[row], float(split[row]), float(dividend[row]))
        for row in np.flatnonzero((split != 1) | (dividend > 0))
    )


# ---------------------------------------------------------------------- cells


def _times(
    table: _Table, columns: tuple[str, str | None, str | None], layout: Layout, options: ReadOptions
) -> tuple[pd.Series, _Table, tuple[str, ...]]:
    """(times of the rows; the table without the row of the running day; notes).

    columns: names for times, hours and tickers.
    """
    time, hours, symbol = columns
    cells = table.cells[time]
    date_format = options.date_format or layout.date_format
    if hours is not None:
        if date_format is not None:
            days = parse_times(cells, table.where, "1d", date_format, layout.date_hint)
            cells = days.dt.strftime("%Y-%m-%d")
            date_format = None
        cells = with_hours(cells, table.cells[hours])
    times = parse_times(cells, table.where, options.bar, date_format, layout.date_hint)
    notes: tuple[str, ...] = ()
    if options.bar == "1d":
        other_rows = np.flatnonzero(~live_rows(cells, times, None if symbol is None else table.cells[symbol]))
        if len(other_rows) < len(cells):
            notes = ("The last row, of a day that has a row already and of another hour, was left out.",)
            table = table.rows(other_rows)
            times = times.iloc[other_rows].reset_index(drop=True)
    if date_format is None and (unit := epoch_unit(cells)):
        notes = (*notes, f"Times were read as {unit} since 1970, in UTC.")
    return times, table, notes


def _number_format(table: _Table, values: Sequence[str], layout: Layout, options: ReadOptions) -> NumberFormat:
    """How the numbers of a file are written, by its layout, the options, or the numbers themselves."""
    decimal = options.decimal
    if decimal is None:
        decimal = "." if layout.thousands else decimal_mark([table.cells[column] for column in values], table.where)
    has_thousands = layout.thousands or options.decimal == "."
    return NumberFormat(decimal, layout.currency, has_thousands and decimal == ".", layout.units)


def _wide_rows(
    file_rows: FileRows, table: _Table, times: pd.Series, values: Sequence[str], numbers: NumberFormat
) -> FileRows:
    """Long rows of a wide table, one ticker after the other."""
    close = np.empty((len(table.cells), len(values)))
    for n, column in enumerate(values):  # one at a time: all of them would be a second copy
        close[:, n] = parse_numbers(table.cells[column], column, table.where, numbers)
    bars, count = close.shape
    tickers = pd.Categorical.from_codes(np.repeat(np.arange(count), bars), categories=pd.Index(list(values)))
    rows = pd.DataFrame({"time": np.tile(times.to_numpy(), count), "symbol": tickers, "close": close.T.ravel()})
    return dataclasses.replace(file_rows, rows=rows, where=lambda row: table.where(row % bars))


def _long_rows(
    table: _Table,
    times: pd.Series,
    symbol: str,
    meanings: Mapping[str, Meaning | None],
    numbers: NumberFormat,
    layout: Layout,
) -> pd.DataFrame:
    """Rows with the columns "time", "symbol" and the meanings. Raises DataError naming an invalid cell."""
    cells = table.cells
    columns = {
        str(meaning): parse_numbers(cells[column], column, table.where, numbers)
        for column, meaning in meanings.items()
        if meaning != SECTOR
    }
    symbols = cells[symbol].astype(str).str.strip()
    nameless = np.flatnonzero(symbols.eq("") | cells[symbol].isna())
    if nameless.size:
        raise DataError(f"{table.where(int(nameless[0]))}: the ticker is missing")
    for name in symbols.unique():
        if fault := name_fault(name):
            row = int(np.flatnonzero(symbols.eq(name))[0])
            raise DataError(f"{table.where(row)}: the ticker {quote(name)} {fault}")
    if layout.market:
        symbols = symbols.map(layout.symbol)
    rows = pd.DataFrame({"time": times, "symbol": symbols, **columns})
    sector = next((column for column, meaning in meanings.items() if meaning == SECTOR), None)
    if sector is not None:
        rows[SECTOR] = cells[sector].astype(str).where(cells[sector].notna(), "").str.strip()
    return rows
