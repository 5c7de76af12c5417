"""Pooled rows and tables of the study of agents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.agents import statistics
from benchmarks.agents.cells import FOLDS, returns_file

Row = dict[str, Any]
GROUPS = ("folds", "sub-universes")
POOLED = "pooled_sharpe_difference"
STRESS = "stress_difference"
HELD = ("active_share", "turnover", "drawdown", "base_drawdown", "base_sharpe")
POOLED_COLUMNS = [
    *("cells", "condition", "agent", "value", "low", "high", "information_ratio.value", "information_ratio.low"),
    *("information_ratio.high", "alpha.value", "tracking_error.value", "beta.value", "active_share", "turnover"),
    *("seeds", "number"),
]
WORLD_COLUMNS = ["world", "closed_form", "revealed", "rl", "members", "seeds"]
BRIEF_COLUMNS = [
    *("name", "value", "low", "high", "world", "promoted", "worlds", "percentile_95", "market", "fold", "rate", "seeds")
]
BRIEF_ROWS = ("placebo", "rl_no_edge", "null_world_trained", "no_edge_difference", "planted_capture", STRESS)


def summary(rows: Sequence[Row], previous_rows: Sequence[Row]) -> list[Row]:
    """All rows with pooled ones. previous_rows: last summary; a pooled row stays if returns of its cells are gone."""
    pooled = {_identity(row): row for row in previous_rows if row["name"] == POOLED}
    pooled_rows = [*(pooled | {_identity(row): row for row in _pool_cells(rows)}).values()]
    return [*rows, *pooled_rows, *_placebo(rows, pooled_rows), *_beyond_linear(rows), *_no_edge(rows)]


def _identity(row: Row) -> tuple[str, ...]:
    return tuple(row["config"][key] for key in ("agent", "cells", "condition"))


def _pool_cells(rows: Sequence[Row]) -> Iterator[Row]:
    """Rows of each agent, group of cells and condition: measures averaged over seeds, then over cells.

    Over the cells that the closed form has; an agent that lacks one of them keeps its last row.
    """
    groups: dict[tuple[str, str, str], dict[str, list[Row]]] = {}
    for row in rows:
        if row["name"] == "sharpe_difference":
            config = row["config"]
            group = GROUPS[config["universe"] is not None]
            cell = f"{config['market']}-{config['universe']}/{config['fold']}"
            groups.setdefault((config["agent"], group, config["condition"]), {}).setdefault(cell, []).append(row)
    for (agent, group, condition), cell_rows in groups.items():
        required = groups.get(("closed form", group, condition), {}).keys()
        if not required or not required <= cell_rows.keys():
            continue
        cells = {cell: cell_rows[cell] for cell in sorted(required)}
        files = {cell: [returns_file(row["config"]) for row in selection] for cell, selection in cells.items()}
        if not all(file.exists() for selection in files.values() for file in selection):
            continue
        returns = {cell: [_load(file) for file in selection] for cell, selection in files.items()}
        result = statistics.pool_measures(returns)
        config = {"agent": agent, "cells": group, "condition": condition, "number": len(cells)}
        config["seeds"] = max(map(len, cells.values()))
        config |= {name: dict(zip(("value", "low", "high"), value, strict=True)) for name, value in result.items()}
        config |= {
            name: float(np.mean([np.mean([row["config"][name] for row in selection]) for selection in cells.values()]))
            for name in HELD
        }
        config["by_cell"] = {
            cell: [float(np.mean(values)), min(values), max(values)]
            for cell, values in ((cell, [row["value"] for row in selection]) for cell, selection in cells.items())
        }
        config["protocol"] = next(iter(cells.values()))[0]["config"]["protocol"]
        yield statistics.record(POOLED, *result["sharpe_difference"], config)


def _load(file: Any) -> tuple[Any, Any]:
    with np.load(file) as arrays:
        return arrays["own"], arrays["base"]


def _placebo(rows: Sequence[Row], pooled_rows: Sequence[Row]) -> Iterator[Row]:
    """The pooled difference of the closed form on the folds, against sets of random features."""
    sets = [row["config"] for row in rows if row["name"] == "placebo_sets"]
    closed_form_rows = [row for row in pooled_rows if _identity(row) == ("closed form", "folds", "as they are")]
    if len(sets) < len([*FOLDS["sample"], *FOLDS["us74"]]) or not closed_form_rows:
        return
    means = {name: np.mean([x[name] for x in sets], axis=0) for name in ("sharpe_difference", "information_ratio")}
    percentile = {name: float(np.quantile(values, 0.95)) for name, values in means.items()}
    config = {
        "placebos": len(means["sharpe_difference"]),
        "percentile_95": percentile["sharpe_difference"],
        "mean": float(means["sharpe_difference"].mean()),
        "information_ratio": closed_form_rows[0]["config"]["information_ratio"]["value"],
        "information_ratio_percentile_95": percentile["information_ratio"],
        "agent": "closed form",
        "protocol": sets[0]["protocol"],
    }
    row = closed_form_rows[0]
    yield statistics.record("placebo", row["value"], row["low"], row["high"], config)


def _beyond_linear(rows: Sequence[Row]) -> Iterator[Row]:
    """Values of each world averaged over seeds, as shares of what is attainable."""
    worlds: dict[str, dict[int, Row]] = {}
    for row in rows:
        if row["name"] == "rl_world":
            worlds.setdefault(row["config"]["world"], {})[row["config"]["seed"]] = row["config"]
    for world, by_seed in worlds.items():
        selection = [by_seed[seed] for seed in sorted(by_seed)]
        attainable = float(np.mean([x["attainable"] for x in selection]))
        share: dict[str, float] = {
            name: float(np.mean([np.mean(x[name]) for x in selection])) / attainable
            for name in ("closed_form", "rl", "members", "revealed", "best_linear")
            if name in selection[0]
        }
        shares = [x["rl"] / x["attainable"] for x in selection]
        config: dict[str, Any] = {"world": world, "seeds": len(selection), "attainable": attainable, **share}
        config["protocol"] = selection[0]["protocol"]
        yield statistics.record("rl_beyond_linear", share["rl"], min(shares), max(shares), config)


def _no_edge(rows: Sequence[Row]) -> Iterator[Row]:
    """Mean Sharpe difference of RL to its start in worlds without an edge."""
    selection = [row for row in rows if row["name"] == "rl_no_edge_world"]
    if selection:
        values = [row["value"] for row in selection]
        config = {
            "worlds": len(values),
            "seeds": selection[0]["config"]["seeds"],
            "ensemble": float(np.mean([row["config"]["ensemble"] for row in selection])),
            "protocol": selection[0]["config"]["protocol"],
        }
        yield statistics.record("rl_no_edge", float(np.mean(values)), min(values), max(values), config)


def tables(rows: Sequence[Row]) -> str:
    """The pooled rows and the rows of simulated markets, as tables of text."""
    frame = pd.json_normalize([{**row["config"], **row} for row in rows])
    selections = [
        (frame["name"] == POOLED, POOLED_COLUMNS),
        (frame["name"] == "rl_beyond_linear", WORLD_COLUMNS),
        (frame["name"].isin(BRIEF_ROWS), BRIEF_COLUMNS),
    ]
    return "\n\n".join(
        frame[selection].reindex(columns=columns).to_string(index=False, na_rep="", float_format="{:.4f}".format)
        for selection, columns in selections
    )
