"""Times and numbers of a table's cells, which errors name by their line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from finrl_pod.data.dates import YEARS
from finrl_pod.errors import DataError

MONTHS = 12
_BLANK = ("", "nan", "na", "n/a", "null", "none")
# pandas also accepts "now" and "2020-01"; a bar needs at least a full date.
_DATED = re.compile(r"\d{4}-?\d{2}-?\d{2}")
_ZONE = re.compile(r"\d(Z|[+-]\d{2}(?::?\d{2})?)$")


def parse_times(
    column: pd.Series[Any], where: Callable[[int], str], bar: str, date_format: str | None = None
) -> pd.Series[Any]:
    """Naive datetime64[ns] in UTC; for daily bars the calendar day as written.

    date_format: of text, as in strftime; None for ISO 8601. Raises DataError naming the first invalid cell.
    """
    if isinstance(column.dtype, pd.DatetimeTZDtype) or pd.api.types.is_datetime64_dtype(column.dtype):
        parsed = column
    else:
        parsed = _parse_text(column.astype(str).str.strip(), where, bar, date_format)
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


def _parse_text(text: pd.Series[Any], where: Callable[[int], str], bar: str, date_format: str | None) -> pd.Series[Any]:
    """Parse dates and times, either all naive or all with a zone. Offsets may change, as with daylight saving."""
    zones = text.str.extract(_ZONE, expand=False).where(text.str.len() > len("2020-01-31"), None).fillna("")
    naive = zones == ""
    other = np.flatnonzero(naive != naive.iloc[0])
    if other.size and text.iloc[other[0]]:
        first, second = (f"zone {z}" if z else "no zone" for z in (zones.iloc[0], zones.iloc[other[0]]))
        raise DataError(
            f"{where(int(other[0]))}: mixed time zones, {second} after {first}: write a zone at all times or at none"
        )
    if date_format is not None:
        if "%" not in date_format:
            raise DataError(f"--date-format takes codes such as %d.%m.%Y for 31.01.2020, got {date_format!r}")
        parsed, example = pd.to_datetime(text, format=date_format, errors="coerce"), f"of the format {date_format}"
        wrong = np.flatnonzero(parsed.isna())
    else:
        # A daily bar belongs to the day as written, whatever its offset.
        dated = text.str.slice(0, len("2020-01-31")) if bar == "1d" and not naive.iloc[0] else text
        parsed = pd.to_datetime(dated, format="ISO8601", errors="coerce", utc=bool(bar != "1d" and not naive.iloc[0]))
        wrong = np.flatnonzero(parsed.isna() | ~text.str.match(_DATED))
        example = "such as 2020-01-31 or 2020-01-31T15:30Z"
    if wrong.size:
        row = int(wrong[0])
        got = f"got {text.iloc[row]!r}" if text.iloc[row] else "it is blank"
        fix = "" if date_format else f"; {_format_hint(text)} (date_format= in Python)"
        raise DataError(f"{where(row)}: the time must be a date {example}, {got}{fix if text.iloc[row] else ''}")
    return parsed


def _format_hint(text: pd.Series[Any]) -> str:
    """Which --date-format reads dates that are not ISO 8601, as far as they show it."""
    parts = text.str.extract(r"^(\d{1,2})([./-])(\d{1,2})\2(\d{4}|\d{2})$").dropna()
    if len(parts) < len(text):
        return "for other formats pass --date-format, e.g. %d.%m.%Y for 31.01.2020"
    mark, year = parts[1].iloc[0], "%Y" if len(parts[3].iloc[0]) == len("2020") else "%y"
    day_first, month_first = f"%d{mark}%m{mark}{year}", f"%m{mark}%d{mark}{year}"
    first, second = (int(parts[i].astype(int).max()) for i in (0, 2))
    if first > MONTHS or (mark == "." and second <= MONTHS):
        return f"pass --date-format {day_first}"
    if second > MONTHS:
        return f"pass --date-format {month_first}"
    return f"pass --date-format {day_first} (day first) or {month_first} (month first)"


def parse_numbers(column: pd.Series[Any], name: str, where: Callable[[int], str], decimal: str = ".") -> pd.Series[Any]:
    """Parse numbers to float64, NaN if blank. Raises DataError naming the first invalid cell.

    decimal: "." or ","; with a comma, dots and spaces separate thousands.
    """
    if pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype):
        return column.astype(np.float64)
    text = column.fillna("").astype(str).str.strip() if column.hasnans else column.astype(str).str.strip()
    blank = text.str.lower().isin(_BLANK)
    plain = text
    if decimal == ",":
        plain = text.str.replace(r"[.\s](?=\d{3}(?:\D|$))", "", regex=True).str.replace(",", ".", regex=False)
    numbers = pd.to_numeric(plain.mask(blank), errors="coerce").astype(np.float64)
    wrong = np.flatnonzero(numbers.isna() & ~blank)
    if wrong.size:
        row = int(wrong[0])
        comma = decimal == "." and bool(re.fullmatch(r"[\d.\s]*\d,\d+", text.iloc[row]))
        fix = "; for decimal commas pass --decimal ," if comma else ""
        example = "12.5" if decimal == "." else "12,5"
        raise DataError(f"{where(row)}: {name} must be a number such as {example}, got {text.iloc[row]!r}{fix}")
    return numbers
