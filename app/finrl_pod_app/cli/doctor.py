"""`finrl-pod doctor`: what this machine has, and the mend for what would not work."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")
    ] = False,
) -> None:
    """Show what works on this machine. Names the mend for every part that would not."""
    import dataclasses

    from finrl_pod_app.cli.run_commands import print_json
    from finrl_pod_app.doctor import examine

    findings = examine()
    works = all(finding.status != "broken" for finding in findings)
    if as_json:
        print_json({"works": works, "findings": [dataclasses.asdict(finding) for finding in findings]})
    else:
        from finrl_pod_app.console import show_findings

        show_findings(findings)
    if not works:
        raise typer.Exit(1)
