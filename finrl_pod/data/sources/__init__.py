"""Price sources behind the `DataSource` protocol: Yahoo Finance, Alpaca and custom ones."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from finrl_pod.errors import DataError, InputError
from finrl_pod.user_files import custom_object, error_text, unpinned

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
    from finrl_pod.data.sources.own import OwnSource

    return OwnSource(name, source)
