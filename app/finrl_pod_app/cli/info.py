"""`finrl-pod init`, `algorithms` and `doctor`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="Where to write; never overwrites a file.")],
    preset: Annotated[str, typer.Option(help="laptop, gpu or quick.")] = "laptop",
) -> None:
    """Write a commented config that runs as it is."""
    from finrl_pod_app.services.presets import write_preset

    write_preset(preset, file)
    typer.echo(f"wrote {file}: run it with finrl-pod tournament {shlex.quote(str(file))}")


def algorithms(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")
    ] = False,
) -> None:
    """List the algorithms: what each is, the actions it drives, and the paper it follows."""
    import dataclasses

    from finrl_pod.settings.algorithm_registry import ALGORITHMS, EXTENSIONS
    from finrl_pod_app.cli.options import print_json

    if as_json:
        rows = []
        for facts in ALGORITHMS.values():
            row = {name: value for name, value in vars(facts).items() if name != "record"}
            defaults = facts.record(algorithm=facts.name)
            row["settings"] = {k: v for k, v in dataclasses.asdict(defaults).items() if k != "algorithm"}
            rows.append(row)
        print_json({"algorithms": rows, "add_ons": [dataclasses.asdict(part) for part in EXTENSIONS.values()]})
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, collapse_padding=True)
    for column in ("algorithm", "kind", "actions", "what it is", "source"):
        table.add_column(column, no_wrap=column in ("algorithm", "kind", "actions"))
    for facts in ALGORITHMS.values():
        table.add_row(facts.name, facts.kind, facts.actions, facts.summary, facts.source)
    for part in EXTENSIONS.values():
        table.add_row(part.name, "add-on", "continuous", f"{part.summary} ({', '.join(part.algorithms)})", part.source)
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(table)


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")
    ] = False,
) -> None:
    """Check the installation and suggest fixes."""
    import dataclasses

    from finrl_pod_app.cli.options import print_json
    from finrl_pod_app.services.doctor import examine

    findings = examine()
    works = all(finding.status != "broken" for finding in findings)
    if as_json:
        print_json({"works": works, "findings": [dataclasses.asdict(finding) for finding in findings]})
    else:
        from finrl_pod_app.cli.console import show_findings

        show_findings(findings)
    if not works:
        raise typer.Exit(1)
