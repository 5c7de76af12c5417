"""Options with which files of prices are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from finrl_pod.arguments import argument
from finrl_pod.data.sources.cells import check_date_format
from finrl_pod.data.sources.tables import quote
from finrl_pod.errors import DataError, InputError
from finrl_pod.settings.toml import closest_key

DECIMALS = (".", ",")


@dataclass(frozen=True)
class ReadOptions:
    """How a file of prices is read.

    bar: length of its bars. adjusted: prices are adjusted for splits and dividends; a column of adjusted closes then
    adjusts open, high, low and close by its ratio to the close. If False, that column is left out, and columns of
    splits and dividends adjust for splits and pay dividends. None: as the layout of the file says, else True.
    allow_gaps: bars missing between the first and last of a ticker become untradable instead of an error.
    drop_repeated_bars, allow_repeated_bars: leave out or keep bars on which every ticker repeats its prices; otherwise
    many of them are an error. symbol: ticker of a file without such a column. decimal: "." or ","; found from the
    numbers if None. date_format: format for strftime of dates that are not ISO 8601. separator: one character between
    the cells of a CSV file, found from its header if None. columns: what columns of the file are called here, as in
    "Last=close, Code=symbol" or {"Last": "close", "Code": "symbol"}. ignore_unknown: leave out columns that no layout
    knows instead of an error.
    """

    bar: str = "1d"
    adjusted: bool | None = None
    allow_gaps: bool = False
    drop_repeated_bars: bool = False
    allow_repeated_bars: bool = False
    symbol: str | None = None
    decimal: str | None = None
    date_format: str | None = None
    separator: str | None = None
    columns: str | Mapping[str, str] = ""
    ignore_unknown: bool = False

    def __post_init__(self) -> None:
        """Raises DataError for an invalid option."""
        if self.decimal is not None and self.decimal not in DECIMALS:
            raise DataError(f"--decimal must be '.' or ',', got {quote(self.decimal)}")
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
        if isinstance(self.columns, Mapping):
            return {theirs.strip(): ours.strip() for theirs, ours in self.columns.items()}
        pairs = [pair.split("=") for pair in self.columns.split(",") if pair.strip()]
        if any(len(pair) != 2 or not all(map(str.strip, pair)) for pair in pairs):
            raise DataError(f"--columns takes pairs such as Last=close, Code=symbol, got {quote(self.columns)}")
        return {theirs.strip(): ours.strip() for theirs, ours in pairs}

    @classmethod
    def from_keywords(cls, options: Mapping[str, Any]) -> ReadOptions:
        """The options of a call in Python. Raises InputError for an unknown one or a wrong type, else as the class."""
        field_names = [field.name for field in dataclasses.fields(cls)]
        if unknown := [name for name in options if name not in field_names]:
            raise InputError(f"there is no option {unknown[0]!r} for prices; {closest_key(unknown[0], field_names)}")
        types = get_type_hints(cls)
        checked_options = dict(options)
        for name, value in options.items():
            if not isinstance(value, str) or types[name] in (bool, bool | None):  # the class checks texts
                checked_options[name] = argument(name, value, types[name])
        return cls(**checked_options)
