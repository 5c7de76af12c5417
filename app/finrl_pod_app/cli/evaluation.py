"""The commands that judge: `audit`, `promote`, `trials`, `walkforward`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from finrl_pod_app.cli.options import Device

REFUSED = 1

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")]


def audit(
    run_dir: Annotated[Path | None, typer.Argument(metavar="[RUN_DIR]", help="A run: its champion is audited.")] = None,
    strategy: Annotated[
        str | None, typer.Option(help="A baseline by name, or file.py:Class, instead of a run. The file is trusted.")
    ] = None,
    env: Annotated[str | None, typer.Option(help="An environment: portfolio or stock_trading.")] = None,
    data: Annotated[str | None, typer.Option(help="Panel of the store for --strategy and --env; sample.")] = None,
    probes: Annotated[int, typer.Option(min=1, help="Bars after which the future is changed.")] = 12,
    warm_up: Annotated[int, typer.Option(min=1, help="Bars of history that decisions may depend on.")] = 756,
    as_json: Json = False,
) -> None:
    """Look for look-ahead, leaks between splits, fills at observed prices and flawed data; 1 where there is a fault."""
    from finrl_pod.errors import InputError
    from finrl_pod_app.cli import console
    from finrl_pod_app.cli.console_evaluation import show_audit
    from finrl_pod_app.cli.options import print_json
    from finrl_pod_app.services import audit_targets

    if sum(subject is not None for subject in (run_dir, strategy, env)) != 1:
        raise InputError("audit takes a run directory, --strategy NAME or --env KIND, one of the three")
    if run_dir is not None and data is not None:
        raise InputError("a run is audited on its own data: leave --data out")
    with console.step_display(quiet=as_json) as on_step:
        options = {"probes": probes, "warm_up_bars": warm_up}
        if run_dir is not None:
            found = audit_targets.audit_run(run_dir, on_step=on_step, **options)
        elif strategy is not None:
            found = audit_targets.audit_strategy(strategy, data, on_step=on_step, **options)
        else:
            found = audit_targets.audit_env(str(env), data, on_step=on_step, **options)
    if as_json:
        print_json(found.plain())
    else:
        show_audit(found)
    if not found.clean:
        raise typer.Exit(REFUSED)


def promote(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished run.")],
    as_json: Json = False,
) -> None:
    """Say whether a run's champion may be promoted, rule by rule; 1 and the reasons where it may not."""
    from finrl_pod_app.cli.console_evaluation import show_rules
    from finrl_pod_app.cli.options import print_json
    from finrl_pod_app.services.verdict import read_verdict

    judged = read_verdict(run_dir)
    if as_json:
        print_json(judged.plain())
    else:
        show_rules(judged)
    if not judged.promoted:
        raise typer.Exit(REFUSED)


def trials(
    data: Annotated[str | None, typer.Option(help="One panel of the store; all known data sets unless given.")] = None,
    as_json: Json = False,
) -> None:
    """Show how many trials touched each data set, and every look at a test period."""
    from finrl_pod.promotion.trial_registry import TrialRegistry
    from finrl_pod_app.cli.console_evaluation import show_trials
    from finrl_pod_app.cli.options import print_json
    from finrl_pod_app.services.trial_listing import register

    registry = TrialRegistry()
    known = register(registry, data)
    if as_json:
        print_json({"register": str(registry.path), "data_sets": known})
    else:
        show_trials(str(registry.path), known)


def walkforward(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Settings; `finrl-pod init` writes them.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the walk-forward; runs/ and the time if left out.")
    ] = None,
    folds: Annotated[int, typer.Option(min=1, help="Parts of the tested years; each is trained for anew.")] = 6,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each fold, from the config's seed on.")] = 3,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the one in --out that was stopped.")] = False,
    device: Annotated[Device, typer.Option(help="auto takes a CUDA device where there is one.")] = Device.auto,
    as_json: Json = False,
) -> None:
    """Retrain on each fold and test on what came next; one stitched curve, and the gate's verdict on it."""
    from finrl_pod.settings.run import load
    from finrl_pod_app.cli import console
    from finrl_pod_app.cli.console_evaluation import show_rules, show_walkforward
    from finrl_pod_app.cli.options import print_json, run_folder
    from finrl_pod_app.services.verdict import Judged
    from finrl_pod_app.services.walkforward import run_walkforward

    settings = load(config)
    folder = run_folder(out, config, resume=resume)
    with console.progress_display(quiet=as_json) as progress:
        document = run_walkforward(
            settings, folder, folds=folds, seeds=seeds, resume=resume, device=device.value, progress=progress
        )
    if as_json:
        print_json(document)
        return
    show_walkforward(document)
    show_rules(Judged.from_plain(document["verdict"]))
    typer.echo(f"Report: {folder / 'report.html'}")
