"""Price sources behind the `DataSource` protocol: the built-in sample, files, Yahoo Finance, Alpaca."""

from __future__ import annotations

from finrl_pod.errors import DataError
from finrl_pod.protocols import DataSource

SOURCES = ("sample", "yfinance", "alpaca")


def open_source(name: str) -> DataSource:
    """Open a source by name with its default settings. Raises DataError for an unknown name."""
    if name == "sample":
        from finrl_pod.data.sources.sample import SampleSource

        return SampleSource()
    if name == "yfinance":
        from finrl_pod.data.sources.yahoo import YahooSource

        return YahooSource()
    if name == "alpaca":
        from finrl_pod.data.sources.alpaca import AlpacaSource

        return AlpacaSource()
    raise DataError(f"source must be one of {', '.join(SOURCES)}, got {name!r}; files are read with `data import`")
