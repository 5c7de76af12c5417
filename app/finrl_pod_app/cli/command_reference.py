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
    return "\n".join([HEADER, *_sections(typer.main.get_command(app), "finrl-pod")]) + "\n"


def _sections(command: Any, name: str) -> Iterator[str]:
    for child in getattr(command, "commands", {}).values():
        if child.hidden:
            continue
        path = f"{name} {child.name}"
        if hasattr(child, "commands"):
            yield from _sections(child, path)
            continue
        yield f"## {path.removeprefix('finrl-pod ')}\n"
        yield f"{textwrap.fill(_sentence(child.help), 120)}\n"
        rows = [_row(parameter) for parameter in child.params if not getattr(parameter, "hidden", False)]
        if rows:
            yield "| | default | |\n|---|---|---|\n" + "\n".join(rows) + "\n"
        if child.epilog:
            yield f"{child.epilog.replace('Example: ', 'Example: `', 1)}`\n"


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    else:
        names = ", ".join(f"`{name}`" for name in parameter.opts)
    default = parameter.default
    default_text = f"`{default}`" if isinstance(default, str | int | float) and not isinstance(default, bool) else ""
    return f"| {names} | {default_text} | {_sentence(parameter.help)} |"


def _sentence(text: str | None) -> str:
    """Help text on one line; a bar would end a cell, and angle brackets are no HTML."""
    return " ".join((text or "").split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.stdout.write(reference())
