"""Price sources behind the `DataSource` protocol by name: Yahoo Finance, Alpaca and custom ones."""

from __future__ import annotations

import dataclasses
import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from finrl_pod.data.panel import between
from finrl_pod.data.sources.files import read_frame
from finrl_pod.errors import DataError, FetchError, FinrlPodError, InputError
from finrl_pod.prices import Panel
from finrl_pod.user_files import custom_object, error_text, stdout_to_stderr, unpinned

if TYPE_CHECKING:
    from finrl_pod.protocols import DataSource  # loads torch; lists of panels do not need it


_CLASSES = {
    "yfinance": "finrl_pod.data.sources.yahoo:YahooSource",
    "alpaca": "finrl_pod.data.sources.alpaca:AlpacaSource",
}
SOURCES = tuple(_CLASSES)


def open_source(name: str) -> DataSource:
    """Open a source with its default settings: by name, file.py:Class, or package.module:Class.

    Raises DataError for an unknown name, InputError for a class that cannot be used.
    """
    if name in _CLASSES:
        module, _, class_name = _CLASSES[name].partition(":")
        return cast("DataSource", getattr(import_module(module), class_name)())
    make = custom_object(name, f"the source {name}")
    if make is None:
        known_names = ", ".join(SOURCES)
        raise DataError(
            f"source must be one of {known_names}, or file.py:Class, got {name!r}; files are read with `data import`"
        )
    if not callable(make) or not callable(getattr(make, "fetch", None)):
        raise InputError(f"the source {unpinned(name)} must be a class with fetch(symbols, start, end, bar)")
    try:
        source = make()
    except Exception as error:
        raise InputError(f"the source {unpinned(name)} could not be created: {error_text(error)}") from error
    return OwnSource(name, source)


class OwnSource:
    """The object of a class with fetch(symbols, start, end, bar) that returns a Panel or a DataFrame.

    What its code raises or returns wrongly becomes one sentence.

    name: attribute `name` of the object, else the name of its class.
    """

    def __init__(self, reference: str, source: Any) -> None:
        """reference: file.py:Class or package.module:Class, for messages."""
        self._source = source
        self._description = f"the source {unpinned(reference)}"
        name = getattr(source, "name", None)
        self.name = name if isinstance(name, str) else type(source).__name__

    def fetch(self, symbols: tuple[str, ...], start: pd.Timestamp, end: pd.Timestamp, bar: str) -> Panel:
        """Bars with start <= time <= end; symbols may be missing.

        Raises InputError for a fetch with other arguments, FetchError if it fails, DataError for what is not prices.
        """
        arguments = (symbols, start, end, bar)
        try:
            inspect.signature(self._source.fetch).bind(*arguments)
        except TypeError as error:
            raise InputError(f"{self._description} must have fetch(symbols, start, end, bar): {error}") from None
        try:
            with stdout_to_stderr():
                prices = self._source.fetch(*arguments)
        except FinrlPodError:
            raise
        except Exception as error:
            raise FetchError(f"{self._description} failed: {error_text(error)}") from error
        if isinstance(prices, pd.DataFrame):
            prices = self._panel(prices, bar)
        if not isinstance(prices, Panel):
            raise DataError(f"{self._description} must return a Panel or a DataFrame, got {type(prices).__name__}")
        return between(dataclasses.replace(prices, name=prices.name or self.name), start, end)

    def _panel(self, frame: pd.DataFrame, bar: str) -> Panel:
        try:
            return read_frame(frame, source=self.name, bar=bar)
        except (DataError, TypeError, ValueError) as error:
            reason = str(error) if isinstance(error, DataError) else error_text(error)
            # `data fetch` has no such option: a source knows its gaps.
            reason = reason.replace(
                "pass --allow-gaps (allow_gaps=True in Python)", "return fp.load_prices(frame, allow_gaps=True)"
            )
            raise DataError(f"{self._description} returned a DataFrame that cannot be used: {reason}") from error
