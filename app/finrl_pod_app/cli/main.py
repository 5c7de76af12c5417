"""`finrl-pod`: gathers the commands, and turns every failure into one sentence and an exit code.

Modules of commands import typer alone at their head and the rest inside their functions, so that `--help` is quick.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import sys
from typing import Annotated

import typer

from finrl_pod import __version__
from finrl_pod.errors import FinrlPodError
from finrl_pod_app.cli import backtest, dashboard, data, evaluation, info, paper, train
from finrl_pod_app.cli import run as run_commands

INTERRUPTED = 130
# Objects made before the collector looks at the youngest again. Loading torch makes hundreds of thousands that live for
# ever; at Python's own 700 looking at them is a tenth of the time that a command takes to start.
YOUNGEST = 50_000
NO_MEMORY = "can't allocate memory"  # as torch says it
MEMORY_TEXT = "this takes more memory than there is: ask for fewer environments, smaller networks or a smaller replay"
INTERRUPTED_TEXT = "interrupted, what was saved is kept: a tournament goes on with the same command and --resume"

app = typer.Typer(
    name="finrl-pod",
    help="Train trading agents in a tournament on real prices, and backtest the champion honestly.",
    epilog="Begin with: finrl-pod demo --quick",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # drawing the help with rich would double the time it takes
    add_completion=False,
)
app.command("demo", epilog="Example: finrl-pod demo --quick --out runs/demo")(run_commands.demo)
app.command("init", epilog="Example: finrl-pod init --preset quick mine.toml")(info.init)
app.add_typer(data.app, name="data")
app.add_typer(paper.app, name="paper")
app.command("tournament", epilog="Example: finrl-pod tournament mine.toml --out runs/mine --seed 7")(
    run_commands.tournament
)
app.command("train", epilog="Example: finrl-pod train --env gym:Hopper-v5 --algorithm sac --workers 8 --out runs/one")(
    train.train
)
app.command("backtest", epilog="Example: finrl-pod backtest --strategy equal_weight --start 2019-01-01")(
    backtest.backtest
)
app.command("sweep", epilog="Example: finrl-pod sweep --strategy equal_weight --cost-bps 0,10,50 --period 2010-01-01:")(
    backtest.sweep
)
app.command("audit", epilog="Example: finrl-pod audit --strategy equal_weight --json")(evaluation.audit)
app.command("walkforward", epilog="Example: finrl-pod walkforward mine.toml --folds 6 --seeds 3 --out runs/walk")(
    evaluation.walkforward
)
app.command("promote", epilog="Example: finrl-pod promote runs/mine")(evaluation.promote)
app.command("trials", epilog="Example: finrl-pod trials --data sample")(evaluation.trials)
app.add_typer(dashboard.app, name="dashboard")
app.command("algorithms", epilog="Example: finrl-pod algorithms --json")(info.algorithms)
app.command("doctor", epilog="Example: finrl-pod doctor --json")(info.doctor)
app.command(
    "bench",
    epilog="Example: finrl-pod bench learn --json",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)(run_commands.bench)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"finrl-pod {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Carries the options that stand before a command."""


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 for bad input (one sentence on stderr), 130 interrupted."""
    gc.set_threshold(YOUNGEST)
    if sys.stdout is None:  # closed by the shell: the work is done all the same
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  as long as the process
    try:
        code = app(arguments, prog_name="finrl-pod", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit:  # the reader of a pipe has gone, which typer answers so
        return FinrlPodError.exit_code
    except FinrlPodError as error:
        return _fail(str(error), error.exit_code)
    except typer.TyperException as error:
        return _fail(_usage(error), getattr(error, "exit_code", FinrlPodError.exit_code))
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except MemoryError:
        return _fail(MEMORY_TEXT, FinrlPodError.exit_code)
    except RuntimeError as error:
        if NO_MEMORY not in str(error):
            raise
        return _fail(MEMORY_TEXT, FinrlPodError.exit_code)
    except OSError as error:
        # A full disk or a folder without permission is no bug: name the file. Anything else keeps its traceback.
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) and error.filename is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in the buffer
            return _fail(f"cannot write to standard output: {error.strerror}", FinrlPodError.exit_code)
        if error.filename is None or error.strerror is None:
            raise
        return _fail(f"cannot use {error.filename}: {error.strerror}", FinrlPodError.exit_code)
    if code == INTERRUPTED:
        return _fail(INTERRUPTED_TEXT, INTERRUPTED)
    return code if isinstance(code, int) else 0


def _usage(error: typer.TyperException) -> str:
    """A fault in the arguments, as one sentence that names the help to read; where a command is missing, the help."""
    message = str(getattr(error, "format_message", error.__str__)()).strip()
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    if "\n" in message:
        return f"a command is missing\n{message}"
    message = message.rstrip(".")
    return f"{message[0].lower()}{message[1:]} (see {context.command_path} --help)"


def _fail(sentence: str, code: int) -> int:
    with contextlib.suppress(OSError):  # full, or gone with its terminal: the code says it all the same
        sys.stderr.write(f"finrl-pod: {sentence}\n")
        sys.stderr.flush()
    return code


if __name__ == "__main__":
    sys.exit(run())
