"""Price sources behind the `DataSource` protocol: the built-in sample, files, Yahoo Finance, Alpaca."""

from __future__ import annotations

from typing import TYPE_CHECKING

from finrl_pod.errors import DataError, InputError
from finrl_pod.user_files import custom_object, error_text, unpinned

if TYPE_CHECKING:
    from finrl_pod.protocols import DataSource  # loads torch; lists of panels do not need it

SOURCES = ("sample", "yfinance", "alpaca")


def open_source(name: str) -> DataSource:
    """Open a source with its default settings: by name, file.py:Class, or package.module:Class.

    Raises DataError for an unknown name, InputError for a class that cannot be used.
    """
    if name == "sample":
        from finrl_pod.data.built_in_panels import SampleSource

        return SampleSource()
    if name == "yfinance":
        from finrl_pod.data.sources.yahoo import YahooSource

        return YahooSource()
    if name == "alpaca":
        from finrl_pod.data.sources.alpaca import AlpacaSource

        return AlpacaSource()
    if (user_class := custom_object(name, f"the source {name}")) is not None:
        return _own_source(name, user_class)
    known_names = ", ".join(SOURCES)
    raise DataError(
        f"source must be one of {known_names}, or file.py:Class, got {name!r}; files are read with `data import`"
    )


def _own_source(name: str, make: object) -> DataSource:
    if not callable(make) or not callable(getattr(make, "fetch", None)):
        raise InputError(f"the source {unpinned(name)} must be a class with fetch(symbols, start, end, bar)")
    try:
        source = make()
    except Exception as error:
        raise InputError(f"the source {unpinned(name)} could not be created: {error_text(error)}") from error
    from finrl_pod.data.sources.own import OwnSource

    return OwnSource(name, source)
