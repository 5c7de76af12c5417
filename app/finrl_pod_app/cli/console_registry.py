"""Terminal output of `finrl-pod registry`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from finrl_pod_app.cli.console import make_console
from finrl_pod_app.cli.console_evaluation import plain_table

SHORT = 12  # shown characters of an address


def show_registry(document: Mapping[str, Any]) -> None:
    """Print one line per champion and per strategy."""
    console = make_console()
    if not document["champions"]:
        console.print(f"No champions in {document['registry']} yet.", markup=False, soft_wrap=True)
        return
    table = plain_table(f"Champions in {document['registry']}")
    for name in ("address", "run", "algorithms", "agents", "data", "promoted", "stored", "traded by"):
        table.add_column(name, justify="right" if name == "agents" else "left", no_wrap=name != "run")
    for row in document["champions"]:
        table.add_row(
            row["address"][:SHORT],
            row["run"],
            ", ".join(row["algorithms"]),
            str(row["agents"]),
            row["data"],
            "yes" if row["promoted"] else "no",
            (row["stored"] or "")[:10],
            ", ".join(row["strategies"]),
        )
    console.print(table)
    for row in document["strategies"]:
        before = f", before it {row['previous'][:SHORT]}" if row["previous"] else ""
        console.print(f"{row['name']} trades {row['champion'][:SHORT]} since {row['since']}{before}", markup=False)


def show_details(document: Mapping[str, Any]) -> None:
    """Print a champion, an agent or the changes of a strategy."""
    console = make_console()
    if "changes" in document:
        table = plain_table(f"Changes of strategy {document['strategy']}")
        for name in ("number", "at", "change", "champion", "by"):
            table.add_column(name, no_wrap=True)
        for row in document["changes"]:
            action = row["action"].replace("_", " ")
            table.add_row(str(row["number"]), row["at"], action, row["champions"][-1][:SHORT], row["by"])
        console.print(table)
        return
    for name, value in document.items():
        if name in ("files", "agents", "handovers", "format"):
            continue
        text = value if isinstance(value, str) else json.dumps(value)
        console.print(f"{name.replace('_', ' ')}: {text}", markup=False, soft_wrap=True)
    if "agents" in document:
        table = plain_table("Agents, members first")
        for name in ("address", "id", "algorithm", "share", "score", "samples", "ancestors"):
            table.add_column(name, justify="right" if name in ("share", "score", "samples") else "left")
        for row in document["agents"]:
            score = "–" if row["score"] is None else f"{row['score']:.2f}"
            cells = (f"{row['share']:.2f}", score, f"{row['samples']:,}", " < ".join(row["ancestors"]))
            table.add_row(row["address"][:SHORT], row["id"], row["algorithm"], *cells)
        console.print(table)
    for row in document.get("handovers", ()):
        action = row["action"].replace("_", " ")
        console.print(f"{row['strategy']}: {action} at {row['at']} by {row['by']}", markup=False, soft_wrap=True)
