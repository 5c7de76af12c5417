"""Tables and the picture of the study of agents, from agents.json and the returns in .agents/.

python benchmarks/agent_tables.py                                         # Markdown tables
python benchmarks/agent_tables.py --picture docs/images/active_returns.svg  # needs matplotlib
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import agent_cells
import numpy as np

SUMMARY = Path(__file__).parent / "agents.json"
Row = Mapping[str, Any]


CELLS = [(market, fold) for market, folds in agent_cells.FOLDS.items() for fold in folds]
FIRST_ABLATION = "no penalty"  # of `agent_cells.AGENTS`


def values_of(rows: Sequence[Row], agent: str, market: str, fold: str) -> dict[int, float]:
    """Difference of Sharpe ratios of an agent in a cell, by seed."""
    return {
        row["config"]["seed"]: row["value"]
        for row in rows
        if row["name"] == "sharpe_difference"
        and tuple(row["config"].get(key) for key in ("agent", "market", "fold")) == (agent, market, fold)
    }


def table_of_ablations(rows: Sequence[Row]) -> str:
    """Markdown: difference of Sharpe ratios of the default and its ablations in each fold, for seed 0."""
    names = list(agent_cells.AGENTS)
    lines = ["| agent | " + " | ".join(" ".join(cell) for cell in CELLS) + " | mean |", "|---" * (len(CELLS) + 2) + "|"]
    for agent in ("default", *names[names.index(FIRST_ABLATION) :]):
        values = [values_of(rows, agent, *cell).get(0) for cell in CELLS]
        if all(value is not None for value in values):
            numbers = [*values, float(np.mean(np.array(values, dtype=float)))]
            lines.append(f"| {agent} | " + " | ".join(f"{value:+.3f}" for value in numbers) + " |")
    return "\n".join(lines)


def table_of_agents(rows: Sequence[Row]) -> str:
    """Markdown: difference of Sharpe ratios of each agent in each fold, and pooled with its interval."""
    names = list(agent_cells.AGENTS)
    pooled = {row["config"]["agent"]: row for row in rows if row["name"] == "pooled_sharpe_difference"}
    lines = [
        "| agent | " + " | ".join(" ".join(cell) for cell in CELLS) + " | pooled (90% interval) | turnover |",
        "|---" * (len(CELLS) + 3) + "|",
    ]
    for agent in names[: names.index(FIRST_ABLATION)]:
        whole, by_cell = pooled[agent], [list(values_of(rows, agent, *cell).values()) for cell in CELLS]
        values = " | ".join(f"{np.mean(found):+.3f}" if found else "" for found in by_cell)
        turnover = [
            row["config"]["turnover"]
            for row in rows
            if row["name"] == "sharpe_difference" and row["config"]["agent"] == agent and "turnover" in row["config"]
        ]
        traded = f"{np.mean(turnover):.2f}" if turnover else ""
        interval = f"{whole['value']:+.3f} ({whole['low']:+.3f} to {whole['high']:+.3f})"
        lines.append(f"| {agent} | {values} | {interval} | {traded} |")
    return "\n".join(lines)


def plot(path: Path) -> None:
    """Plot cumulative active log returns of the default, a panel per fold and a line per seed."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "active returns"  # the same file from the same returns
    figure, panels = pyplot.subplots(1, len(CELLS), figsize=(15, 3.2), sharey=True)
    for panel, (market, fold) in zip(panels, CELLS, strict=True):
        for seed in agent_cells.SEEDS:
            with np.load(agent_cells.RETURNS / f"default-{market}-{fold}-{seed}.npz") as kept:
                active = np.log1p(kept["agent"]) - np.log1p(kept["base"])
            years = np.arange(1, len(active) + 1) / agent_cells.YEAR
            panel.plot(years, 100 * np.cumsum(active), label=f"seed {seed}", linewidth=1)
        panel.axhline(0, color="black", linewidth=0.8)
        panel.set(title=f"{market}, {fold}", xlabel="years")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("growth over the base, log points (%)")
    panels[0].legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, help="SVG; needs matplotlib")
    options = parser.parse_args()
    rows = json.loads(SUMMARY.read_text())["rows"]
    sys.stdout.write(f"{table_of_agents(rows)}\n\n{table_of_ablations(rows)}\n")
    if options.picture is not None:
        plot(options.picture)


if __name__ == "__main__":
    main()
