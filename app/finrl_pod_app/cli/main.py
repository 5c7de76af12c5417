"""The `finrl-pod` command: registers all commands and turns failures into a one-line message and an exit code.

Command modules import only typer at module level and everything else inside functions, so that `--help` is fast.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Annotated

import typer

from finrl_pod import __version__
from finrl_pod.errors import FinrlPodError
from finrl_pod.masking import environment_mask
from finrl_pod.process import keep_interrupts
from finrl_pod.user_files import OUT_OF_MEMORY, own_failures
from finrl_pod_app.cli import backtest, data, evaluation, paper, registry, setup, training
from finrl_pod_app.setup.terminal import wrapped

INTERRUPTED = 130
# Importing torch creates hundreds of thousands of long-lived objects. With the default threshold of 700, garbage
# collection takes a tenth of the start-up time of a command.
GC_THRESHOLD = 50_000
OUT_OF_MEMORY_MESSAGE = "out of memory: use fewer environments, smaller networks or a smaller replay buffer"
_BOUNDS = {"ge": "{:,} or more", "le": "at most {:,}", "gt": "above {:,}", "lt": "below {:,}"}  # of pydantic
INTERRUPTED_MESSAGE = "interrupted"  # commands whose work can be resumed say so themselves

# Click keeps the lines of a paragraph that follows a backspace.
START = """\b
Start with:       finrl-pod demo --quick
Your own prices:  finrl-pod demo prices.csv
Step by step:     finrl-pod data import prices.csv --name mine
                  finrl-pod init mine.toml --data mine
                  finrl-pod tournament mine.toml --out runs/mine"""

app = typer.Typer(
    name="finrl-pod",
    help="Train trading agents in a tournament on real prices, and backtest the champion honestly.",
    epilog=START,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rendering the help with rich takes twice as long
    add_completion=False,
)
COMMANDS: Mapping[Callable[..., None], str] = {  # and an example of each
    training.demo: "demo --quick --out runs/demo",
    setup.init: "init mine.toml --data sample",
    training.tournament: "tournament mine.toml --out runs/mine --seed 7",
    training.train: "train mine.toml --no-test --out runs/one",
    evaluation.evaluate: "evaluate runs/hopper --episodes 100",
    evaluation.play: "play runs/hopper --out hopper.png",
    evaluation.export: "export runs/mine --format onnx --out agent",
    setup.new: "new feature my_feature",
    setup.check: "check my_feature.py:my_feature",
    backtest.backtest: "backtest --strategy equal_weight --start 2019-01-01",
    backtest.sweep: "sweep --strategy equal_weight --cost-bps 0,10,50 --period 2010-01-01:",
    backtest.orders: "orders runs/mine --holdings my.csv --cash 1000",
    evaluation.audit: "audit --strategy equal_weight --json",
    evaluation.walkforward: "walkforward mine.toml --folds 6 --seeds 3 --out runs/walk",
    evaluation.ensemble: "ensemble mine.toml --algorithms ppo,a2c,ddpg --quarters 8 --out runs/ensemble",
    evaluation.promote: "promote runs/mine",
    evaluation.trials: "trials --data sample",
    registry.retrain: "retrain mine.toml --strategy main",
    setup.algorithms: "algorithms --json",
    setup.doctor: "doctor --json",
}
for command, example in COMMANDS.items():
    app.command(example.split()[0], epilog=f"Example: finrl-pod {example}")(command)
for group, name in (
    (data.app, "data"),
    (data.features_app, "features"),
    (paper.app, "paper"),
    (registry.app, "registry"),
    (setup.dashboard_app, "dashboard"),
):
    app.add_typer(group, name=name)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"finrl-pod {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options that precede a command."""


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: done; 1: negative result (an audit failed, a promotion was refused); 2: bad input or environment, with a
    one-line message on standard error; 130: interrupted.
    """
    gc.set_threshold(GC_THRESHOLD)
    if arguments is None:
        hide_secrets()
        keep_interrupts()
    if sys.stdout is None:  # closed by the shell; run the command anyway
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  stays open for the life of the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without Unicode shows codes, not a traceback
    try:
        with own_failures():
            code = app(arguments, prog_name="finrl-pod", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit:  # raised by typer when the reader of a pipe is gone
        return FinrlPodError.exit_code
    except FinrlPodError as error:
        return _fail(str(error), error.exit_code)
    except typer.TyperException as error:
        return _fail(_usage(error), getattr(error, "exit_code", FinrlPodError.exit_code))
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except ModuleNotFoundError as error:
        from finrl_pod_app.setup.doctor import missing_package

        if (message := missing_package(error)) is None:
            raise
        return _fail(message, FinrlPodError.exit_code)
    except MemoryError:
        return _fail(OUT_OF_MEMORY_MESSAGE, FinrlPodError.exit_code)
    except RuntimeError as error:
        if OUT_OF_MEMORY not in str(error):
            raise
        return _fail(OUT_OF_MEMORY_MESSAGE, FinrlPodError.exit_code)
    except OSError as error:
        # A full disk or missing permission is not a bug: name the file. Anything else keeps its traceback.
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) and error.filename is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discard the rest of the buffer
            return _fail(f"cannot write to standard output: {error.strerror}", FinrlPodError.exit_code)
        if error.filename is None or error.strerror is None:
            raise
        return _fail(f"cannot use {error.filename}: {error.strerror}", FinrlPodError.exit_code)
    if code == INTERRUPTED:
        return _fail(INTERRUPTED_MESSAGE, INTERRUPTED)
    return code if isinstance(code, int) else 0


def hide_secrets() -> None:
    """Mask the secrets of the environment in all that is printed, by whatever code, and in tracebacks of any thread."""
    mask = environment_mask()

    def masked_write(write: Callable[[str], int]) -> Callable[[str], int]:
        return lambda text: write(mask.text(text))

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.write = masked_write(stream.write)  # type: ignore[method-assign]

    def show(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(OSError):  # in one piece: a secret may be split over lines
            sys.stderr.write("".join(traceback.format_exception(kind, error, trace)))

    sys.excepthook = show
    threading.excepthook = lambda arguments: show(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)


def _usage(error: typer.TyperException) -> str:
    """Format a usage error as one line that points to --help; for a missing command, return the help itself."""
    message = str(getattr(error, "format_message", error.__str__)()).strip()
    context = getattr(error, "ctx", None)
    if context is None:
        return f"{message[:1].lower()}{message[1:].rstrip('.')} (see finrl-pod --help)"
    if "\n" in message:
        return f"missing command\n{message}"
    message = _value_sentence(error) or f"{message[0].lower()}{message[1:].rstrip('.')}"
    return f"{message} (see {context.command_path} --help)"


def _value_sentence(error: typer.TyperException) -> str | None:
    """The rule and the value of an option that was refused: "--shards must be 1 or more, got 0"; None for other errors.

    typer leaves out the value; the error of pydantic that it wraps has it.
    """
    match = re.match(r"Invalid value for '(.+?)': (?:Value error, )?(.*)", error.format_message())
    read_errors = getattr(error.__cause__, "errors", None)
    if match is None or read_errors is None:
        return None
    from finrl_pod.errors import closest_name

    name, reason = match.groups()
    if "|" in name:  # the metavar lists the choices
        name = str(getattr(getattr(error, "param", None), "name", name)).upper()
    details = read_errors()[0]
    kind = details["type"]
    value = details["input"]
    limits = details.get("ctx") or {}
    if kind in ("float_parsing", "int_parsing", "int_from_float"):
        rule = "a number" if kind == "float_parsing" else "a whole number"
        return f"{name} must be {rule}, got {value}"
    if bounds := [words for key, words in _BOUNDS.items() if key in limits]:
        low_or_high = next(limits[key] for key in _BOUNDS if key in limits)
        return f"{name} must be {bounds[0].format(low_or_high)}, got {value}"
    if " is not one of " in reason:
        names = re.findall(r"'([^']*)'", reason.rpartition(" is not one of ")[2])
        close = closest_name(str(value), names)
        return f"{name} must be one of {', '.join(names)}, got {value}" + (f"; did you mean {close}?" if close else "")
    return None


def _fail(message: str, code: int) -> int:
    message = environment_mask().text(message)
    with contextlib.suppress(OSError):  # stderr is full or closed; the exit code remains
        sys.stderr.write(wrapped(f"finrl-pod: {message}") + "\n")
        sys.stderr.flush()
    return code


if __name__ == "__main__":
    sys.exit(run())
