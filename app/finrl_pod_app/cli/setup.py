"""Commands around training: `init`, `new`, `check`, `algorithms`, `doctor` and `dashboard`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from finrl_pod_app.cli.options import Json, print_json, print_result

KINDS = "feature, reward, strategy, policy, algorithm, environment"


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="Where to write; never overwrites a file.")],
    preset: Annotated[str, typer.Option(help="laptop, gpu, quick (a trial run), minutes (bars of 1m).")] = "laptop",
    data: Annotated[str | None, typer.Option(help="Panel of the store; default: the built-in sample.")] = None,
    env: Annotated[
        str | None, typer.Option(metavar="FILE.py:CLASS", help="Instead of a market: an environment of your own.")
    ] = None,
    algorithm: Annotated[str | None, typer.Option(help="With --env: default ppo.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Write all settings, also those with their defaults.")] = False,
    as_json: Json = False,
) -> None:
    """Write a commented config file with the settings that are changed first; --full writes all."""
    from finrl_pod.errors import InputError
    from finrl_pod_app.setup.presets import tournament_command, write_config, write_preset

    if env is None:
        if algorithm is not None:
            raise InputError("--algorithm is only valid with --env; set agent.algorithm in the file")
        write_preset(preset, file, data, full=full)
    else:
        if full:
            raise InputError("--full is only valid without --env; docs/configuration.md lists all settings")
        from finrl_pod_app.training.custom_tournament import custom_config_text

        write_config(custom_config_text(env, algorithm or "ppo", file), file)
    command = tournament_command(file)
    document = {"file": str(file), "preset": None if env else preset, "env": env, "data": data, "run": command}
    print_result(document, f"wrote {file}: run it with {command}", as_json=as_json)


def algorithms(as_json: Json = False) -> None:
    """List the algorithms with their kind, supported actions and source."""
    import dataclasses

    from finrl_pod.settings.algorithm_registry import ALGORITHMS

    if as_json:
        rows = []
        for algorithm in ALGORITHMS.values():
            row = {name: value for name, value in vars(algorithm).items() if name != "config_class"}
            defaults = algorithm.config_class(algorithm=algorithm.name)
            row["settings"] = {k: v for k, v in dataclasses.asdict(defaults).items() if k != "algorithm"}
            rows.append(row)
        print_json({"algorithms": rows})
        return
    from finrl_pod_app.cli.console import plain_table
    from finrl_pod_app.setup.terminal import make_console

    columns = ("algorithm", "kind", "actions", "description", "source")
    table = plain_table(columns=columns, multiline=columns[3:], collapse_padding=True)
    for algorithm in ALGORITHMS.values():
        table.add_row(algorithm.name, algorithm.kind, algorithm.actions, algorithm.summary, algorithm.source)
    make_console().print(table)


def doctor(as_json: Json = False) -> None:
    """Check the installation and suggest fixes."""
    import dataclasses

    from finrl_pod_app.setup.doctor import check_installation

    findings = check_installation()
    works = all(finding.status != "broken" for finding in findings)
    if as_json:
        print_json({"works": works, "findings": [dataclasses.asdict(finding) for finding in findings]})
    else:
        from finrl_pod_app.cli.console import show_findings

        show_findings(findings)
    if not works:
        raise typer.Exit(1)


def new(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help=f"One of {KINDS}; costs, sources and brokers have no template.")
    ],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the part and its file: my_feature, or MyStrategy.")
    ],
    as_json: Json = False,
) -> None:
    """Write a working part of your own, and its test, into the current folder: my_feature.py and test_my_feature.py.

    Change the function or class, run `finrl-pod check` on it, then name it as file.py:Name in a config or a command.
    Features and rewards are functions (my_feature), the others classes (MyStrategy in my_strategy.py).
    """
    from finrl_pod_app.setup.extensions import how_to_use, write_extension

    file = write_extension(kind, name)
    document = {"kind": file.kind, "target": file.target, "file": str(file.file), "test": str(file.test)}
    text = f"wrote {file.file} and {file.test}\ncheck it: finrl-pod check {file.target}\nuse it: {how_to_use(file)}"
    print_result(document, text, as_json=as_json)


def check(
    target: Annotated[
        str,
        typer.Argument(metavar="FILE.py:NAME", help="A function or class of yours, or the name that a package offers."),
    ],
    kind: Annotated[
        str | None, typer.Option(help=f"One of {KINDS}, cost, source, broker; default: told from the object.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Of environments: steps within which an episode must end, 2500 by default."),
    ] = None,
    members: Annotated[
        int | None,
        typer.Option(min=1, help="Of environments: members, 2 by default; 1 for a simulator with one random stream."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Try a part of your own on a small random market, or an environment by random actions, and say what is wrong.

    Exit code 0: nothing is wrong; 1: each fault is printed with its fix; 2: the file or the name cannot be used.
    """
    from finrl_pod.errors import InputError
    from finrl_pod.user_files import check_file_defines, is_file_reference

    if is_file_reference(target):
        check_file_defines(target, f"the check of {target}")
    from finrl_pod_app.setup.extension_checks import check_extension
    from finrl_pod_app.setup.extensions import find_extension

    kind_name, _ = find_extension(target, kind)
    if kind_name != "environment" and (steps or members):
        raise InputError(f"--steps and --members are for environments, and {target} is a {kind_name}; leave them out")
    faults = check_extension(target, kind, steps=steps, members=members)
    contract = f"contract of {'an' if kind_name[0] in 'aeiou' else 'a'} {kind_name}"
    rows = [{"rule": fault.rule, "message": fault.message} for fault in faults]
    lines = [f"{target} breaks the {contract}:", *(f"- {fault.rule}: {fault.message}" for fault in faults)]
    text = "\n".join(lines) if faults else f"{target} keeps the {contract}"
    print_result({"target": target, "kind": kind_name, "passed": not faults, "faults": rows}, text, as_json=as_json)
    if faults:
        raise typer.Exit(1)


dashboard_app = typer.Typer(
    help="Runs, comparisons, training and paper trading in a browser.", invoke_without_command=True
)


@dashboard_app.callback(epilog="Example: finrl-pod dashboard --runs runs --port 8501")
def dashboard(
    context: typer.Context,
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Folder of runs.")] = Path("runs"),
    journal: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Journal of a paper daemon; repeatable, one per account. Default: found below paper/ and --runs.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8501,
    address: Annotated[
        str, typer.Option(help="Address to listen on. Other than loopback addresses need a password.")
    ] = "127.0.0.1",
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Host name of a proxy in front of the dashboard; repeatable."),
    ] = None,
) -> None:
    """Serve the dashboard until Ctrl-C; trainings started from it continue."""
    if context.invoked_subcommand is not None:
        return
    from finrl_pod_app.dashboard.serving.server import serve
    from finrl_pod_app.dashboard.settings import Settings

    serve(Settings(runs=runs, journals=tuple(journal or ()), hosts=tuple(host or ())), address, port)


@dashboard_app.command("set-password", epilog="Example: finrl-pod dashboard set-password")
def set_password(
    from_stdin: Annotated[
        bool, typer.Option("--stdin", help="Read the password from the first line of standard input.")
    ] = False,
) -> None:
    """Set the password that protects Resume and Flatten, and access from other machines. Stored as a hash."""
    from finrl_pod_app.dashboard.passwords import Password

    if from_stdin:
        text = sys.stdin.readline().rstrip("\r\n")
    else:
        text = typer.prompt("New password", hide_input=True, confirmation_prompt="Repeat the password", err=True)
    password = Password()
    password.set(text)
    typer.echo(f"Password set. Its hash is stored in {password.file}, readable only by you.", err=True)
