"""`finrl-pod algorithms`: what agents can learn by."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def algorithms(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")
    ] = False,
) -> None:
    """List the algorithms: what each is, the actions it drives, and the paper it follows."""
    import dataclasses

    from finrl_pod.catalogue import ADD_ONS, ALGORITHMS
    from finrl_pod_app.cli.run_commands import print_json

    if as_json:
        rows = []
        for facts in ALGORITHMS.values():
            row = {name: value for name, value in vars(facts).items() if name != "record"}
            defaults = facts.record(algorithm=facts.name)
            row["settings"] = {k: v for k, v in dataclasses.asdict(defaults).items() if k != "algorithm"}
            rows.append(row)
        print_json({"algorithms": rows, "add_ons": [dataclasses.asdict(part) for part in ADD_ONS.values()]})
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, collapse_padding=True)
    for column in ("algorithm", "kind", "actions", "what it is", "source"):
        table.add_column(column, no_wrap=column in ("algorithm", "kind", "actions"))
    for facts in ALGORITHMS.values():
        table.add_row(facts.name, facts.kind, facts.actions, facts.summary, facts.source)
    for part in ADD_ONS.values():
        table.add_row(part.name, "add-on", "continuous", f"{part.summary} ({', '.join(part.algorithms)})", part.source)
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(table)
