"""Parsing of dates into naive UTC timestamps. A bare date at the end of a range includes the whole day."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from finrl_pod.errors import DataError

# pandas also accepts "2020" or "2020-06" as a first of January or June: misleading at the end of a range.
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_ISO_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}.*")

WEEKEND = {5: "Saturday", 6: "Sunday"}  # by day of the week from Monday, 0
YEARS = 1678, 2261  # range of years of 64-bit nanosecond timestamps


def first_moment(date: str | pd.Timestamp, name: str = "start") -> pd.Timestamp:
    """Start of a range that begins with `date`, naive UTC. Raises DataError naming `what`."""
    return _moment(date, name)[0]


def last_moment(date: str | pd.Timestamp, name: str = "end") -> pd.Timestamp:
    """End of a range that ends with `date`, naive UTC; a bare ISO date means the end of that day."""
    moment, whole_day = _moment(date, name)
    return moment + pd.Timedelta(days=1) - pd.Timedelta(1, "ns") if whole_day else moment


def as_utc(moment: pd.Timestamp) -> pd.Timestamp:
    """Convert a timestamp to naive UTC; a naive one is taken to be UTC already."""
    moment = pd.Timestamp(moment).as_unit("ns")
    return moment if moment.tzinfo is None else moment.tz_convert("UTC").tz_localize(None)


def stamp(time: np.datetime64, bar: str) -> str:
    """Format the time of a bar: its date, with hours and minutes (UTC) for intraday bars."""
    return str(time.astype("datetime64[D]")) if bar == "1d" else f"{time.astype('datetime64[m]')}Z"


def weekend_days(times: np.ndarray) -> list[str | None]:
    """ "Saturday", "Sunday" or None of each time [T], datetime64."""
    weekdays = (times.astype("datetime64[D]").astype(int) + 3) % 7
    return [WEEKEND.get(int(day)) for day in weekdays]


def _moment(date: str | pd.Timestamp, name: str) -> tuple[pd.Timestamp, bool]:
    """(timestamp, whether it was given as a bare date)."""
    if isinstance(date, pd.Timestamp):
        return as_utc(date), False
    text = str(date).strip()  # in Python also a date of datetime or NumPy
    is_date = _ISO_DATE.fullmatch(text) is not None
    if is_date or _ISO_MOMENT.fullmatch(text):
        try:
            moment = as_utc(pd.Timestamp(text))
            if YEARS[0] <= moment.year <= YEARS[1]:
                return moment, is_date
        except ValueError:
            pass
    raise DataError(f"{name} must be a date such as 2020-01-31, got {date!r}")
