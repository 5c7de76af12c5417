"""The commands that train: they read options, call `finrl_pod_app.services.training`, and show what it returns."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finrl_pod.settings.run import MOST_SEED

if TYPE_CHECKING:
    from finrl_pod.settings.run import RunConfig


class Device(StrEnum):
    """Where to train."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Bench(StrEnum):
    """What to measure."""

    analytic = "analytic"
    backtest = "backtest"
    env = "env"
    gate = "gate"
    learn = "learn"
    population = "population"
    ppo = "ppo"
    sac = "sac"
    pipeline = "pipeline"


Out = Annotated[Path | None, typer.Option(help="Folder of the run; runs/ and the time unless given.")]
Seed = Annotated[
    int | None, typer.Option(min=0, max=MOST_SEED, help="Seed of every random number; the config's unless given.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out that was stopped.")]
OnDevice = Annotated[Device, typer.Option(help="auto takes a CUDA device where there is one.")]
ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Settings; `finrl-pod init` writes them.")]


def demo(
    out: Out = None,
    seed: Seed = None,
    resume: Resume = False,
    quick: Annotated[bool, typer.Option("--quick", help="Every stage within a minute; learns little.")] = False,
    as_json: Json = False,
) -> None:
    """Train on the sample prices and backtest the champion. The whole line, in 1 to 3 minutes on two cores."""
    from finrl_pod_app.services.presets import preset

    folder = folder_of(out, Path("demo"), resume=resume)
    run_config(preset("quick" if quick else "laptop"), folder, seed, resume=resume, as_json=as_json)


def tournament(
    config: ConfigFile,
    out: Out = None,
    seed: Seed = None,
    resume: Resume = False,
    device: OnDevice = Device.auto,
    as_json: Json = False,
) -> None:
    """Train a population and report on its champion. It is picked on the validation years and tested on later ones."""
    from finrl_pod.settings.run import load

    settings = load(config)
    run_config(settings, folder_of(out, config, resume=resume), seed, resume=resume, device=device, as_json=as_json)


def bench(
    context: typer.Context,
    what: Annotated[
        Bench,
        typer.Argument(
            help="Speed: analytic, backtest, env, pipeline, population, ppo, sac. Learning: learn; errors: gate."
        ),
    ],
) -> None:
    """Measure speed or learning. Further options such as --json go to python -m finrl_pod_app.bench."""
    from finrl_pod_app import bench as benchmarks

    raise typer.Exit(benchmarks.main([what.value, *context.args]))


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON object on standard output, keys sorted. NaN raises ValueError: no document may hold one."""
    typer.echo(json.dumps(document, sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False))


def run_config(
    config: RunConfig,
    out: Path,
    seed: int | None,
    *,
    resume: bool = False,
    device: Device = Device.auto,
    as_json: bool = False,
) -> None:
    """Run the tournament of a config and show what came of it."""
    from finrl_pod_app.cli import console
    from finrl_pod_app.services import training

    if seed is not None:
        config = dataclasses.replace(config, seed=seed)
    with console.progress_display(quiet=as_json) as progress:
        document = training.run_tournament(config, out, resume=resume, device=device.value, progress=progress)
    if as_json:
        print_json(document)
    else:
        console.show_result(document, out)


def folder_of(out: Path | None, config: Path, *, resume: bool) -> Path:
    """Where a run goes: --out, or a new folder. Raises RunError for --resume without --out."""
    from finrl_pod.errors import RunError

    if resume and out is None:
        raise RunError("--resume needs --out DIR, the folder of the run to go on with")
    return out or _new_folder(config.stem)


def _new_folder(name: str) -> Path:
    """runs/NAME-TIME; microseconds keep two runs of one second apart."""
    return Path("runs") / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
