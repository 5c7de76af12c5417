"""Cells of tables: times and numbers from the text of a file, or from the columns of a DataFrame."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
import pandas as pd

from finrl_pod.data.dates import YEARS
from finrl_pod.errors import DataError
from finrl_pod.prices import Bools

MIN_DAYS = 3  # at the same hour, beside which a row of another hour is the row of the running day
_BLANK = ("", "-", "--", "nan", "na", "n/a", "null", "none")
_UNITS = {"k": 1e3, "m": 1e6, "b": 1e9}
_WITH_DECIMAL_COMMA = r"[+-]?\d+(?:[.\s]\d{3})*,\d+"
_WITH_EITHER_COMMA = r"[+-]?[1-9]\d{0,2},\d{3}"  # 1,234 is one number with a decimal comma, another without
_WITH_THOUSANDS = r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?"
_WITH_DECIMAL_DOT = r"[+-]?\d*\.(?:\d{0,2}|\d{4,})"
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


@dataclass(frozen=True)
class NumberFormat:
    """How the numbers of a file are written.

    decimal: "." or ","; with a comma, dots and spaces separate thousands. currency: sign before a price. thousands:
    commas may separate thousands. units: K, M or B may follow for 10^3, 10^6 and 10^9.
    """

    decimal: str = "."
    currency: str = ""
    thousands: bool = False
    units: bool = False


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
    column: pd.Series[Any],
    location: Callable[[int], str],
    bar: str,
    date_format: str | None = None,
    date_hint: str = "",
) -> pd.Series[Any]:
    """Naive datetime64[ns] in UTC; for daily bars the calendar day as written.

    date_format: format of text for strftime; None for ISO 8601. date_hint: format to suggest. Raises
    DataError naming the first invalid cell.
    """
    if isinstance(column.dtype, pd.DatetimeTZDtype) or pd.api.types.is_datetime64_dtype(column.dtype):
        times = column
    elif date_format is None and (unit := epoch_unit(column)) is not None:
        numbers = pd.to_numeric(column.astype(str).str.strip().str.removesuffix(".0"))
        times = pd.to_datetime(numbers.astype(np.int64), unit=_EPOCH_CODES[unit], errors="coerce")
    else:
        times = _parse_text(column.astype(str).str.strip(), location, bar, date_format, date_hint)
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


def with_hours(dates: pd.Series[Any], hours: pd.Series[Any]) -> pd.Series[Any]:
    """Text of dates and of hours (9:30, 09:30:00 or 093000) as ISO 8601."""
    days = dates.astype(str).str.strip().str.replace(r"^(\d{4})(\d{2})(\d{2})$", r"\1-\2-\3", regex=True)
    clock = hours.astype(str).str.strip().str.replace(r"^(\d{2})(\d{2})(\d{2})?$", _colons, regex=True)
    return (days + " " + clock.str.replace(r"^(?=\d:)", "0", regex=True)).str.strip()


def _colons(match: re.Match[str]) -> str:
    return ":".join(part for part in match.groups() if part)


def are_hours(column: pd.Series[Any]) -> bool:
    """True if the cells of a column are times of a day."""
    return bool(column.astype(str).str.strip().str.match(r"\d{1,2}:\d{2}|\d{4}(?:\d{2})?$|$").all())


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
    text: pd.Series[Any], location: Callable[[int], str], bar: str, date_format: str | None, date_hint: str
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
        other_format = date_hint or "e.g. %d.%m.%Y for 31.01.2020"
        hint = f"; for other formats pass --date-format, {other_format} (date_format= in Python)"
        fix = "" if date_format else hint
        raise DataError(f"{location(row)}: the time must be a date {example}, {problem}{fix}")
    return times


def parse_numbers(
    column: pd.Series[Any],
    name: str,
    location: Callable[[int], str],
    number_format: NumberFormat = NumberFormat(),
) -> pd.Series[Any]:
    """Parse numbers to float64, NaN if blank. Raises DataError naming the first invalid cell."""
    if pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype):
        return column.astype(np.float64)
    text = column.fillna("").astype(str).str.strip() if column.hasnans else column.astype(str).str.strip()
    blank = text.str.lower().isin(_BLANK)
    number_text = text
    factor: pd.Series[Any] | float = 1.0
    if number_format.currency:
        number_text = number_text.str.removeprefix(number_format.currency)
    if number_format.units:
        factor = number_text.str[-1:].str.lower().map(_UNITS).fillna(1.0)
        number_text = number_text.str.replace(r"(?<=\d)[KMBkmb]$", "", regex=True)
    if number_format.decimal == ",":
        number_text = number_text.str.replace(r"[.\s](?=\d{3}(?:\D|$))", "", regex=True)
        number_text = number_text.str.replace(",", ".", regex=False)
    elif number_format.thousands:
        has_thousands = number_text.str.fullmatch(_WITH_THOUSANDS)
        number_text = number_text.mask(has_thousands, number_text.str.replace(",", "", regex=False))
    numbers = pd.to_numeric(number_text.mask(blank), errors="coerce").astype(np.float64)
    wrong = np.flatnonzero(numbers.isna() & ~blank)
    if wrong.size:
        row = int(wrong[0])
        example = "12.5" if number_format.decimal == "." else "12,5"
        has_comma = number_format.decimal == "." and "," in text.iloc[row]
        fix = "; pass --decimal . if commas separate thousands, --decimal , if they separate decimals" * has_comma
        raise DataError(
            f"{location(row)}: {name[:80]} must be a number such as {example}, got {text.iloc[row][:80]!r}{fix}"
        )
    return numbers * factor


def decimal_mark(columns: Sequence[pd.Series[Any]], location: Callable[[int], str]) -> str:
    """The decimal mark of the numbers in these columns: a comma if every comma can be one and some must be, else a dot.

    Raises DataError if commas may as well separate thousands.
    """
    unclear = ""
    is_decided = False
    for column in columns:
        if pd.api.types.is_numeric_dtype(column.dtype):
            continue
        text = column.astype(str).str.strip()
        has_comma = text.str.contains(",", regex=False)
        if (has_comma & ~text.str.fullmatch(_WITH_DECIMAL_COMMA)).any() or text.str.fullmatch(_WITH_DECIMAL_DOT).any():
            return "."
        is_unclear = has_comma & text.str.fullmatch(_WITH_EITHER_COMMA)
        is_decided |= bool((has_comma & ~is_unclear).any())
        if not unclear and is_unclear.any():
            row = int(np.flatnonzero(is_unclear)[0])
            unclear = f"{location(row)}: {str(column.name)[:80]} is {text.iloc[row][:80]!r}"
    if unclear and not is_decided:
        raise DataError(
            f"{unclear}, and its comma may separate decimals or thousands: pass --decimal , or --decimal . (decimal= "
            "in Python)"
        )
    return "," if is_decided else "."
