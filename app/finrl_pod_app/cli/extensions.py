"""`finrl-pod new` and `finrl-pod check`: extensions of one's own."""

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
    """What can be added in a file of one's own."""

    feature = "feature"
    reward = "reward"
    strategy = "strategy"
    policy = "policy"
    algorithm = "algorithm"
    environment = "environment"


def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(Kind)}.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the function or class, such as my_feature.")],
    as_json: Json = False,
) -> None:
    """Write a working file of a kind, and its test, into this folder."""
    from finrl_pod_app.services.extensions import how_to_use, write_extension

    made = write_extension(kind, name)
    if as_json:
        print_json({"kind": made.kind, "target": made.target, "file": str(made.file), "test": str(made.test)})
        return
    typer.echo(
        f"wrote {made.file} and {made.test}\ncheck it: finrl-pod check {made.target}\nuse it: {how_to_use(made)}"
    )


def check(
    target: Annotated[str, typer.Argument(metavar="FILE.py:NAME", help="A function or class of yours.")],
    kind: Annotated[
        str | None, typer.Option(help="feature, reward, cost, strategy, ...; default: that of the object.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run an extension of yours on a small market and say in words what is wrong. Exit code 1 if anything is."""
    from finrl_pod_app.services.extension_checks import check_extension
    from finrl_pod_app.services.extensions import find_extension

    found, _ = find_extension(target, kind)
    article = "an" if found[0] in "aeiou" else "a"
    show_faults(
        check_extension(target, kind), {"target": target, "kind": found}, f"contract of {article} {found}", as_json
    )


def show_faults(faults: Sequence[Fault], subject: Mapping[str, str], contract: str, as_json: bool) -> None:
    """Print the faults of a subject, whose first value is its target. Exits with 1 if there are any."""
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
