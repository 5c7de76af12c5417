"""A backtest's bars as tables, for people who go on with them elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from finrl_pod.evaluate.export import write_table
from finrl_pod.types import BacktestResult


def write_results(out: Path, results: Mapping[str, BacktestResult]) -> None:
    """Write bars.parquet, bars.csv (a row for each strategy and bar) and weights.parquet, weights.csv (a row for each
    holding) into `out`. Raises RunError."""
    write_table(out / "bars", bars_of(results))
    write_table(out / "weights", weights_of(results))


def bars_of(results: Mapping[str, BacktestResult]) -> dict[str, Any]:
    """strategy, time, equity and costs in currency, turnover as a share of equity, and the costs' parts (0 where a
    strategy has none of a kind)."""
    columns: dict[str, list[Any]] = {"strategy": [], "time": [], "equity": [], "turnover": [], "costs": []}
    parts = list(dict.fromkeys(part for result in results.values() for part in result.cost_parts))
    columns |= {f"cost: {part}": [] for part in parts}
    for name, result in results.items():
        columns["strategy"].append(np.full(len(result.times), name, dtype=object))
        columns["time"].append(result.times)
        for field in ("equity", "turnover", "costs"):
            columns[field].append(getattr(result, field))
        for part in parts:
            columns[f"cost: {part}"].append(result.cost_parts.get(part, np.zeros(len(result.times))))
    return {name: np.concatenate(values) for name, values in columns.items()}


def weights_of(results: Mapping[str, BacktestResult]) -> dict[str, Any]:
    """strategy, time, symbol, weight: what was held after each bar's fills, holdings of nothing left out."""
    columns: dict[str, list[Any]] = {"strategy": [], "time": [], "symbol": [], "weight": []}
    for name, result in results.items():
        bars, assets = np.nonzero(result.weights)
        columns["strategy"].append(np.full(len(bars), name, dtype=object))
        columns["time"].append(result.times[bars])
        columns["symbol"].append(np.array(result.symbols, dtype=object)[assets])
        columns["weight"].append(result.weights[bars, assets])
    return {name: np.concatenate(values) for name, values in columns.items()}
