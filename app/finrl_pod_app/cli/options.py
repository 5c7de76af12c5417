"""Options that several commands share, and printing of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from finrl_pod.settings.run import describe_setting


class Device(StrEnum):
    """Device to train on."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def setting_option(path: str) -> Any:
    """Return a typer option that overrides a setting; its help and range are those of the setting's declaration."""
    declared = describe_setting(path)
    constraint = declared.constraint
    low, high = (constraint.low, constraint.high) if constraint is not None else (None, None)
    text = f"{declared.comment[0].upper()}{declared.comment[1:]}. Default: {path} of the config."
    return typer.Option(min=low, max=high, help=text)


Out = Annotated[Path | None, typer.Option(help="Output folder; default: a new folder runs/NAME-TIME.")]
Seed = Annotated[int | None, setting_option("seed")]
Json = Annotated[bool, typer.Option("--json", help="Print a single JSON object to standard output.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the interrupted run in --out.")]
OnDevice = Annotated[Device, typer.Option(help="Training device; auto uses CUDA if available.")]
ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Config file; `finrl-pod init` writes one.")]


def run_or_strategy(argument: Path) -> Path | str:
    """The folder of a run, or a strategy that was named without its option: file.py:Class or a baseline.

    Raises InputError for what is neither but resembles a baseline's name.
    """
    from difflib import get_close_matches

    from finrl_pod_strategies.baselines import BASELINES, SEEDED_BASELINES

    from finrl_pod.errors import InputError

    name, known = str(argument), (*BASELINES, *SEEDED_BASELINES)
    if argument.suffix.startswith(".py:"):
        return name
    if argument.exists() or name not in known:
        if not argument.exists() and (close := get_close_matches(name, known, n=1)):
            raise InputError(f"there is no run in {name!r}; did you mean the strategy {close[0]}?")
        return argument
    return name


def print_json(document: Mapping[str, Any]) -> None:
    """Print a JSON object with sorted keys to standard output; NaN and infinity become null."""
    from finrl_pod.files import to_plain

    typer.echo(json.dumps(to_plain(document), sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False))


def run_folder(out: Path | None, config: Path, *, resume: bool) -> Path:
    """Return the output folder: `out`, or a new runs/NAME-TIME. Raises RunError for --resume without --out."""
    from finrl_pod.errors import RunError

    if resume and out is None:
        raise RunError("--resume needs --out DIR, the folder of the run to resume")
    # Microseconds keep two runs started within one second apart.
    return out or Path("runs") / f"{config.stem}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
