"""Tables as files hold them: CSV as text, Parquet, and the two levels of column names that yfinance writes."""

from __future__ import annotations

import io
import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from finrl_pod.data.dates import YEARS
from finrl_pod.errors import DataError
from finrl_pod.prices import Bools

TIME_NAMES = ("time", "date", "datetime", "timestamp", "day")
SYMBOL_NAMES = ("symbol", "ticker", "tic")
OTHER_SEPARATORS = (";", "\t")  # than the comma
MAX_QUOTE = 80  # characters of a value in a message
MAX_NAMES = 8  # columns that a message lists
SUFFIXES = (".csv", ".csv.gz", ".txt", ".parquet", ".pq")
MIN_DAYS = 3  # at the same hour, beside which a row of another hour is the row of the running day
NAMELESS = ("", "nan", "NaN", "None", "<NA>", "NaT")  # a missing name, also as text
INDEX_NAME = "Unnamed: 0"  # what pandas calls a column without a name
_LEVEL_NAMES = ("price", "ticker", "tickers", "attributes", "")
_FIELDS = ("open", "high", "low", "close", "adj close", "volume")
ACTIONS = ("dividends", "stock splits", "capital gains", "repaired?")  # of no use in a panel; yfinance adds them


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
    has_time, has_symbol = (any(name in names for name in heads) for names in (TIME_NAMES, SYMBOL_NAMES))
    for i in range(frame.index.nlevels):
        level = frame.index.get_level_values(i)
        name = str(level.name).strip().lower()
        is_dated = isinstance(level, pd.DatetimeIndex) or name in TIME_NAMES
        if not has_time and (is_dated or (frame.index.nlevels == 1 and level.dtype.kind == "O")):
            table.insert(0, ("time", "") if frame.columns.nlevels > 1 else "time", level, allow_duplicates=True)
            has_time = True
        elif not has_symbol and (name in SYMBOL_NAMES or (frame.index.nlevels > 1 and not is_dated)):
            table.insert(0, "symbol", level, allow_duplicates=True)
    if not has_time:
        raise DataError(
            "a DataFrame of closes needs dates as its index (a DatetimeIndex, by pd.to_datetime), or columns date, "
            f"symbol and close; its index is {type(frame.index).__name__}, its columns are "
            f"{name_list(frame.columns)}"
        )
    table = table.reset_index(drop=True)
    labels = table.loc[:, [name in (*TIME_NAMES, *SYMBOL_NAMES) for name in _heads(table)]]
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
    time = next((i for i, pair in enumerate(pairs) if pair[0].lower() in TIME_NAMES), None)
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
        field_columns = [i for i in values if pairs[i][1 - level] == ticker and pairs[i][level].lower() not in ACTIONS]
        table = pd.DataFrame({pairs[i][level]: cells.iloc[:, i] for i in field_columns})
        value_rows = np.flatnonzero(
            (table.notna() & (table.astype(str).apply(lambda c: c.str.strip()) != "")).any(axis=1)
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
            header = _csv(source, header=None, nrows=1)
            skip = int(str(header.iat[0, 0]).lower().startswith("sep="))  # of Excel: not a line of the table
            if separator is None and skip:
                separator = str(header.iat[0, 0]).strip()[len("sep=") :]
            elif separator is None and header.shape[1] == 1:  # spreadsheets use them if a comma separates decimals
                separator = next((mark for mark in OTHER_SEPARATORS if mark in str(header.iat[0, 0])), None)
            separator = separator or ","
            header = _csv(source, header=None, nrows=1, sep=separator, skiprows=skip)
            names = [str(name).strip() for name in header.iloc[0]]
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
    known_names = (*TIME_NAMES, *SYMBOL_NAMES)
    index_columns = [name for name in table.index.names if name in table.columns]  # set_index(..., drop=False)
    table = table.droplevel(index_columns) if len(index_columns) < table.index.nlevels else table.reset_index(drop=True)
    if table.index.nlevels > 1 or str(table.index.name).lower() in known_names:
        table = table.reset_index()
    return table


# ---------------------------------------------------------------------- cells

_BLANK = ("", "nan", "na", "n/a", "null", "none")
# pandas also accepts "now" and "2020-01"; a bar needs at least a full date.
_DATED = re.compile(r"\d{4}-?\d{2}-?\d{2}")
_ZONE = re.compile(r"\d(Z|[+-]\d{2}(?::?\d{2})?)$")


_COMPACT_DATE = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])([0-2]\d|3[01])")  # hours or minutes may follow
# Units of times since 1970, by the digits that they have from 2001; before it, from 1973, they have one less.
_EPOCH_DIGITS = {10: "seconds", 13: "milliseconds", 16: "microseconds", 19: "nanoseconds"}
_EPOCH_CODES: dict[str, Literal["s", "ms", "us", "ns"]] = {
    "seconds": "s",
    "milliseconds": "ms",
    "microseconds": "us",
    "nanoseconds": "ns",
}


def check_date_format(date_format: str) -> None:
    """Raises DataError unless a date that is written in a format, as in strftime, is read back with its year."""
    day = datetime(2020, 1, 31, tzinfo=UTC)
    rule = f"--date-format takes codes such as %d.%m.%Y for 31.01.2020, got {date_format[:80]!r}"
    try:
        read = pd.to_datetime(day.strftime(date_format), format=date_format) if "%" in date_format else None
    except (ValueError, re.error) as error:  # an unknown code, or two that exclude each other
        raise DataError(f"{rule} ({str(error)[:80]})") from None
    if read is None or read.year != day.year:
        raise DataError(rule)


def parse_times(
    column: pd.Series[Any], location: Callable[[int], str], bar: str, date_format: str | None = None
) -> pd.Series[Any]:
    """Naive datetime64[ns] in UTC; for daily bars the calendar day as written.

    date_format: format of text for strftime; None for ISO 8601. Raises DataError naming the first invalid cell.
    """
    if isinstance(column.dtype, pd.DatetimeTZDtype) or pd.api.types.is_datetime64_dtype(column.dtype):
        times = column
    elif date_format is None and (unit := epoch_unit(column)) is not None:
        numbers = pd.to_numeric(column.astype(str).str.strip().str.removesuffix(".0"))
        times = pd.to_datetime(numbers.astype(np.int64), unit=_EPOCH_CODES[unit], errors="coerce")
    else:
        times = _parse_text(column.astype(str).str.strip(), location, bar, date_format)
    missing = np.flatnonzero(times.isna())
    if missing.size:
        raise DataError(f"{location(int(missing[0]))}: the time is missing")
    years = times.dt.year
    invalid_years = np.flatnonzero((years < YEARS[0]) | (years > YEARS[1]))
    if invalid_years.size:
        row = int(invalid_years[0])
        raise DataError(f"{location(row)}: years must be from {YEARS[0]} to {YEARS[1]}, got {years.iloc[row]}")
    if bar == "1d":
        day: pd.Series[Any] = times.dt.tz_localize(None).dt.normalize().astype("datetime64[ns]")
        return day
    utc = times.dt.tz_convert("UTC").dt.tz_localize(None) if times.dt.tz is not None else times
    moment: pd.Series[Any] = utc.astype("datetime64[ns]")
    return moment


def epoch_unit(column: pd.Series[Any]) -> str | None:
    """Unit of times that count from 1970, such as "seconds", by their number of digits; None for other times."""
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return None
    first = str(column.iloc[0]).strip().removesuffix(".0")
    digits = next((n for n in _EPOCH_DIGITS if len(first) in (n - 1, n)), None)
    if digits is None or not first.isdecimal() or (len(first) in (10, 12) and _COMPACT_DATE.match(first)):
        return None
    text = column.astype(str).str.strip()
    is_epoch = text.str.fullmatch(rf"\d{{{digits - 1},{digits}}}(\.0)?").all()
    return _EPOCH_DIGITS[digits] if is_epoch else None


def live_rows(column: pd.Series[Any], days: pd.Series[Any], symbols: pd.Series[Any] | None) -> Bools:
    """[T], True at the row that yfinance adds for the running day: the last of its ticker, on the day of the row before
    and at another hour. False everywhere if other days have two rows, as bars within the day have.

    days: naive datetime64 of `column`, times as they are written.
    """
    tickers = pd.Series("", days.index) if symbols is None else symbols.astype(str)
    table = pd.DataFrame({"ticker": tickers.to_numpy(), "day": days.to_numpy()})
    is_repeat = table.duplicated().to_numpy()
    if not is_repeat.any() or is_repeat.sum() > table["ticker"].nunique():
        return np.zeros(len(table), dtype=bool)
    hours = column.astype(str).str.extract(r"[T ](\d{2}:\d{2}(?::\d{2})?)", expand=False).fillna("00:00:00").to_numpy()
    usual_hour = pd.Series(hours[~is_repeat]).mode()[0]
    if (hours[~is_repeat] == usual_hour).sum() < MIN_DAYS:
        return np.zeros(len(table), dtype=bool)
    is_last = (table["day"] == table.groupby("ticker")["day"].transform("max")).to_numpy()
    is_live = is_repeat & is_last & (hours != usual_hour)
    return np.asarray(is_live if (is_live == is_repeat).all() else np.zeros_like(is_repeat))


def _parse_text(
    text: pd.Series[Any], location: Callable[[int], str], bar: str, date_format: str | None
) -> pd.Series[Any]:
    """Parse dates and times, either all naive or all with a zone. Offsets may change, as with daylight saving."""
    zones = text.str.extract(_ZONE, expand=False).where(text.str.len() > len("2020-01-31"), None).fillna("")
    naive = zones == ""
    zone_changes = np.flatnonzero(naive != naive.iloc[0])
    if zone_changes.size and text.iloc[zone_changes[0]]:
        first, second = (f"zone {z}" if z else "no zone" for z in (zones.iloc[0], zones.iloc[zone_changes[0]]))
        raise DataError(
            f"{location(int(zone_changes[0]))}: mixed time zones, {second} after {first}: write a zone at all times "
            "or at none"
        )
    if date_format is not None:
        times = pd.to_datetime(text, format=date_format, errors="coerce")
        example = f"of the format {date_format[:80]}"
        wrong = np.flatnonzero(times.isna())
    else:
        # A daily bar belongs to the day as written, whatever its offset.
        date_text = text.str.slice(0, len("2020-01-31")) if bar == "1d" and not naive.iloc[0] else text
        times = pd.to_datetime(
            date_text, format="ISO8601", errors="coerce", utc=bool(bar != "1d" and not naive.iloc[0])
        )
        wrong = np.flatnonzero(times.isna() | ~text.str.match(_DATED))
        example = "such as 2020-01-31 or 2020-01-31T15:30Z"
    if wrong.size:
        row = int(wrong[0])
        problem = f"got {text.iloc[row][:80]!r}" if text.iloc[row] else "it is blank"
        hint = "; for other formats pass --date-format, e.g. %d.%m.%Y for 31.01.2020 (date_format= in Python)"
        fix = "" if date_format else hint
        raise DataError(f"{location(row)}: the time must be a date {example}, {problem}{fix}")
    return times


def parse_numbers(
    column: pd.Series[Any], name: str, location: Callable[[int], str], decimal: str = "."
) -> pd.Series[Any]:
    """Parse numbers to float64, NaN if blank. Raises DataError naming the first invalid cell.

    decimal: "." or ","; with a comma, dots and spaces separate thousands.
    """
    if pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype):
        return column.astype(np.float64)
    text = column.fillna("").astype(str).str.strip() if column.hasnans else column.astype(str).str.strip()
    blank = text.str.lower().isin(_BLANK)
    number_text = text
    if decimal == ",":
        number_text = text.str.replace(r"[.\s](?=\d{3}(?:\D|$))", "", regex=True).str.replace(",", ".", regex=False)
    numbers = pd.to_numeric(number_text.mask(blank), errors="coerce").astype(np.float64)
    wrong = np.flatnonzero(numbers.isna() & ~blank)
    if wrong.size:
        row = int(wrong[0])
        example = "12.5" if decimal == "." else "12,5"
        has_comma = decimal == "." and "," in text.iloc[row]
        fix = "; remove commas of thousands, or pass --decimal , if they separate decimals" if has_comma else ""
        raise DataError(
            f"{location(row)}: {name[:80]} must be a number such as {example}, got {text.iloc[row][:80]!r}{fix}"
        )
    return numbers
