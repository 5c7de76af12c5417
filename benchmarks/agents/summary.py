"""Pooled rows and Markdown tables of the study of agents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.agents import statistics
from benchmarks.agents.cells import FOLDS, returns_file

Row = dict[str, Any]
GROUPS = ("folds", "sub-universes")
POOLED = "pooled_sharpe_difference"
STRESS = "stress_difference"
HELD = ("active_share", "turnover", "drawdown", "base_drawdown", "base_sharpe")
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
    pooled_rows = [row for row in rows if row["name"] == POOLED]
    sections = []
    for group in GROUPS:
        selection = [row for row in pooled_rows if row["config"]["cells"] == group]
        normal = [row for row in selection if row["config"]["condition"] == "as they are"]
        if normal:
            sections.append(_agents_table(normal))
        if normal and group == "folds":
            sections.append(_folds_table(normal))
        if condition_rows := [row for row in selection if row["config"]["condition"] != "as they are"]:
            sections.append(_conditions_table(normal, condition_rows))
    if worlds := [row["config"] for row in rows if row["name"] == "rl_beyond_linear"]:
        sections.append(_worlds_table(worlds))
    for name in BRIEF_ROWS:
        sections.append("\n".join(f"{name}: {_brief(row)}" for row in rows if row["name"] == name))
    return "\n\n".join(section for section in sections if section) + "\n"


def _brief(row: Row) -> str:
    keys = ("world", "promoted", "worlds", "percentile_95", "information_ratio", "market", "fold", "rate", "seeds")
    selection = {key: row["config"][key] for key in keys if key in row["config"]}
    return f"{row['value']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f}) {selection}"


def _table(header: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def _agents_table(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        x = row["config"]
        ratio = x["information_ratio"]
        lines.append(
            (
                *(x["agent"], f"{ratio['value']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"),
                f"{row['value']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})",
                *(f"{x['alpha']['value']:.2%}", f"{x['tracking_error']['value']:.2%}", f"{x['beta']['value']:.3f}"),
                *(f"{x['active_share']:.1%}", f"{x['turnover']:.2f}", x["seeds"], x["number"]),
            )
        )
    header = ("agent", "information ratio (90%)", "Sharpe difference (90%)", "alpha", "tracking error", "beta")
    return _table((*header, "active share", "turnover", "seeds", "cells"), lines)


def _folds_table(rows: Sequence[Row]) -> str:
    names = [*rows[0]["config"]["by_cell"]]
    cells = [(row["config"]["agent"], row["config"]["by_cell"]) for row in rows]
    lines = [(agent, *(f"{x[name][0]:+.3f}" if name in x else "" for name in names)) for agent, x in cells]
    return _table(("agent", *names), lines)


def _conditions_table(normal: Sequence[Row], condition_rows: Sequence[Row]) -> str:
    lines = []
    for row in normal:
        agent = row["config"]["agent"]
        changes = {x["config"]["condition"]: x for x in condition_rows if x["config"]["agent"] == agent}
        if len(changes) == 2:
            cells = [row, changes["doubled costs"], changes["one more bar of delay"]]
            texts = [f"{x['value']:+.3f}, {x['config']['information_ratio']['value']:.2f}" for x in cells]
            lines.append((agent, *texts))
    return _table(("agent", "as they are", "doubled costs", "one more bar of delay"), lines)


def _worlds_table(worlds: Sequence[dict[str, Any]]) -> str:
    names = ("closed_form", "revealed", "rl", "members")
    lines = [(x["world"], *(f"{x[n]:.2f}" if n in x else "" for n in names), x["seeds"]) for x in worlds]
    return _table(("world", "closed form", "law as a feature", "RL", "its members alone", "seeds"), lines)
