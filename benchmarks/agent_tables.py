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


def mean_of_seeds(rows: Sequence[Row], agent: str, market: str, fold: str, name: str = "sharpe_difference") -> float:
    """Mean value of a row over seeds; NaN without any."""
    found = [
        row["value"]
        for row in rows
        if row["name"] == name
        and (row["config"].get("agent"), row["config"].get("market"), row["config"].get("fold"))
        == (agent, market, fold)
    ]
    return float(np.mean(found)) if found else float("nan")


def table_of_agents(rows: Sequence[Row]) -> str:
    """Markdown: difference of Sharpe ratios of each agent in each fold, and pooled with its interval."""
    cells = [(market, fold) for market, folds in agent_cells.FOLDS.items() for fold in folds]
    pooled = {row["config"]["agent"]: row for row in rows if row["name"] == "pooled_sharpe_difference"}
    lines = [
        "| agent | "
        + " | ".join(f"{market} {fold}" for market, fold in cells)
        + " | pooled (90% interval) | turnover |",
        "|---" * (len(cells) + 3) + "|",
    ]
    for agent, whole in pooled.items():
        values = " | ".join(f"{mean_of_seeds(rows, agent, *cell):+.3f}" for cell in cells)
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
    cells = [(market, fold) for market, folds in agent_cells.FOLDS.items() for fold in folds]
    figure, panels = pyplot.subplots(1, len(cells), figsize=(15, 3.2), sharey=True)
    for panel, (market, fold) in zip(panels, cells, strict=True):
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
    sys.stdout.write(table_of_agents(json.loads(SUMMARY.read_text())["rows"]) + "\n")
    if options.picture is not None:
        plot(options.picture)


if __name__ == "__main__":
    main()
