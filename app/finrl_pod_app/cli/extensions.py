"""`finrl-pod new` and `finrl-pod check`: custom extensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from finrl_pod_app.cli.options import Json, print_json

if TYPE_CHECKING:
    from finrl_pod_envs.custom.contract import Fault

BROKEN = 1


class Kind(StrEnum):
    """Kinds of extensions that a user file can define."""

    feature = "feature"
    reward = "reward"
    strategy = "strategy"
    policy = "policy"
    algorithm = "algorithm"
    environment = "environment"


def new(
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help=f"One of {', '.join(Kind)}; costs, sources and brokers have no template."),
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
    if as_json:
        print_json({"kind": file.kind, "target": file.target, "file": str(file.file), "test": str(file.test)})
        return
    typer.echo(
        f"wrote {file.file} and {file.test}\ncheck it: finrl-pod check {file.target}\nuse it: {how_to_use(file)}"
    )


def check(
    target: Annotated[
        str,
        typer.Argument(metavar="FILE.py:NAME", help="A function or class of yours, or the name that a package offers."),
    ],
    kind: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(Kind)}, cost, source, broker; default: told from the object.")
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
    article = "an" if kind_name[0] in "aeiou" else "a"
    show_faults(
        check_extension(target, kind, steps=steps, members=members),
        {"target": target, "kind": kind_name},
        f"contract of {article} {kind_name}",
        as_json,
    )


def show_faults(faults: Sequence[Fault], subject: Mapping[str, str], contract: str, as_json: bool) -> None:
    """Print the faults of a subject; its first value is the target. Exits with 1 if there are any."""
    target = next(iter(subject.values()))
    if as_json:
        rows = [{"rule": fault.rule, "message": fault.message} for fault in faults]
        print_json({**subject, "passed": not faults, "faults": rows})
    elif faults:
        typer.echo(f"{target} breaks the {contract}:")
        for fault in faults:
            typer.echo(f"- {fault.rule}: {fault.message}")
    else:
        typer.echo(f"{target} keeps the {contract}")
    if faults:
        raise typer.Exit(BROKEN)
