"""Dates as people write them, made into UTC moments: a bare date that ends a range includes its whole day."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from finrl_pod.errors import DataError

# pandas also reads "2020" or "2020-06" and makes it a first of January or June: as the end of a range that surprises.
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_ISO_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}.*")

YEARS = 1678, 2261  # whole years that nanoseconds in 64 bits reach


def first_moment(date: str | pd.Timestamp, what: str = "start") -> pd.Timestamp:
    """The moment at which a range that starts with `date` starts: naive, UTC. Raises DataError naming `what`."""
    return _moment(date, what)[0]


def last_moment(date: str | pd.Timestamp, what: str = "end") -> pd.Timestamp:
    """The last moment of a range that ends with `date`: a bare ISO date means the end of that day. Naive, UTC."""
    moment, whole_day = _moment(date, what)
    return moment + pd.Timedelta(days=1) - pd.Timedelta(1, "ns") if whole_day else moment


def as_utc(moment: pd.Timestamp) -> pd.Timestamp:
    """The same moment without a zone, in UTC; a moment without a zone is taken to be UTC."""
    moment = pd.Timestamp(moment).as_unit("ns")
    return moment if moment.tzinfo is None else moment.tz_convert("UTC").tz_localize(None)


def stamp(time: np.datetime64, bar: str) -> str:
    """How messages and reports write the time of a bar: its date, with hours and minutes (UTC) for intraday bars."""
    return str(time.astype("datetime64[D]")) if bar == "1d" else f"{time.astype('datetime64[m]')}Z"


def _moment(date: str | pd.Timestamp, what: str) -> tuple[pd.Timestamp, bool]:
    """(the moment, is it a bare date?)."""
    if isinstance(date, pd.Timestamp):
        return as_utc(date), False
    text = date.strip()
    bare = _ISO_DATE.fullmatch(text) is not None
    if bare or _ISO_MOMENT.fullmatch(text):
        try:
            moment = as_utc(pd.Timestamp(text))
            if YEARS[0] <= moment.year <= YEARS[1]:
                return moment, bare
        except ValueError:
            pass
    raise DataError(f"{what} must be a date such as 2020-01-31, got {date!r}")
