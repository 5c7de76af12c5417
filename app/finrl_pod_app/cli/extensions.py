"""`finrl-pod new` and `finrl-pod check`: custom extensions."""

from __future__ import annotations

from typing import Annotated

import typer

from finrl_pod_app.cli.options import Json, print_result

BROKEN = 1
KINDS = "feature, reward, strategy, policy, algorithm, environment"


def new(
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help=f"One of {KINDS}; costs, sources and brokers have no template."),
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
        raise typer.Exit(BROKEN)
