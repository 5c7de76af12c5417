"""Stored prices as the data page shows them: the catalogue, gaps, jumps, correlations, and a file that is imported."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from finrl_pod.data.flaws import JUMP
from finrl_pod.data.manifest import Manifest
from finrl_pod.data.panel import check
from finrl_pod.data.sources.files import read_file
from finrl_pod.data.store import Store
from finrl_pod.errors import DataError
from finrl_pod.types import Panel

ENDINGS = (".csv", ".csv.gz", ".txt", ".parquet", ".pq")
PREVIEW = 200  # rows
_SIGNS = re.compile(r"[^A-Za-z0-9._ -]")


def catalogue_table(panels: Sequence[Manifest]) -> pd.DataFrame:
    """A row for each panel: name, source, bar, tickers, bars, start, end, columns, adjusted, number of flaws, fault."""
    rows = [
        {
            "name": one.name,
            "source": "built-in" if one.builtin else one.source,
            "bar": one.bar,
            "tickers": len(one.symbols),
            "bars": one.bars,
            "start": one.start[:10],
            "end": one.end[:10],
            "columns": ", ".join(one.columns),
            "adjusted": "yes" if one.adjusted else "no",
            "flaws": len(one.flaws),
            "fault": one.fault,
        }
        for one in panels
    ]
    return pd.DataFrame(rows)


def missing(panel: Panel) -> pd.DataFrame:
    """A row for each ticker: symbol, first and last day with a bar, bars, missing (inside its life) and share of them.

    A ticker without any bar has no days (NaT) and no missing ones.
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


def jumps(panel: Panel, least: float = JUMP) -> pd.DataFrame:
    """Moves from one known close to the next of at least `least`, the largest first: time, symbol, before, after,
    move (simple return), bars (between the two closes; 1 where none is missing)."""
    rows = []
    for n, symbol in enumerate(panel.symbols):
        known = np.flatnonzero(panel.tradable[:, n])
        close = panel.close[known, n]
        moves = close[1:] / close[:-1] - 1
        for place in np.flatnonzero(np.abs(moves) >= least):
            at, before = known[place + 1], known[place]
            rows.append((panel.times[at], symbol, close[place], close[place + 1], moves[place], int(at - before)))
    frame = pd.DataFrame(rows, columns=["time", "symbol", "before", "after", "move", "bars"])
    ordered: pd.DataFrame = frame.reindex(frame["move"].abs().sort_values(ascending=False).index).reset_index(drop=True)
    return ordered


def correlations(panel: Panel, symbols: Sequence[str]) -> pd.DataFrame:
    """Correlation of the log returns a bar of `symbols`, over the bars that each pair has; NaN where they share too few
    or one does not move."""
    columns = [panel.symbols.index(symbol) for symbol in symbols]
    close = np.where(panel.tradable[:, columns], panel.close[:, columns], np.nan)
    returns = pd.DataFrame(np.diff(np.log(close), axis=0), columns=list(symbols))
    return returns.corr(min_periods=3)


def growth(panel: Panel, symbols: Sequence[str]) -> pd.DataFrame:
    """Closes as a multiple of the first one of each: a column a symbol, indexed by time; NaN where there is no bar."""
    columns = [panel.symbols.index(symbol) for symbol in symbols]
    close = pd.DataFrame(panel.close[:, columns], index=panel.times, columns=list(symbols))
    return close / close.bfill().iloc[0]


def flaw_table(panel: Panel) -> pd.DataFrame:
    """What the checks find: kind, symbol, day, and the sentence. Hard faults first."""
    rows = [
        (
            flaw.kind,
            flaw.symbol or "",
            "" if flaw.time is None else str(flaw.time.astype("datetime64[D]")),
            flaw.message,
        )
        for flaw in check(panel)
    ]
    return pd.DataFrame(rows, columns=["kind", "symbol", "day", "message"])


def preview(panel: Panel, rows: int = PREVIEW) -> pd.DataFrame:
    """The last rows of the closes, the latest first: time, then a column for each ticker."""
    closes = pd.DataFrame(panel.close[-rows:], columns=list(panel.symbols))
    closes.insert(0, "time", panel.times[-rows:])
    return closes.iloc[::-1]


def read_upload(name: str, content: bytes, *, bar: str, adjusted: bool, allow_gaps: bool) -> Panel:
    """Check an uploaded file. `name` is the browser's word: it names the file in messages, and of it only the ending is
    used on disk. Raises DataError naming the line at fault."""
    ending = next((one for one in ENDINGS if name.lower().endswith(one)), None)
    if ending is None:
        raise DataError(f"{plain_name(name)} must end in {', '.join(ENDINGS)}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"upload{ending}"
        path.write_bytes(content)
        try:
            panel = read_file(path, bar=bar, adjusted=adjusted, allow_gaps=allow_gaps)
        except DataError as error:
            raise DataError(_renamed(str(error), path, name)) from None
    return dataclasses.replace(panel, source=f"file {plain_name(name)}")


def store_upload(panel: Panel, name: str, allow_gaps: bool) -> Manifest:
    """Store a checked panel under a name. Raises DataError for a name that cannot be used, or one that is taken: a page
    replaces nothing that is stored."""
    store = Store()
    store.check_name(name)
    if any(one.name == name for one in store.list()):
        raise DataError(f"there is a panel {name!r} already: choose another name, or replace it from a terminal")
    query = {"file": panel.source.removeprefix("file "), "bar": panel.bar, "allow_gaps": allow_gaps}
    return store.save(dataclasses.replace(panel, name=name), query)


def plain_name(name: str) -> str:
    """A file's name from a browser without folders and odd signs, at most 80 long."""
    return _SIGNS.sub("_", name.replace("\\", "/").rsplit("/", 1)[-1])[-80:] or "file"


def _renamed(message: str, path: Path, name: str) -> str:
    """A message about the temporary file, told of the one that was uploaded."""
    return message.replace(str(path), plain_name(name)).replace(path.name, plain_name(name))
