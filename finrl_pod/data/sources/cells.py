"""Parsing of times and numbers in the cells of a table; errors name the line."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd

from finrl_pod.data.dates import YEARS
from finrl_pod.errors import DataError

_BLANK = ("", "nan", "na", "n/a", "null", "none")
# pandas also accepts "now" and "2020-01"; a bar needs at least a full date.
_DATED = re.compile(r"\d{4}-?\d{2}-?\d{2}")
_ZONE = re.compile(r"\d(Z|[+-]\d{2}(?::?\d{2})?)$")


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
        problem = f"got {text.iloc[row]!r}" if text.iloc[row] else "it is blank"
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
        raise DataError(f"{location(row)}: {name} must be a number such as {example}, got {text.iloc[row]!r}{fix}")
    return numbers
