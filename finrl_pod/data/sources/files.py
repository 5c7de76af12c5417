"""CSV and Parquet files, long or wide.

Long: a column "time" (or date, datetime, timestamp), a column "symbol" (or ticker, tic), and close with any of open,
high, low, volume, spread (a fraction of the price) and sector (text). Wide: a time column, then one column of closes
for each ticker. Times without a zone are UTC. CSV cells are separated by commas, semicolons or tabs (detected from the
header), with decimal points.
"""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finrl_pod.data.dates import YEARS
from finrl_pod.data.panel import between, select
from finrl_pod.data.sources.frames import panel_of_rows
from finrl_pod.errors import DataError
from finrl_pod.types import PANEL_COLUMNS, Panel

TIME_NAMES = ("time", "date", "datetime", "timestamp")
SYMBOL_NAMES = ("symbol", "ticker", "tic")
SECTOR = "sector"
OTHER_SEPARATORS = (";", "\t")  # than the comma
_BLANK = ("", "nan", "na", "n/a", "null", "none")
# pandas also accepts "now" and "2020-01"; a bar needs at least a full date.
_DATED = re.compile(r"\d{4}-?\d{2}-?\d{2}")
_ZONE = re.compile(r"\d(Z|[+-]\d{2}(?::?\d{2})?)$")


@dataclass(frozen=True)
class FileSource:
    """A CSV or Parquet file as a `DataSource`.

    allow_gaps: bars missing between a ticker's first and last become untradable instead of an error.
    """

    name = "file"

    path: Path
    adjusted: bool = True
    allow_gaps: bool = False

    def fetch(self, symbols: tuple[str, ...], start: pd.Timestamp, end: pd.Timestamp, bar: str = "1d") -> Panel:
        """Bars of `symbols` (all if empty) with start <= time <= end. Raises DataError naming the invalid line."""
        panel = read_file(self.path, bar=bar, adjusted=self.adjusted, allow_gaps=self.allow_gaps)
        return between(select(panel, symbols), start, end)


def read_file(path: Path, *, bar: str = "1d", adjusted: bool = True, allow_gaps: bool = False) -> Panel:
    """Read a CSV or Parquet file, by its suffix. Raises DataError naming the invalid line (or row).

    Daily bars are dated by their time's own calendar day; intraday times are converted to UTC.
    """
    parquet = path.suffix.lower() in (".parquet", ".pq")
    if not parquet and not path.name.lower().endswith((".csv", ".csv.gz", ".txt")):
        raise DataError(f"{path} must end in .csv, .csv.gz, .txt or .parquet")
    table = _read_parquet(path) if parquet else _read_csv(path)
    # A CSV's first line is its header, so row 0 is line 2; rows of a Parquet file are counted from 1.
    word, offset = ("row", 1) if parquet else ("line", 2)

    def where(row: int) -> str:
        return f"{path.name}, {word} {row + offset}"

    rows, places = _long(table, path.name, where, bar)
    return panel_of_rows(
        rows,
        bar=bar,
        source=f"file {path.name}",
        name=path.name.split(".")[0],
        adjusted=adjusted,
        flaws=(f"Whether prices are adjusted was stated at import, not checked: {'yes' if adjusted else 'no'}.",),
        allow_gaps=allow_gaps,
        where=lambda i: where(int(places[i])),
    )


def _read_csv(path: Path) -> pd.DataFrame:
    """Read every cell as text, so that errors can quote it; blank lines keep their numbers."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            header = _csv(path, header=None, nrows=1)
            separator = ","
            if header.shape[1] == 1:  # spreadsheets use them where a comma separates decimals
                separator = next((mark for mark in OTHER_SEPARATORS if mark in str(header.iat[0, 0])), ",")
                header = _csv(path, header=None, nrows=1, sep=separator)
            _check_names([str(name).strip() for name in header.iloc[0]], path.name)
            table = _csv(path, sep=separator)
    except pd.errors.ParserWarning:
        raise DataError(f"{path.name} is not a regular table: lines have more cells than its header") from None
    except pd.errors.EmptyDataError:
        raise DataError(f"{path.name} is empty: it needs a header and at least one line of prices") from None
    except pd.errors.ParserError as error:
        raise DataError(f"{path.name} is not a regular table: {str(error).strip().splitlines()[-1]}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} is not UTF-8 text, at byte {error.start}: save it as UTF-8") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    filled = np.flatnonzero((table != "").any(axis=1))
    return table.iloc[: int(filled[-1]) + 1 if filled.size else 0]


def _csv(path: Path, **options: Any) -> pd.DataFrame:
    table: pd.DataFrame = pd.read_csv(
        path,
        dtype=str,
        keep_default_na=False,
        skip_blank_lines=False,
        index_col=False,
        encoding="utf-8-sig",
        compression="infer",
        **options,
    )
    return table


def _check_names(names: Sequence[str], file: str) -> None:
    """Raises DataError for duplicate or empty column names, which pandas would rename."""
    for place, name in enumerate(names):
        if not name:
            raise DataError(f"{file}: column {place + 1} has no name: give it one or remove it")
        if name in names[:place]:
            raise DataError(f"{file} has the column {name!r} twice: remove one")


def _read_parquet(path: Path) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as file:
            # Without threads: see data/store.py.
            table: pd.DataFrame = pq.ParquetFile(file).read(use_threads=False).to_pandas(use_threads=False)
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or "it is truncated or not a Parquet file"
        raise DataError(f"cannot read {path}: {reason}") from None
    if table.columns.nlevels > 1:
        raise DataError(
            f"{path.name} has {table.columns.nlevels} levels of column names: it needs one, as a long table with the "
            "columns time, symbol and close (pandas: table.stack), or as closes with one column for each ticker"
        )
    known = (*TIME_NAMES, *SYMBOL_NAMES)
    kept = [name for name in table.index.names if name in table.columns]  # set_index(..., drop=False)
    table = table.droplevel(kept) if len(kept) < table.index.nlevels else table.reset_index(drop=True)
    if table.index.nlevels > 1 or str(table.index.name).lower() in known:
        table = table.reset_index()
    return table


def _long(
    table: pd.DataFrame, file: str, where: Callable[[int], str], bar: str
) -> tuple[pd.DataFrame, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """(rows for `panel_of_rows`, the table row of each)."""
    table = table.set_axis(table.columns.astype(str).str.strip(), axis=1)
    _check_names(list(table.columns), file)
    names = {c: c.lower() for c in table.columns}
    time_column = next((c for c in table.columns if names[c] in TIME_NAMES), None)
    if time_column is None:
        raise DataError(f"{file} has no time column: it needs one named {' or '.join(TIME_NAMES)}")
    symbol_column = next((c for c in table.columns if names[c] in SYMBOL_NAMES), None)
    values = [c for c in table.columns if c not in (time_column, symbol_column)]
    if not values or table.empty:
        raise DataError(f"{file} holds no prices: it needs a column of closes and at least one row")
    if symbol_column is None and "close" in names.values():
        raise DataError(f"{file} has a column 'close' but none that names the ticker: add a column 'symbol'")
    if symbol_column is not None:
        unknown = [c for c in values if names[c] not in (*PANEL_COLUMNS, SECTOR)]
        if unknown:
            known = ", ".join(("time", "symbol", *PANEL_COLUMNS, SECTOR))
            raise DataError(f"{file}: unknown column {unknown[0]!r}; known are {known}: rename or remove it")
    times = _times(table[time_column], where, bar)
    sector = next((c for c in values if symbol_column is not None and names[c] == SECTOR), None)
    numbers = {c: _numbers(table[c], c, where) for c in values if c != sector}
    count = np.arange(len(table))
    if symbol_column is not None:
        symbols = table[symbol_column].astype(str).str.strip()
        nameless = np.flatnonzero(symbols.eq("") | table[symbol_column].isna())
        if nameless.size:
            raise DataError(f"{where(int(nameless[0]))}: the ticker is missing")
        rows = pd.DataFrame({"time": times, "symbol": symbols, **{names[c]: numbers[c] for c in numbers}})
        if sector is not None:
            rows[SECTOR] = table[sector].astype(str).where(table[sector].notna(), "").str.strip()
        return rows, count
    rows = pd.concat([pd.DataFrame({"time": times, "symbol": c, "close": numbers[c]}) for c in values])
    return rows.reset_index(drop=True), np.tile(count, len(values))


def _times(column: pd.Series[Any], where: Callable[[int], str], bar: str) -> pd.Series[Any]:
    """Naive datetime64[ns] in UTC; for daily bars the calendar day as written."""
    if isinstance(column.dtype, pd.DatetimeTZDtype) or pd.api.types.is_datetime64_dtype(column.dtype):
        parsed = column
    else:
        parsed = _parse_times(column.astype(str).str.strip(), where)
    missing = np.flatnonzero(parsed.isna())
    if missing.size:
        raise DataError(f"{where(int(missing[0]))}: the time is missing")
    years = parsed.dt.year
    beyond = np.flatnonzero((years < YEARS[0]) | (years > YEARS[1]))
    if beyond.size:
        row = int(beyond[0])
        raise DataError(f"{where(row)}: years must be from {YEARS[0]} to {YEARS[1]}, got {years.iloc[row]}")
    if bar == "1d":
        day: pd.Series[Any] = parsed.dt.tz_localize(None).dt.normalize().astype("datetime64[ns]")
        return day
    utc = parsed.dt.tz_convert("UTC").dt.tz_localize(None) if parsed.dt.tz is not None else parsed
    moment: pd.Series[Any] = utc.astype("datetime64[ns]")
    return moment


def _parse_times(text: pd.Series[Any], where: Callable[[int], str]) -> pd.Series[Any]:
    """Parse ISO 8601 text, all naive or all with the same zone."""
    zones = text.str.extract(_ZONE, expand=False).where(text.str.len() > len("2020-01-31"), None).fillna("")
    zones = zones.replace({"+00:00": "Z", "+0000": "Z", "+00": "Z"})
    other = np.flatnonzero(zones != zones.iloc[0])
    if other.size and text.iloc[other[0]]:
        first, second = (f"zone {z}" if z else "no zone" for z in (zones.iloc[0], zones.iloc[other[0]]))
        raise DataError(f"{where(int(other[0]))}: mixed time zones, {second} after {first}: write all times in UTC")
    parsed = pd.to_datetime(text, format="ISO8601", errors="coerce", utc=False)
    wrong = np.flatnonzero(parsed.isna() | ~text.str.match(_DATED))
    if wrong.size:
        row = int(wrong[0])
        got = f"got {text.iloc[row]!r}" if text.iloc[row] else "it is blank"
        raise DataError(f"{where(row)}: the time must be a date such as 2020-01-31 or 2020-01-31T15:30Z, {got}")
    return parsed


def _numbers(column: pd.Series[Any], name: str, where: Callable[[int], str]) -> pd.Series[Any]:
    """Parse numbers to float64, NaN if blank. Raises DataError naming the first invalid cell."""
    if pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype):
        return column.astype(np.float64)
    text = column.fillna("").astype(str).str.strip() if column.hasnans else column.astype(str).str.strip()
    blank = text.str.lower().isin(_BLANK)
    numbers = pd.to_numeric(text.mask(blank), errors="coerce").astype(np.float64)
    wrong = np.flatnonzero(numbers.isna() & ~blank)
    if wrong.size:
        row = int(wrong[0])
        raise DataError(f"{where(row)}: {name} must be a number such as 12.5, got {text.iloc[row]!r}")
    return numbers
