"""CSV and Parquet files and DataFrames, long or wide, one file or a folder with one file for each ticker.

Long: a column of times, one of tickers, closes and any of open, high, low, volume, spread (a fraction of the price),
sector (text) and adjusted closes. Wide: a time column, then one column of closes for each ticker. Two levels of names,
as yfinance writes them, are read too. `finrl_pod.data.sources.layouts` has the names of columns. Times without a zone
are UTC.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finrl_pod.data.panel import check_repeats, without_repeats
from finrl_pod.data.side_tables import with_actions
from finrl_pod.data.sources.file_rows import FileRows, rows_of_cells
from finrl_pod.data.sources.frames import panel_of_rows
from finrl_pod.data.sources.read_options import ReadOptions
from finrl_pod.data.sources.tables import (
    SUFFIXES,
    is_prose,
    is_table,
    name_list,
    read_table,
    table_of_frame,
    without_suffix,
)
from finrl_pod.errors import DataError
from finrl_pod.prices import Panel, taken_as


def read_file(path: Path, **options: Any) -> Panel:
    """Read a CSV or Parquet file, or a folder with one for each ticker. options: the fields of `ReadOptions`.

    Files of a folder are named by their tickers. Daily bars are dated by the calendar day of their time; intraday times
    are converted to UTC. A file from the newest to the oldest bar is reversed. Raises DataError naming the invalid line
    (or row).
    """
    read_options = ReadOptions.from_keywords(options)
    name = without_suffix(path.name)
    if not path.is_dir():
        cells, origin = read_table(path, read_options.separator)
        table = rows_of_cells(cells, origin, read_options, stem=name)
        return _panel([table.from_the_oldest()], read_options, f"file {path.name}", name)
    files, other_files = _files_of(path, read_options)
    file_options = dataclasses.replace(read_options, symbol=None)
    tables = []
    for file in files:
        cells, origin = read_table(file, read_options.separator)
        stem = without_suffix(file.name)
        tables.append(rows_of_cells(cells, origin, file_options, stem=stem, ticker=stem).from_the_oldest())
    _check_tables(files, tables)
    notes = [f"Files without prices were left out: {name_list(other_files)}."] if other_files else []
    return _panel(tables, read_options, f"folder {path.name}", name, notes)


def _files_of(folder: Path, options: ReadOptions) -> tuple[list[Path], list[str]]:
    """(tables in a folder, names of its other files). Hidden files are neither. Raises DataError without a table."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    tables = [file for file in files if is_table(file.name)]
    if not tables:
        raise DataError(f"the folder {folder} has no file that ends in {', '.join(SUFFIXES)}")
    prose = [file for file in tables if is_prose(file, options.separator, options.names_by_column)]
    if len(prose) == len(tables):
        raise DataError(
            f"no file in {folder} begins with a header that has a column of times: "
            f"{name_list(file.name for file in prose)}"
        )
    tables = [file for file in tables if file not in prose]
    return tables, [file.name for file in files if file not in tables]


def _check_tables(files: Sequence[Path], tables: Sequence[FileRows]) -> None:
    """Raises DataError for two files named by the same ticker, and if some prices are adjusted and others are not.

    Files that are named otherwise than their tickers, such as by year, may share them.
    """
    file_by_ticker: dict[str, Path] = {}
    for file, table in zip(files, tables, strict=True):
        if table.adjusted != tables[0].adjusted:
            raise DataError(
                f"{files[0].name} and {file.name} are not adjusted alike for splits and dividends: import them apart, "
                "or pass --adjusted or --unadjusted (adjusted= in Python)"
            )
        ticker = table.symbol_of_name
        if ticker is not None and ticker in file_by_ticker:
            raise DataError(
                f"{file_by_ticker[ticker].name} and {file.name} are both of the ticker {ticker}; remove or rename one"
            )
        if ticker is not None:
            file_by_ticker[ticker] = file


def read_frame(frame: pd.DataFrame, *, name: str = "", source: str = "DataFrame", **options: Any) -> Panel:
    """Read a DataFrame as the file that it would be saved as; its rows may come in any order.

    name, source: name and source of the panel. options: fields of `ReadOptions`. Raises DataError naming the invalid
    row.
    """
    read_options = ReadOptions.from_keywords(options)
    cells, origin = table_of_frame(frame)
    return _panel([rows_of_cells(cells, origin, read_options).sorted_by_time()], read_options, source, name)


def _panel(
    tables: Sequence[FileRows], read_options: ReadOptions, source: str, name: str, notes: Sequence[str] = ()
) -> Panel:
    """The panel of all files. notes: what was left out before they were read."""
    rows = pd.concat([table.rows for table in tables], ignore_index=True) if len(tables) > 1 else tables[0].rows
    starts = np.cumsum([0, *(len(table.rows) for table in tables)])

    def location(row: int) -> str:
        number = int(np.searchsorted(starts, row, "right")) - 1
        return tables[number].where(row - int(starts[number]))

    is_adjusted = tables[0].adjusted
    notes = [taken_as(is_adjusted), *notes, *(note for table in tables for note in table.notes)]
    left_out: list[str] = []
    if "volume" in rows and rows["volume"].fillna(0.0).eq(0.0).all():
        left_out = ["volume", "split_close"]
        rows = rows.drop(columns=left_out, errors="ignore")
        notes.append("Volumes were 0 or missing on every row and were left out.")
    panel = panel_of_rows(
        rows,
        bar=read_options.bar,
        source=source,
        name=name,
        adjusted=is_adjusted,
        flaws=tuple(dict.fromkeys(notes)),
        allow_gaps=read_options.allow_gaps,
        location=location,
    )
    if actions := [action for table in tables for action in table.actions]:
        panel = with_actions(panel, actions, allow_none=True)
    read_as = {
        column: None if meaning in left_out else meaning
        for table in tables
        for column, meaning in table.read_as.items()
    }
    panel = dataclasses.replace(panel, read_as=read_as)
    if read_options.drop_repeated_bars:
        return without_repeats(panel)
    if not read_options.allow_repeated_bars:
        check_repeats(panel)
    return panel
