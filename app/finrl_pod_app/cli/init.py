"""`finrl-pod init`: a commented config that runs as it is."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="Where to write; never overwrites a file.")],
    preset: Annotated[str, typer.Option(help="laptop, gpu or quick.")] = "laptop",
) -> None:
    """Write a commented config that runs as it is."""
    from finrl_pod_app.presets import write_preset

    write_preset(preset, file)
    typer.echo(f"wrote {file}: run it with finrl-pod tournament {shlex.quote(str(file))}")
