"""`finrl-pod env new` and `env check`: environments of one's own."""

from __future__ import annotations

from typing import Annotated

import typer

from finrl_pod_app.cli.extensions import show_faults
from finrl_pod_app.cli.options import Json

app = typer.Typer(help="Write an environment of your own, and check that agents can train on it.", no_args_is_help=True)


@app.command("new", epilog="Example: finrl-pod env new PairsTrading")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the class, such as PairsTrading.")],
) -> None:
    """Write a working environment and its test into this folder: pairs_trading.py and test_pairs_trading.py."""
    from finrl_pod_app.setup.extensions import how_to_use, write_extension

    new_file = write_extension("environment", name)
    typer.echo(
        f"wrote {new_file.file} and {new_file.test}\n"
        f"check it: finrl-pod env check {new_file.target}\n"
        f"train on it: {how_to_use(new_file)}"
    )


@app.command("check", epilog="Example: finrl-pod env check pairs_trading.py:PairsTrading")
def check(
    environment: Annotated[str, typer.Argument(metavar="FILE.py:CLASS", help="The environment.")],
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps within which every environment must finish an episode.")
    ] = None,
    members: Annotated[
        int, typer.Option(min=1, help="Members; 1 for a simulator whose members share one stream of random numbers.")
    ] = 2,
    as_json: Json = False,
) -> None:
    """Check that an environment keeps the contract of the learner, by random actions. Exit code 1 if it does not."""
    from finrl_pod_app.setup.extension_checks import check_environment

    faults = check_environment(environment, steps, members)
    show_faults(faults, {"environment": environment}, "contract", as_json)
