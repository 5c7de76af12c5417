"""`finrl-pod dashboard`: runs, comparisons, training and paper trading in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PORT = 8501

app = typer.Typer(help="Runs, comparisons, training and paper trading in a browser.", invoke_without_command=True)


@app.callback(epilog="Example: finrl-pod dashboard --runs runs --port 8501")
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
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = PORT,
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


@app.command("set-password", epilog="Example: finrl-pod dashboard set-password")
def set_password(
    from_stdin: Annotated[
        bool, typer.Option("--stdin", help="Read the password from the first line of standard input.")
    ] = False,
) -> None:
    """Set the password that protects Resume and Flatten, and access from other machines. Stored as a hash."""
    import sys

    from finrl_pod_app.dashboard.passwords import Password

    if from_stdin:
        text = sys.stdin.readline().rstrip("\r\n")
    else:
        text = typer.prompt("New password", hide_input=True, confirmation_prompt="Repeat the password", err=True)
    password = Password()
    password.set(text)
    typer.echo(f"Password set. Its hash is stored in {password.file}, readable only by you.", err=True)
