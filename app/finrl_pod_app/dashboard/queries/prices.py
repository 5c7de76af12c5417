"""Stored prices for the data page: catalogue, gaps, correlations, and the import of files in the background."""

from __future__ import annotations

import dataclasses
import re
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path

import numpy as np
import pandas as pd

from finrl_pod.data.flaws import check
from finrl_pod.data.sources.bounded import read_bounded
from finrl_pod.data.sources.read_options import ReadOptions
from finrl_pod.data.sources.tables import SUFFIXES
from finrl_pod.data.store import Manifest, Store
from finrl_pod.errors import DataError
from finrl_pod.types import Panel

PREVIEW_ROWS = 200
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._ -]")


def catalogue_table(panels: Sequence[Manifest]) -> pd.DataFrame:
    """One row per panel: name, source, bar, tickers, bars, start, end, columns, adjusted, number of flaws, fault."""
    rows = [
        {
            "name": manifest.name,
            "source": "built-in" if manifest.builtin else manifest.source,
            "bar": manifest.bar,
            "tickers": len(manifest.symbols),
            "bars": manifest.bars,
            "start": manifest.start[:10],
            "end": manifest.end[:10],
            "columns": ", ".join(manifest.columns),
            "adjusted": "yes" if manifest.adjusted else "no",
            "flaws": len(manifest.flaws),
            "fault": manifest.fault,
        }
        for manifest in panels
    ]
    return pd.DataFrame(rows)


def missing_bars(panel: Panel) -> pd.DataFrame:
    """One row per ticker: symbol, first and last (days with a bar), bars, missing (between them), share (missing).

    A ticker without bars has NaT as its days and none missing.
    """
    rows = []
    for n, symbol in enumerate(panel.symbols):
        alive = np.flatnonzero(panel.tradable[:, n])
        if not alive.size:
            rows.append((symbol, pd.NaT, pd.NaT, 0, 0, 0.0))
            continue
        life = int(alive[-1] - alive[0]) + 1
        gaps = life - len(alive)
        rows.append((symbol, panel.times[alive[0]], panel.times[alive[-1]], len(alive), gaps, gaps / life))
    return pd.DataFrame(rows, columns=["symbol", "first", "last", "bars", "missing", "share"])


def correlations(panel: Panel, symbols: Sequence[str]) -> pd.DataFrame:
    """Correlation matrix of log returns per bar, over the bars that each pair shares.

    NaN for pairs with fewer than 3 shared returns or a constant price.
    """
    columns = [panel.symbols.index(symbol) for symbol in symbols]
    closes = np.where(panel.tradable[:, columns], panel.close[:, columns], np.nan)
    return pd.DataFrame(np.log(closes), columns=list(symbols)).diff().corr(min_periods=3)


def growth(panel: Panel, symbols: Sequence[str]) -> pd.DataFrame:
    """Growth of 1: closes over the first close of each symbol, one column per symbol, NaN without a bar."""
    columns = [panel.symbols.index(symbol) for symbol in symbols]
    close = pd.DataFrame(panel.close[:, columns], index=panel.times, columns=list(symbols))
    return close / close.bfill().iloc[0]


def issues_table(panel: Panel) -> pd.DataFrame:
    """One row per issue found by the data checks, errors first: kind, symbol, day, message."""
    rows = []
    for flaw in check(panel):
        day = "" if flaw.time is None else str(flaw.time.astype("datetime64[D]"))
        rows.append((flaw.kind, flaw.symbol or "", day, flaw.message))
    return pd.DataFrame(rows, columns=["kind", "symbol", "day", "message"])


def preview(panel: Panel, rows: int = PREVIEW_ROWS) -> pd.DataFrame:
    """The last closes, latest first: time, then a column per ticker."""
    closes = pd.DataFrame(panel.close[-rows:], columns=list(panel.symbols))
    closes.insert(0, "time", panel.times[-rows:])
    return closes.iloc[::-1]


def read_upload(
    name: str, content: bytes, options: ReadOptions | None = None, cancelled: Callable[[], bool] = lambda: False
) -> Panel:
    """Read and check an uploaded file in a bounded child process.

    name: reported by the browser and not trusted; the file has its safe form, in which some layouts write the ticker.
    cancelled: passed to `read_bounded`. Raises DataError naming the file and the line of the first error.
    """
    file_name = safe_file_name(name)
    if not file_name.lower().endswith(SUFFIXES):
        raise DataError(f"{file_name} must end in {', '.join(SUFFIXES)}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file_name
        path.write_bytes(content)
        try:
            return read_bounded(path, cancelled=cancelled, **vars(options or ReadOptions()))
        except DataError as error:  # names the temporary folder
            raise DataError(str(error).replace(str(path), file_name)) from None


def store_upload(panel: Panel, name: str, allow_gaps: bool) -> Manifest:
    """Store a checked panel under a new name. Raises DataError for an invalid name or one that is taken."""
    store = Store()
    store.check_name(name)
    if any(manifest.name == name for manifest in store.list()):
        raise DataError(f"panel {name!r} already exists: choose another name, or replace it from a terminal")
    query = {"file": panel.source.removeprefix("file "), "bar": panel.bar, "allow_gaps": allow_gaps}
    return store.save(dataclasses.replace(panel, name=name), query)


def safe_file_name(name: str) -> str:
    """A file name from a browser without folders and unusual characters, at most 80 characters long."""
    return _UNSAFE_CHARACTERS.sub("_", name.replace("\\", "/").rsplit("/", 1)[-1])[-80:] or "file"


class ImportJob:
    """Reads an uploaded file in a bounded child process, started when it is created.

    key: identifies file and options. name: file name reported by the browser.
    """

    def __init__(self, key: tuple[str, ReadOptions], name: str, content: bytes, options: ReadOptions) -> None:
        self.key = key
        self.name = name
        self._started = time.monotonic()
        self._cancelled = threading.Event()
        self._future: Future[Panel] = Future()
        threading.Thread(target=self._read, args=(content, options), daemon=True).start()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def wait(self, seconds: float) -> bool:
        """Wait up to some seconds; returns whether the file is read, refused or cancelled."""
        return bool(wait([self._future], seconds).done)

    def result(self) -> Panel:
        """The panel, without waiting longer than `wait` did. Raises DataError for a file that cannot be read."""
        return self._future.result(0.0)

    def cancel(self) -> None:
        """Kill the child process; `result` then raises DataError."""
        self._cancelled.set()

    def _read(self, content: bytes, options: ReadOptions) -> None:
        try:
            self._future.set_result(read_upload(self.name, content, options, self._cancelled.is_set))
        except DataError as error:
            self._future.set_exception(error)
        except Exception as error:  # noqa: BLE001 - the thread's errors belong to whoever asks for the result
            self._future.set_exception(DataError(f"the file cannot be read ({type(error).__name__})"))
