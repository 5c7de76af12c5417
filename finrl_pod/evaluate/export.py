"""Export to other programs: backtest results as Parquet and CSV, with CSV cells that no spreadsheet executes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from finrl_pod.files import write_bytes, write_text

if TYPE_CHECKING:  # the dashboard uses this module without loading torch
    from finrl_pod.types import BacktestResult

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet may read as the start of a formula (OWASP)

Column = Sequence[Any] | np.ndarray[Any, Any]


def write_results(out: Path, results: Mapping[str, BacktestResult]) -> None:
    """Write bars.parquet, bars.csv, weights.parquet and weights.csv into a folder. Raises RunError."""
    write_table(out / "bars", bars_table(results))
    write_table(out / "weights", weights_table(results))


def bars_table(results: Mapping[str, BacktestResult]) -> dict[str, Column]:
    """Columns of a table with one row per strategy and bar.

    strategy, time, equity (currency), turnover (value traded, both sides, over equity, per bar), costs (currency),
    and one column "cost: NAME" for every kind of cost, 0.0 where a strategy has none of it.
    """
    columns: dict[str, list[Any]] = {"strategy": [], "time": [], "equity": [], "turnover": [], "costs": []}
    cost_kinds = list(dict.fromkeys(kind for result in results.values() for kind in result.cost_parts))
    columns |= {f"cost: {kind}": [] for kind in cost_kinds}
    for name, result in results.items():
        columns["strategy"].append(np.full(len(result.times), name, dtype=object))
        columns["time"].append(result.times)
        for field in ("equity", "turnover", "costs"):
            columns[field].append(getattr(result, field))
        for kind in cost_kinds:
            columns[f"cost: {kind}"].append(result.cost_parts.get(kind, np.zeros(len(result.times))))
    return {name: np.concatenate(values) for name, values in columns.items()}


def weights_table(results: Mapping[str, BacktestResult]) -> dict[str, Column]:
    """Columns strategy, time, symbol, weight: one row per holding after the fills of a bar, zero weights left out."""
    columns: dict[str, list[Any]] = {"strategy": [], "time": [], "symbol": [], "weight": []}
    for name, result in results.items():
        bars, assets = np.nonzero(result.weights)
        columns["strategy"].append(np.full(len(bars), name, dtype=object))
        columns["time"].append(result.times[bars])
        columns["symbol"].append(np.array(result.symbols, dtype=object)[assets])
        columns["weight"].append(result.weights[bars, assets])
    return {name: np.concatenate(values) for name, values in columns.items()}


def write_table(stem: Path, columns: Mapping[str, Column]) -> tuple[Path, Path]:
    """Write columns of equal length as `stem`.parquet and `stem`.csv and return both paths. Raises RunError.

    In the CSV, times are ISO text, and text cells and headings that begin like a formula get a leading apostrophe.
    Parquet holds the values unchanged.
    """
    sink = io.BytesIO()
    pd.DataFrame(dict(columns)).to_parquet(sink, index=False)
    return (
        write_bytes(stem.with_name(f"{stem.name}.parquet"), sink.getvalue()),
        write_text(stem.with_name(f"{stem.name}.csv"), csv_text(columns)),
    )


def csv_text(columns: Mapping[str, Column]) -> str:
    """The table as CSV (RFC 4180): quotes where needed, NaN as an empty cell, floats in full precision."""
    frame = pd.DataFrame(dict(columns))
    for name, column in frame.items():
        if column.dtype.kind == "M":
            is_daily = bool((column == column.dt.normalize()).all())
            frame[name] = column.dt.strftime("%Y-%m-%d" if is_daily else "%Y-%m-%dT%H:%M:%S")
        elif not pd.api.types.is_numeric_dtype(column.dtype):
            frame[name] = [None if pd.isna(value) else escape_formula(str(value)) for value in column]
    return str(frame.rename(columns=escape_formula).to_csv(index=False, lineterminator="\r\n"))


def escape_formula(text: str) -> str:
    """Prefix text that begins like a formula with an apostrophe, so that no spreadsheet executes it."""
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text
