"""`finrl-pod dashboard`: see runs, compare them, train, and watch paper trading in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PORT = 8501

app = typer.Typer(help="See, compare, train and watch paper trading in a browser.", invoke_without_command=True)


@app.callback(epilog="Example: finrl-pod dashboard --runs runs --port 8501")
def dashboard(
    context: typer.Context,
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Folder that holds the runs.")] = Path("runs"),
    journal: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The paper daemon's journal; found below paper/ and --runs unless given."),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = PORT,
    address: Annotated[str, typer.Option(help="Address to listen on: this machine alone unless given.")] = "127.0.0.1",
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name under which a proxy passes other machines on; repeatable."),
    ] = None,
) -> None:
    """Serve the dashboard until Ctrl-C; a training that was started from it goes on."""
    if context.invoked_subcommand is not None:
        return
    from finrl_pod_app.dashboard.launch import serve
    from finrl_pod_app.dashboard.settings import Settings

    serve(Settings(runs=runs, journal=journal, hosts=tuple(host or ())), address, port)


@app.command("set-password", epilog="Example: finrl-pod dashboard set-password")
def set_password(
    from_stdin: Annotated[
        bool, typer.Option("--stdin", help="Read the first line of standard input instead of asking.")
    ] = False,
) -> None:
    """Set the password for resuming and flattening paper trading, and for other machines. Kept hashed."""
    import sys

    from finrl_pod_app.dashboard.passwords import Password

    if from_stdin:
        text = sys.stdin.readline().rstrip("\r\n")
    else:
        text = typer.prompt("New password", hide_input=True, confirmation_prompt="Once more", err=True)
    password = Password()
    password.set(text)
    typer.echo(f"The password is set; its hash is in {password.file}, for your eyes alone.", err=True)
