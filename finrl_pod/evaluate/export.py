"""Export to other programs: backtest results as Parquet and CSV, with CSV cells that no spreadsheet executes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from finrl_pod.files import write_bytes, write_text

if TYPE_CHECKING:  # the dashboard uses this module without loading torch
    from finrl_pod.types import BacktestResult

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet may read as the start of a formula (OWASP)


def write_results(out: Path, results: Mapping[str, BacktestResult]) -> None:
    """Write bars.parquet, bars.csv, weights.parquet and weights.csv into a folder. Raises RunError."""
    write_table(out / "bars", bars_table(results))
    write_table(out / "weights", weights_table(results))


def bars_table(results: Mapping[str, BacktestResult]) -> pd.DataFrame:
    """Table with one row per strategy and bar.

    strategy, time, equity (currency, flows included), turnover (value traded, both sides, over equity, per bar), costs
    (currency), flow (currency paid in, negative if taken out; only if there is one),
    and one column "cost: NAME" for every kind of cost, 0.0 where a strategy has none of it.
    """
    tables = []
    for name, result in results.items():
        columns = {"time": result.times, "equity": result.balance, "turnover": result.turnover, "costs": result.costs}
        if result.flows is not None:
            columns["flow"] = result.flows
        kinds = {f"cost: {kind}": values for kind, values in result.cost_parts.items()}
        tables.append(pd.DataFrame({"strategy": name, **columns, **kinds}))
    table = pd.concat(tables, ignore_index=True)
    return table.fillna({name: 0.0 for name in table.columns if name.startswith("cost: ")})


def weights_table(results: Mapping[str, BacktestResult]) -> pd.DataFrame:
    """Columns strategy, time, symbol, weight: one row per holding after the fills of a bar, zero weights left out."""
    tables = []
    for name, result in results.items():
        bars, assets = np.nonzero(result.weights)
        symbols = np.array(result.symbols, dtype=object)[assets]
        columns = {"time": result.times[bars], "symbol": symbols, "weight": result.weights[bars, assets]}
        tables.append(pd.DataFrame({"strategy": name, **columns}))
    return pd.concat(tables, ignore_index=True)


def write_table(stem: Path, table: pd.DataFrame) -> tuple[Path, Path]:
    """Write a table as `stem`.parquet and `stem`.csv and return both paths. Raises RunError.

    In the CSV, times are ISO text, and text cells and headings that begin like a formula get a leading apostrophe.
    Parquet holds the values unchanged.
    """
    sink = io.BytesIO()
    table.to_parquet(sink, index=False)
    return (
        write_bytes(stem.with_name(f"{stem.name}.parquet"), sink.getvalue()),
        write_text(stem.with_name(f"{stem.name}.csv"), csv_text(table)),
    )


def csv_text(table: pd.DataFrame) -> str:
    """The table as CSV (RFC 4180): quotes where needed, NaN as an empty cell, floats in full precision."""
    frame = table.rename(columns=escape_formula)
    for name, column in frame.items():
        if column.dtype.kind == "M":
            is_daily = bool((column == column.dt.normalize()).all())
            frame[name] = column.dt.strftime("%Y-%m-%d" if is_daily else "%Y-%m-%dT%H:%M:%S")
        elif not pd.api.types.is_numeric_dtype(column.dtype):
            frame[name] = [None if pd.isna(value) else escape_formula(str(value)) for value in column]
    return str(frame.to_csv(index=False, lineterminator="\r\n"))


def escape_formula(text: str) -> str:
    """Prefix text that begins like a formula with an apostrophe, so that no spreadsheet executes it."""
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text
