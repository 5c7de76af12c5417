"""Sources of the user's own as a `DataSource`: what their code raises or returns wrongly becomes one sentence."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pandas as pd

from finrl_pod.data.panel import between
from finrl_pod.data.sources.files import read_frame
from finrl_pod.errors import DataError, FetchError, FinrlPodError, InputError
from finrl_pod.prices import Panel
from finrl_pod.user_files import error_text, stdout_to_stderr, unpinned


class OwnSource:
    """The object of a class with fetch(symbols, start, end, bar), which returns a Panel or a DataFrame.

    name: the object's, if it has one, else that of its class.
    """

    def __init__(self, reference: str, made: Any) -> None:
        """reference: file.py:Class or package.module:Class, for messages."""
        self._made, self._described = made, f"the source {unpinned(reference)}"
        name = getattr(made, "name", None)
        self.name = name if isinstance(name, str) else type(made).__name__

    def fetch(self, symbols: tuple[str, ...], start: pd.Timestamp, end: pd.Timestamp, bar: str) -> Panel:
        """Bars with start <= time <= end; symbols may be missing.

        Raises InputError for a fetch with other arguments, FetchError if it fails, DataError for what is not prices.
        """
        given = (symbols, start, end, bar)
        try:
            inspect.signature(self._made.fetch).bind(*given)
        except TypeError as error:
            raise InputError(f"{self._described} must have fetch(symbols, start, end, bar): {error}") from None
        try:
            with stdout_to_stderr():
                fetched = self._made.fetch(*given)
        except FinrlPodError:
            raise
        except Exception as error:
            raise FetchError(f"{self._described} failed: {error_text(error)}") from error
        if isinstance(fetched, pd.DataFrame):
            fetched = self._panel(fetched, bar)
        if not isinstance(fetched, Panel):
            raise DataError(f"{self._described} must return a Panel or a DataFrame, got {type(fetched).__name__}")
        return between(dataclasses.replace(fetched, name=fetched.name or self.name), start, end)

    def _panel(self, frame: pd.DataFrame, bar: str) -> Panel:
        try:
            return read_frame(frame, source=self.name, bar=bar)
        except (DataError, TypeError, ValueError) as error:
            reason = str(error) if isinstance(error, DataError) else error_text(error)
            # `data fetch` has no such option: a source knows its gaps.
            reason = reason.replace(
                "pass --allow-gaps (allow_gaps=True in Python)", "return fp.load_prices(frame, allow_gaps=True)"
            )
            raise DataError(f"{self._described} returned a DataFrame that cannot be used: {reason}") from error
