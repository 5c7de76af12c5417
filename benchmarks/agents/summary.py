"""Pooled rows and Markdown tables of the study of agents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.agents import cells as agent_cells
from benchmarks.agents import statistics

Row = dict[str, Any]
GROUPS = ("folds", "sub-universes")
COMPARED = ("former default", "closed form")
POOLED = "pooled_sharpe_difference"
HELD = ("active_share", "turnover", "drawdown", "base_drawdown", "base_sharpe")


def summary(rows: Sequence[Row], earlier: Sequence[Row]) -> list[Row]:
    """All rows with pooled ones. earlier: of the last summary, whose pooled rows are kept if there are no returns."""
    pooled = [*_pooled(rows)] or [row for row in earlier if row["name"] == POOLED]
    return [*rows, *pooled, *_placebo(rows, pooled), *_beyond_linear(rows), *_no_edge(rows)]


def _identity(row: Row) -> tuple[str, ...]:
    return tuple(row["config"][key] for key in ("agent", "cells", "condition"))


def _pooled(rows: Sequence[Row]) -> Iterator[Row]:
    """Rows of each agent, group of cells and condition: measures averaged over seeds, then over cells.

    Over the cells that all of `COMPARED` have; an agent that lacks one of them has no row.
    """
    groups: dict[tuple[str, str, str], dict[str, list[Row]]] = {}
    for row in rows:
        if row["name"] == "sharpe_difference":
            config = row["config"]
            group = GROUPS[config["universe"] is not None]
            cell = f"{config['market']}-{config['universe']}/{config['fold']}"
            groups.setdefault((config["agent"], group, config["condition"]), {}).setdefault(cell, []).append(row)
    for (agent, group, condition), measured in groups.items():
        compared = [groups.get((name, group, condition), {}) for name in COMPARED]
        common = set.intersection(*map(set, compared))
        if not common or not common <= measured.keys():
            continue
        cells = {cell: measured[cell] for cell in sorted(common)}
        files = {cell: [agent_cells.returns_file(row["config"]) for row in found] for cell, found in cells.items()}
        if not all(file.exists() for found in files.values() for file in found):
            continue
        loaded = {cell: [_load(file) for file in found] for cell, found in files.items()}
        result = statistics.pooled(loaded)
        config = {"agent": agent, "cells": group, "condition": condition, "number": len(cells)}
        config["seeds"] = max(map(len, cells.values()))
        config |= {name: dict(zip(("value", "low", "high"), value, strict=True)) for name, value in result.items()}
        config |= {
            name: float(np.mean([np.mean([row["config"][name] for row in found]) for found in cells.values()]))
            for name in HELD
        }
        config["by_cell"] = {
            cell: [float(np.mean([row["value"] for row in found])), *_range(found)] for cell, found in cells.items()
        }
        config["protocol"] = next(iter(cells.values()))[0]["config"]["protocol"]
        yield statistics.row(POOLED, *result["sharpe_difference"], config)


def _range(rows: Sequence[Row]) -> tuple[float, float]:
    values = [row["value"] for row in rows]
    return min(values), max(values)


def _load(file: Any) -> tuple[Any, Any]:
    with np.load(file) as kept:
        return kept["own"], kept["base"]


def _placebo(rows: Sequence[Row], pooled: Sequence[Row]) -> Iterator[Row]:
    """The pooled difference of the closed form on the folds, against that of sets of random features."""
    sets = [row["config"] for row in rows if row["name"] == "placebo_sets"]
    own = [row for row in pooled if _identity(row) == ("closed form", "folds", "as they are")]
    if len(sets) < len([*agent_cells.FOLDS["sample"], *agent_cells.FOLDS["us74"]]) or not own:
        return
    means = {name: np.mean([x[name] for x in sets], axis=0) for name in ("sharpe_difference", "information_ratio")}
    percentile = {name: float(np.quantile(values, 0.95)) for name, values in means.items()}
    config = {
        "placebos": len(means["sharpe_difference"]),
        "percentile_95": percentile["sharpe_difference"],
        "mean": float(means["sharpe_difference"].mean()),
        "information_ratio": own[0]["config"]["information_ratio"]["value"],
        "information_ratio_percentile_95": percentile["information_ratio"],
        "agent": "closed form",
        "protocol": sets[0]["protocol"],
    }
    yield statistics.row("placebo", own[0]["value"], own[0]["low"], own[0]["high"], config)


def _beyond_linear(rows: Sequence[Row]) -> Iterator[Row]:
    """Values of each world averaged over seeds, as shares of what is attainable."""
    worlds: dict[str, dict[int, Row]] = {}
    for row in rows:
        if row["name"] == "rl_world":
            worlds.setdefault(row["config"]["world"], {})[row["config"]["seed"]] = row["config"]
    for world, by_seed in worlds.items():
        found = [by_seed[seed] for seed in sorted(by_seed)]
        attainable = float(np.mean([x["attainable"] for x in found]))
        share: dict[str, float] = {
            name: float(np.mean([np.mean(x[name]) for x in found])) / attainable
            for name in ("closed_form", "rl", "members", "revealed", "best_linear")
            if name in found[0]
        }
        each = [x["rl"] / x["attainable"] for x in found]
        config: dict[str, Any] = {"world": world, "seeds": len(found), "attainable": attainable, **share}
        config["protocol"] = found[0]["protocol"]
        yield statistics.row("rl_beyond_linear", share["rl"], min(each), max(each), config)


def _no_edge(rows: Sequence[Row]) -> Iterator[Row]:
    """Mean Sharpe difference of RL to its start in worlds without an edge."""
    found = [row for row in rows if row["name"] == "rl_no_edge_world"]
    if found:
        values = [row["value"] for row in found]
        config = {
            "worlds": len(values),
            "seeds": found[0]["config"]["seeds"],
            "ensemble": float(np.mean([row["config"]["ensemble"] for row in found])),
            "protocol": found[0]["config"]["protocol"],
        }
        yield statistics.row("rl_no_edge", float(np.mean(values)), min(values), max(values), config)


# ---------------------------------------------------------------------- tables


def tables(rows: Sequence[Row]) -> str:
    """Markdown tables of docs/results.md."""
    pooled = [row for row in rows if row["name"] == POOLED]
    parts = []
    for group in GROUPS:
        found = [row for row in pooled if row["config"]["cells"] == group]
        normal = [row for row in found if row["config"]["condition"] == "as they are"]
        if normal:
            parts.append(_agents_table(normal))
        if normal and group == "folds":
            parts.append(_folds_table(normal))
        if others := [row for row in found if row["config"]["condition"] != "as they are"]:
            parts.append(_conditions_table(normal, others))
    if worlds := [row["config"] for row in rows if row["name"] == "rl_beyond_linear"]:
        parts.append(_worlds_table(worlds))
    for name in (
        "placebo",
        "rl_no_edge",
        "null_world_trained",
        "no_edge_difference",
        "planted_capture",
        "stress_difference",
    ):
        parts.append("\n".join(f"{name}: {_brief(row)}" for row in rows if row["name"] == name))
    return "\n\n".join(part for part in parts if part) + "\n"


def _brief(row: Row) -> str:
    keys = ("world", "promoted", "worlds", "percentile_95", "information_ratio", "market", "fold", "rate", "seeds")
    found = {key: row["config"][key] for key in keys if key in row["config"]}
    return f"{row['value']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f}) {found}"


def _agents_table(rows: Sequence[Row]) -> str:
    lines = [
        "| agent | information ratio (90%) | Sharpe difference (90%) | alpha | tracking error | beta | active share | "
        "turnover | seeds |",
        "|---" * 9 + "|",
    ]
    for row in rows:
        x = row["config"]
        ratio = x["information_ratio"]
        lines.append(
            f"| {x['agent']} | {ratio['value']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f}) | "
            f"{row['value']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f}) | {x['alpha']['value']:.2%} | "
            f"{x['tracking_error']['value']:.2%} | {x['beta']['value']:.3f} | {x['active_share']:.1%} | "
            f"{x['turnover']:.2f} | {x['seeds']} |"
        )
    return "\n".join(lines)


def _folds_table(rows: Sequence[Row]) -> str:
    names = [*rows[0]["config"]["by_cell"]]
    lines = ["| agent | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for row in rows:
        cells = row["config"]["by_cell"]
        shown = " | ".join(f"{cells[name][0]:+.3f}" if name in cells else "" for name in names)
        lines.append(f"| {row['config']['agent']} | {shown} |")
    return "\n".join(lines)


def _conditions_table(normal: Sequence[Row], others: Sequence[Row]) -> str:
    lines = ["| agent | as they are | doubled costs | one more bar of delay |", "|---|---|---|---|"]
    for row in normal:
        agent = row["config"]["agent"]
        found = {x["config"]["condition"]: x for x in others if x["config"]["agent"] == agent}
        if len(found) == 2:
            shown = [row, found["doubled costs"], found["one more bar of delay"]]
            cells = " | ".join(f"{x['value']:+.3f}, {x['config']['information_ratio']['value']:.2f}" for x in shown)
            lines.append(f"| {agent} | {cells} |")
    return "\n".join(lines)


def _worlds_table(worlds: Sequence[dict[str, Any]]) -> str:
    lines = ["| world | closed form | law as a feature | RL | its members alone | seeds |", "|---|---|---|---|---|---|"]
    for x in worlds:
        revealed = f"{x['revealed']:.2f}" if "revealed" in x else ""
        lines.append(
            f"| {x['world']} | {x['closed_form']:.2f} | {revealed} | {x['rl']:.2f} | "
            f"{x['members']:.2f} | {x['seeds']} |"
        )
    return "\n".join(lines)
