"""Tables for other programs: Parquet, and CSV in which no spreadsheet finds a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from finrl_pod.errors import EnvironmentLacks
from finrl_pod.files import write_bytes, write_text

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet may take for the start of a formula (OWASP)

Column = Sequence[Any] | np.ndarray[Any, Any]


def write_table(stem: Path, columns: Mapping[str, Column]) -> tuple[Path, Path]:
    """Write columns of equal length as `stem`.parquet and `stem`.csv and return both paths. Raises RunError.

    Times become ISO text in the CSV. Its text cells and headings that begin like a formula get a leading apostrophe;
    numbers stay numbers. Parquet holds everything as it is.
    """
    return (
        write_bytes(stem.with_name(f"{stem.name}.parquet"), parquet_bytes(columns)),
        write_text(stem.with_name(f"{stem.name}.csv"), csv_text(columns)),
    )


def parquet_bytes(columns: Mapping[str, Column]) -> bytes:
    """The table as a Parquet file. Raises EnvironmentLacks without pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise EnvironmentLacks("Parquet files need pyarrow, which is missing: install pyarrow") from None
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({name: pyarrow.array(values) for name, values in columns.items()}), sink)
    return sink.getvalue()


def csv_text(columns: Mapping[str, Column]) -> str:
    """The table as CSV (RFC 4180): quotes where needed, NaN as an empty cell, floats in full."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\r\n")
    writer.writerow([escape_formula(name) for name in columns])
    writer.writerows(zip(*(_cells(values) for values in columns.values()), strict=True))
    return sink.getvalue()


def escape_formula(text: str) -> str:
    """Text that no spreadsheet executes: an apostrophe stands before one that begins like a formula."""
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def _cells(values: Column) -> list[Any]:
    array = np.asarray(values)
    if array.dtype.kind == "M":
        days = array.astype("datetime64[D]")
        shown = days if bool((days == array).all()) else array.astype("datetime64[s]")
        return [str(time) for time in shown]
    if array.dtype.kind in "fiub":
        return ["" if value != value else repr(value) for value in array.tolist()]
    return [escape_formula(str(value)) if value is not None else "" for value in values]
