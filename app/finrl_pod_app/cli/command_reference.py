"""Writes docs/reference/commands.md: python -m finrl_pod_app.cli.command_reference > docs/reference/commands.md."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import typer

from finrl_pod_app.cli.main import app

HEADER = """# Commands

Every command takes `--help`. Exit codes: 0 done; 1 negative result (`audit` failed, `promote` refused); 2 bad input
or environment, with one sentence on standard error; 130 interrupted.
"""


def reference() -> str:
    """The page: every command with its arguments and options, groups before their commands."""
    return "\n".join([HEADER, *_sections(typer.main.get_command(app), "")]) + "\n"


def _sections(group: Any, prefix: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _sections(command, f"{name} ")
            continue
        yield f"## {prefix}{name}\n"
        yield f"{textwrap.fill(_sentence(command.help), 120)}\n"
        rows = []
        for parameter in command.params:
            default = f"`{parameter.default}`" if type(parameter.default) in (str, int, float) else ""
            names = parameter.opts if parameter.param_type_name == "option" else [parameter.metavar]
            rows.append(f"| {', '.join(f'`{x}`' for x in names)} | {default} | {_sentence(parameter.help)} |")
        if rows:
            yield "| | default | |\n|---|---|---|\n" + "\n".join(rows) + "\n"
        if command.epilog:
            yield f"{command.epilog.replace('Example: ', 'Example: `', 1)}`\n"


def _sentence(text: str | None) -> str:
    """Help text on one line; a bar would end a cell, and angle brackets are no HTML."""
    return " ".join((text or "").split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.stdout.write(reference())
