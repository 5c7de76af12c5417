"""Tables as files hold them: CSV as text, Parquet, and the two levels of column names that yfinance writes."""

from __future__ import annotations

import io
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finrl_pod.data.sources.layouts import OWN_FILE, layout_of
from finrl_pod.errors import DataError

OTHER_SEPARATORS = (";", "\t")  # than the comma
MAX_QUOTE = 80  # characters of a value in a message
MAX_NAMES = 8  # columns that a message lists
SUFFIXES = (".csv", ".csv.gz", ".txt", ".parquet", ".pq")
NAMELESS = ("", "nan", "NaN", "None", "<NA>", "NaT")  # a missing name, also as text
INDEX_NAME = "Unnamed: 0"  # what pandas calls a column without a name
_LEVEL_NAMES = ("price", "ticker", "tickers", "attributes", "")
_FIELDS = ("open", "high", "low", "close", "adj close", "volume")
ACTIONS = ("dividends", "stock splits", "capital gains", "repaired?")  # of yfinance


@dataclass(frozen=True)
class Origin:
    """Where cells are from. word, offset: row i is "line i + offset" of a CSV, "row i + offset" of a Parquet file.

    labels: columns that name a row of a DataFrame, as no editor shows its number.
    """

    file: str
    word: str
    offset: int
    labels: pd.DataFrame | None = None

    def where(self, row: int) -> str:
        """Place of a row, for messages."""
        location = f"{self.file}, {self.word} {row + self.offset}"
        if self.labels is None:
            return location
        return f"{location} ({', '.join(str(x).removesuffix(' 00:00:00')[:80] for x in self.labels.iloc[row])})"


def is_table(name: str) -> bool:
    """Whether a file name has one of `SUFFIXES`; hidden files, such as the ._ companions of macOS, are none."""
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def without_suffix(name: str) -> str:
    """File name without its suffix: BRK.B for BRK.B.csv, as other dots belong to a ticker."""
    suffix = max((candidate for candidate in SUFFIXES if name.lower().endswith(candidate)), key=len, default="")
    return name[: len(name) - len(suffix)]


def read_table(path: Path, separator: str | None = None) -> tuple[pd.DataFrame, Origin]:
    """(cells, their origin) of a CSV or Parquet file, by its suffix. separator: passed to `read_csv`.

    Raises DataError for a file that is not a regular table.
    """
    name = path.name.lower()
    if not name.endswith(SUFFIXES):
        raise DataError(f"{path} must end in .csv, .csv.gz, .txt or .parquet")
    if name.endswith((".parquet", ".pq")):
        return _read_parquet(path), Origin(path.name, "row", 1)
    return read_csv(path, path.name, separator)


def table_of_frame(frame: pd.DataFrame) -> tuple[pd.DataFrame, Origin]:
    """(cells, their origin) of a DataFrame; an index of times, or of times and tickers, becomes columns.

    Raises DataError for a frame without times.
    """
    table = frame.copy(deep=False)
    if frame.columns.nlevels > 2 or frame.index.nlevels > 3 - frame.columns.nlevels:
        raise DataError(
            f"the DataFrame has {frame.columns.nlevels} levels of column names and {frame.index.nlevels} of its index: "
            "it needs at most three together, as by frame.stack() or frame.reset_index()"
        )
    heads = _heads(frame)
    layout = layout_of([*heads, *frame.index.names])
    has_time = any(layout.is_time(name) for name in heads)
    has_symbol = any(layout.is_symbol(name) for name in heads)
    for i in range(frame.index.nlevels):
        level = frame.index.get_level_values(i)
        is_dated = isinstance(level, pd.DatetimeIndex) or layout.is_time(level.name)
        if not has_time and (is_dated or (frame.index.nlevels == 1 and level.dtype.kind == "O")):
            table.insert(0, ("time", "") if frame.columns.nlevels > 1 else "time", level, allow_duplicates=True)
            has_time = True
        elif not has_symbol and (layout.is_symbol(level.name) or (frame.index.nlevels > 1 and not is_dated)):
            table.insert(0, "symbol", level, allow_duplicates=True)
    if not has_time:
        raise DataError(
            "a DataFrame of closes needs dates as its index (a DatetimeIndex, by pd.to_datetime), or columns date, "
            f"symbol and close; its index is {type(frame.index).__name__}, its columns are "
            f"{name_list(frame.columns)}"
        )
    table = table.reset_index(drop=True)
    labels = table.loc[:, [layout.is_time(name) or layout.is_symbol(name) for name in _heads(table)]]
    return table, Origin("the DataFrame", "row", 1, labels)


def _heads(frame: pd.DataFrame) -> list[str]:
    """First level of the names of columns."""
    return [str(name).strip().lower() for name in frame.columns.get_level_values(0)]


def long_of_levels(
    cells: pd.DataFrame, file: str
) -> tuple[pd.DataFrame, np.ndarray[tuple[int, ...], Any], tuple[str, ...]]:
    """(long table, row of each of its rows in `cells`, tickers without any value) of columns (field, ticker) or
    (ticker, field), and of times.

    Rows without any value are left out: the ticker has no bar there. Raises DataError if neither level has fields.
    """
    pairs = [tuple(str(table).strip() for table in column) for column in cells.columns]
    time = next((i for i, pair in enumerate(pairs) if OWN_FILE.is_time(pair[0])), None)
    values = [i for i in range(len(pairs)) if i != time]
    level = next(
        (k for k in (0, 1) if values and all(pairs[i][k].lower() in (*_FIELDS, *ACTIONS) for i in values)), None
    )
    if time is None or level is None:
        raise DataError(
            f"{file} has two levels of column names: one must name fields ({', '.join(_FIELDS)}) and the other tickers"
        )
    tables = []
    rows = []
    empty = []
    tickers = list(dict.fromkeys(pairs[i][1 - level] for i in values))
    check_names(tickers, file)
    for ticker in tickers:
        table = pd.DataFrame({pairs[i][level]: cells.iloc[:, i] for i in values if pairs[i][1 - level] == ticker})
        prices = table[[name for name in table.columns if name.lower() not in ACTIONS]]  # actions are 0 without a bar
        value_rows = np.flatnonzero(
            (prices.notna() & (prices.astype(str).apply(lambda c: c.str.strip()) != "")).any(axis=1)
        )
        empty += [] if value_rows.size else [ticker]
        table.insert(0, "symbol", ticker)
        table.insert(0, "time", cells.iloc[:, time])
        tables.append(table.iloc[value_rows])
        rows.append(value_rows)
    return pd.concat(tables, ignore_index=True), np.concatenate(rows), tuple(empty)


def read_csv(source: Path | bytes, file: str, separator: str | None = None) -> tuple[pd.DataFrame, Origin]:
    """(cells as text, so that errors can quote them; their origin) of a CSV file or its contents.

    file: its name, for messages. separator: between cells; found from the header if None. Blank lines keep their
    numbers. Raises DataError for what is not a regular table.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            names, separator, skip = _header(source, separator)
            first_line = skip + 2
            levels = _level_rows(source, names, separator, skip)
            if levels is None:
                names = [INDEX_NAME, *names[1:]] if names and not names[0] and len(names) > 1 else names
                check_names(names, file)
                table = _csv(source, sep=separator, header=0, names=names, skiprows=skip)
            else:
                table = _csv(source, sep=separator, header=None, skiprows=skip + levels)
                head = _csv(source, sep=separator, header=None, nrows=2, skiprows=skip)
                first, second = head.iloc[0], head.iloc[1]
                columns = [("time", ""), *zip(first[1:], second[1:], strict=True)]
                table = table.set_axis(pd.MultiIndex.from_tuples(columns), axis=1)
                first_line = skip + levels + 1
    except pd.errors.ParserWarning:
        raise DataError(f"{file} is not a regular table: lines have more cells than its header") from None
    except pd.errors.EmptyDataError:
        raise DataError(f"{file} is empty: it needs a header and at least one line") from None
    except pd.errors.ParserError as error:
        if "out of memory" in str(error):
            raise MemoryError(str(error)) from None
        raise DataError(f"{file} is not a regular table: {str(error).strip().splitlines()[-1][:200]}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 text, at byte {error.start}: save it as UTF-8") from None
    except (OSError, EOFError, zlib.error) as error:
        location = source if isinstance(source, Path) else file
        raise DataError(f"cannot read {location}: {getattr(error, 'strerror', None) or error}") from None
    filled = np.flatnonzero((table != "").any(axis=1))
    return table.iloc[: int(filled[-1]) + 1 if filled.size else 0], Origin(file, "line", first_line)


def _header(source: Path | bytes, separator: str | None) -> tuple[list[str], str, int]:
    """(names of the columns, separator of cells, number of lines before the header) of a CSV file."""
    header = _csv(source, header=None, nrows=1)
    skip = int(str(header.iat[0, 0]).lower().startswith("sep="))  # of Excel: not a line of the table
    if separator is None and skip:
        separator = str(header.iat[0, 0]).strip()[len("sep=") :]
    elif separator is None and header.shape[1] == 1:  # spreadsheets use them if a comma separates decimals
        separator = next((mark for mark in OTHER_SEPARATORS if mark in str(header.iat[0, 0])), None)
    separator = separator or ","
    header = _csv(source, header=None, nrows=1, sep=separator, skiprows=skip)
    return [str(name).strip() for name in header.iloc[0]], separator, skip


def is_prose(path: Path, separator: str | None, new_names: Mapping[str, str]) -> bool:
    """True for a text file whose first line names no column of times, such as notes beside prices.

    new_names: name here by name in the file. Damaged files and tables in files of other types are never prose.
    """
    if not path.name.lower().endswith(".txt"):
        return False
    try:
        names, _, _ = _header(path, separator)
    except (OSError, ValueError):  # among them text that is not UTF-8 and the errors of the parser
        return False
    columns = [new_names.get(name, name) for name in names]
    layout = layout_of(columns)
    return names[0].lower() not in _LEVEL_NAMES and not any(layout.is_time(name) for name in columns)


def _level_rows(source: Path | bytes, names: Sequence[str], separator: str, skip: int) -> int | None:
    """Number of header lines of a table with two levels of names, as pandas writes them; None for a single header."""
    if names[0].lower() not in _LEVEL_NAMES or len(names) < 2:
        return None
    head = _csv(source, header=None, nrows=3, sep=separator, skiprows=skip).apply(lambda c: c.str.strip())
    if len(head) < 3 or head.iat[1, 0].lower() not in _LEVEL_NAMES:
        return None
    fields = [set(head.iloc[k, 1:].str.lower()) <= {*_FIELDS, *ACTIONS} for k in (0, 1)]
    if not any(fields):
        return None
    return 3 if (head.iloc[2, 1:] == "").all() else 2


def _csv(source: Path | bytes, **options: Any) -> pd.DataFrame:
    table: pd.DataFrame = pd.read_csv(
        io.BytesIO(source) if isinstance(source, bytes) else source,
        dtype=str,
        keep_default_na=False,
        skip_blank_lines=False,
        index_col=False,
        encoding="utf-8-sig",
        compression="infer",
        **options,
    )
    return table


def quote(value: object) -> str:
    """A value in quotes for messages, cut to 80 characters."""
    return repr(str(value)[:MAX_QUOTE])


def name_list(names: Iterable[object]) -> str:
    """The first names of columns for messages, each cut to 80 characters."""
    return ", ".join(str(name)[:MAX_QUOTE] for name in islice(names, MAX_NAMES))


def name_fault(name: str) -> str:
    """What is wrong with the name of a column or a ticker; empty for a short one without control characters."""
    if len(name) > MAX_QUOTE:
        return f"has {len(name):,} characters; at most {MAX_QUOTE} are allowed"
    return "" if name.isprintable() else "has a character that cannot be printed; remove it"


def check_names(names: Sequence[str], file: str) -> None:
    """Raises DataError for duplicate or empty column names, and for names with a fault."""
    for position, name in enumerate(names):
        if fault := name_fault(name):
            raise DataError(f"{file}: the name of column {position + 1} {fault}")
        if name in NAMELESS:
            raise DataError(
                f"{file}: column {position + 1} has no name{name and f' ({name})'}: give it one or remove it"
            )
        if name in names[:position]:
            raise DataError(f"{file} has the column {quote(name)} twice: remove one")


def _read_parquet(path: Path) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as file:
            # Without threads: see data/store.py.
            read = pq.ParquetFile(file, pre_buffer=False).read(use_threads=False)
            # Columns of Arrow are freed as they are converted, instead of two copies at the end.
            table: pd.DataFrame = read.to_pandas(use_threads=False, split_blocks=True, self_destruct=True)
            del read
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or "it is truncated or not a Parquet file"
        raise DataError(f"cannot read {path}: {reason}") from None
    if table.columns.nlevels > 1:
        if table.columns.nlevels > 2 or table.index.nlevels > 1:
            raise DataError(f"{path.name} has {table.columns.nlevels} levels of column names: it needs at most two")
        table.insert(0, ("time", ""), table.index)
        return table.reset_index(drop=True)
    layout = layout_of([*table.columns, *table.index.names])
    index_columns = [name for name in table.index.names if name in table.columns]  # set_index(..., drop=False)
    table = table.droplevel(index_columns) if len(index_columns) < table.index.nlevels else table.reset_index(drop=True)
    if table.index.nlevels > 1 or layout.is_time(table.index.name) or layout.is_symbol(table.index.name):
        table = table.reset_index()
    return table
