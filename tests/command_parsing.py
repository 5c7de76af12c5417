"""Parses commands of finrl-pod without running them."""

from __future__ import annotations

from typing import Any


def parse(command: Any, arguments: list[str], parent: Any = None) -> str:
    """Parse the arguments without running the command; return the name of the selected command.

    Raises typer.TyperException for invalid arguments.
    """
    context = command.make_context(command.name, arguments, parent=parent)
    rest = [*context._protected_args, *context.args]
    if not hasattr(command, "resolve_command") or not rest:
        return str(command.name)
    _, subcommand, remaining = command.resolve_command(context, rest)
    return parse(subcommand, remaining, context)
