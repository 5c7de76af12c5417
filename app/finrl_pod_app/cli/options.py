"""Options that several commands share, and printing of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from finrl_pod.settings.run import describe_setting
from finrl_pod_app.setup.terminal import wrapped

_T = TypeVar("_T")


Device = Literal["auto", "cpu", "cuda"]


def setting_option(path: str) -> Any:
    """Return a typer option that overrides a setting; its help and range come from the declaration of the setting."""
    declaration = describe_setting(path)
    constraint = declaration.constraint
    low, high = (constraint.low, constraint.high) if constraint is not None else (None, None)
    text = f"{declaration.comment[0].upper()}{declaration.comment[1:]}. Default: {path} of the config."
    return typer.Option(min=low, max=high, help=text)


Out = Annotated[Path | None, typer.Option(help="Output folder; default: a new folder runs/NAME-TIME.")]
Seed = Annotated[int | None, setting_option("seed")]
Json = Annotated[bool, typer.Option("--json", help="Print a single JSON object to standard output.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the interrupted run in --out.")]
OnDevice = Annotated[Device, typer.Option(help="Training device; auto uses CUDA if available.")]
ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Config file; `finrl-pod init` writes one.")]

# How a file of prices is read; None: not given.
Adjusted = Annotated[
    bool | None,
    typer.Option(
        "--adjusted/--unadjusted",
        help="Whether prices are adjusted for splits and dividends; a column 'adj close' then adjusts the others. "
        "Default: as the layout of the file says, adjusted if it does not; unadjusted with --actions.",
    ),
]
DropRepeatedBars = Annotated[
    bool | None,
    typer.Option("--drop-repeated-bars", help="Leave out bars on which every price repeats: filled holidays."),
]
AllowRepeatedBars = Annotated[
    bool | None, typer.Option("--allow-repeated-bars", help="Keep them, also above 10% of the bars of several tickers.")
]
Symbol = Annotated[str | None, typer.Option(help="Ticker of a file without such a column.")]
Decimal = Annotated[
    str | None, typer.Option(help="Decimal mark of numbers: . or , as in 12,50 (default: found from the numbers).")
]
DateFormat = Annotated[str | None, typer.Option(help="Of dates unlike 2020-01-31; e.g. %d.%m.%Y for 31.01.2020.")]
Separator = Annotated[
    str | None, typer.Option(help="Character between cells, such as ; (default: found from the header).")
]
Columns = Annotated[str | None, typer.Option(help="What columns of the file are called here: Last=close, Code=symbol.")]
IgnoreUnknown = Annotated[bool | None, typer.Option("--ignore-unknown", help="Leave out columns of unknown names.")]


FILE_OPTIONS = (
    *("adjusted", "drop_repeated_bars", "allow_repeated_bars", "symbol", "decimal", "date_format", "separator"),
    *("columns", "ignore_unknown"),
)


def file_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a file of prices that were given, for `import_prices`. arguments: all options of a command."""
    return {name: arguments[name] for name in FILE_OPTIONS if arguments[name] is not None}


def check_exists(path: Path | None, kind: str) -> None:
    """Check a file or folder before the imports of a command. Raises InputError. kind: word before the path."""
    if path is not None and not path.exists():
        from finrl_pod.errors import InputError, did_you_mean

        raise InputError(f"there is no {kind} {path}{did_you_mean(path)}")


def check_run_folder(path: Path) -> None:
    """Check the folder of a run before the imports of a command. Raises RunError if it is missing."""
    if not path.exists():
        from finrl_pod.errors import RunError, did_you_mean

        raise RunError(f"there is no folder {path}{did_you_mean(path) or '; name the folder given as --out'}")


def check_panel(name: str | None) -> None:
    """Check the name of a stored panel before the imports of a command. Raises DataError for an unknown one."""
    if name is not None:
        from finrl_pod.data.store import Store

        Store().show(name)


def run_or_strategy(argument: Path) -> Path | str:
    """The folder of a run, or a strategy that was named without its option: file.py:Class or a baseline.

    Raises InputError for a file without the class and for what is neither but resembles the name of a baseline,
    RunError for a missing folder.
    """
    from finrl_pod_strategies import BASELINE_NAMES, SEEDED_BASELINE_NAMES, check_strategy_name

    from finrl_pod.errors import InputError, closest_name

    name = str(argument)
    strategy_names = (*BASELINE_NAMES, *SEEDED_BASELINE_NAMES)
    if argument.suffix.startswith(".py:") or (name in strategy_names and not argument.exists()):
        check_strategy_name(name)
        return name
    if not argument.exists() and (close := closest_name(name, strategy_names)):
        raise InputError(f"there is no run in {name!r}; did you mean the strategy {close}?")
    check_run_folder(argument)
    return argument


def print_json(document: Any) -> None:
    """Print a record or a mapping as a JSON object with sorted keys; NaN and infinity become null."""
    from finrl_pod.files import record_values, to_plain

    values = document if isinstance(document, Mapping) else record_values(document)
    typer.echo(json.dumps(to_plain(values), sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False))


def echo(text: str, *, err: bool = False) -> None:
    """Print a text with its long lines wrapped."""
    typer.echo(wrapped(text), err=err)


def print_note(text: str) -> None:
    """Print a note to standard error, below a result or beside it."""
    echo(f"note: {text}", err=True)


def print_result(document: _T, text: str | Callable[[_T], None], *, as_json: bool) -> None:
    """Print a result as JSON or as text. text: the text, or the function that prints the document."""
    if as_json:
        print_json(document)
    elif isinstance(text, str):
        echo(text)
    else:
        text(document)


def run_folder(out: Path | None, config: Path, *, resume: bool) -> Path:
    """Return the output folder: `out`, or a new runs/NAME-TIME. Raises RunError for --resume without --out."""
    from finrl_pod.errors import RunError

    if resume and out is None:
        raise RunError("--resume needs --out DIR, the folder of the run to resume")
    # Microseconds keep two runs started within one second apart.
    return out or Path("runs") / f"{config.stem}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
