"""`finrl-pod data` (price panels) and `finrl-pod features` (what features say about later returns)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from finrl_pod.errors import count_text
from finrl_pod_app.cli.options import (
    Adjusted,
    AllowRepeatedBars,
    Columns,
    DateFormat,
    Decimal,
    DropRepeatedBars,
    IgnoreUnknown,
    Json,
    Separator,
    Symbol,
    check_exists,
    echo,
    file_options,
    print_json,
    print_note,
    print_result,
)

if TYPE_CHECKING:
    from finrl_pod.data.store import Manifest
    from finrl_pod_app.prices.stored_prices import StoredPrices

TIMES_OF_PRESETS = "one to three minutes; with init --preset quick less than one, too short to learn much"

app = typer.Typer(help="Fetch, import, update, list and delete prices.", no_args_is_help=True)


Bar = Annotated[str, typer.Option(help="1d, 1h, 15m or 1m.")]
Stored = Annotated[str, typer.Argument(metavar="NAME", help="Name of a panel; see `finrl-pod data list`.")]
NewName = Annotated[str, typer.Option("--name", help="Name of the stored panel.")]
Replace = Annotated[bool, typer.Option("--replace", help="Replace other prices of that name.")]


@app.command("list", epilog="Example: finrl-pod data list --json")
def list_panels(as_json: Json = False) -> None:
    """List the stored panels and the built-in ones."""
    from finrl_pod.data.store import Store

    store = Store()
    manifests = store.list()
    if as_json:
        print_json({"store": str(store.root), "panels": [m.to_dict() for m in manifests]})
        return
    from rich.text import Text

    from finrl_pod_app.cli.console import plain_table
    from finrl_pod_app.setup.terminal import make_console, print_lines

    columns = ("name", "source", "bar", "tickers", "bars", "from", "to", "flaws")
    table = plain_table(f"Panels in {store.root}", columns, right=("tickers", "bars", "flaws"))
    for m in manifests:
        cells = (m.name, "built-in" if m.builtin else m.source, m.bar, str(len(m.symbols)), f"{m.bars:,}")
        row = (m.name, "cannot be used") if m.fault else (*cells, m.start, m.end, str(len(m.flaws)))
        table.add_row(*map(Text, row), style="red" if m.fault else "")
    console = make_console()
    console.print(table)
    for m in manifests:
        if m.fault:
            print_lines(console, f"{m.name}: {m.fault}")


@app.command("show", epilog="Example: finrl-pod data show sample")
def show(name: Stored, as_json: Json = False) -> None:
    """Show the source, contents and known flaws of a panel."""
    from finrl_pod.data.store import Store

    _show(Store().show(name), as_json)


@app.command("fetch", epilog="Example: finrl-pod data fetch --source yfinance --symbols AAPL,MSFT --name two "
             "--start 2015-01-01 --end 2024-12-31")  # fmt: skip
def fetch(
    source: Annotated[
        str, typer.Option(help="yfinance, file.py:Class, or alpaca (keys: APCA_API_KEY_ID, APCA_API_SECRET_KEY).")
    ],
    symbols: Annotated[str, typer.Option(help="Tickers, separated by commas.")],
    start: Annotated[str, typer.Option(help="First date, e.g. 2015-01-01.")],
    end: Annotated[str, typer.Option(help="Last date, inclusive.")],
    name: NewName,
    bar: Bar = "1d",
    replace: Replace = False,
    as_json: Json = False,
) -> None:
    """Fetch bars from the network and store them. On failure an existing panel stays unchanged."""
    from finrl_pod.data.dates import first_moment, last_moment
    from finrl_pod.data.sources.factory import open_source
    from finrl_pod.data.store import Store
    from finrl_pod.errors import DataError
    from finrl_pod_app.prices.stored_prices import check_free, store_prices

    tickers = _tickers(symbols)
    if not tickers:
        raise DataError(f"--symbols must name tickers separated by commas, such as AAPL,MSFT; got {symbols!r}")
    first, last = first_moment(start, "--start"), last_moment(end, "--end")
    if first > last:
        raise DataError(f"--start {start} is after --end {end}: swap the dates")
    store = Store()
    # Check the name first: fetching can take minutes.
    store.check_name(name)
    store.check_room()
    if not replace:
        check_free(store, name)
    panel = open_source(source).fetch(tickers, first, last, bar)
    if missing := [ticker for ticker in tickers if ticker not in panel.symbols]:
        print_note(f"{source} delivered no bars of {', '.join(missing)}")
    query = {"source": source, "symbols": list(tickers), "start": start, "end": end, "bar": bar}
    _show_saved(store_prices(dataclasses.replace(panel, name=name), query, replace=replace), as_json)


Payment = Literal["cash", "reinvested"]


@app.command("import", epilog="Example: finrl-pod data import prices.csv --name mine")
def import_file(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="CSV or Parquet, long (time, symbol, close, ...) or wide (time, then one column of closes for each "
            "ticker), as a provider writes it, or a folder with one file for each ticker.",
        ),
    ],
    name: NewName,
    bar: Bar = "1d",
    adjusted: Adjusted = None,
    allow_gaps: Annotated[
        bool, typer.Option("--allow-gaps", help="Make bars missing between a ticker's first and last untradable.")
    ] = False,
    drop_repeated_bars: DropRepeatedBars = None,
    allow_repeated_bars: AllowRepeatedBars = None,
    symbol: Symbol = None,
    decimal: Decimal = None,
    date_format: DateFormat = None,
    separator: Separator = None,
    columns: Columns = None,
    ignore_unknown: IgnoreUnknown = None,
    members: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Columns symbol, from, to: when each ticker belonged to the universe."),
    ] = None,
    actions: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Columns symbol, date, split, dividend: for prices as they were traded."),
    ] = None,
    dividends: Annotated[
        Payment, typer.Option(help="Pay the dividends of --actions in cash, or adjust the prices before them.")
    ] = "cash",
    memory: Annotated[float, typer.Option(min=0.1, help="Memory that reading the file may take, in GB.")] = 1.5,
    replace: Replace = False,
    as_json: Json = False,
) -> None:
    """Check a file of prices and store it. Errors name the line; nothing is stored then."""
    read_options = file_options(locals())
    check_exists(file, "file")
    from finrl_pod.data.sources.bounded import ReadLimits
    from finrl_pod.data.store import Store
    from finrl_pod_app.prices.stored_prices import import_prices, store_prices

    store = Store()
    store.check_name(name)
    store.check_room()
    panel, query = import_prices(
        file,
        limits=ReadLimits(memory=int(memory * 1e9)),
        members=members,
        actions=actions,
        dividends=dividends,
        bar=bar,
        allow_gaps=allow_gaps,
        **read_options,
    )
    _show_saved(store_prices(dataclasses.replace(panel, name=name), query, replace=replace), as_json)
    if not as_json:
        preset = " --preset minutes" if bar == "1m" else ""
        echo(
            f"Next: finrl-pod init {name}.toml --data {name}{preset}\n"
            f"then: finrl-pod tournament {name}.toml --out runs/{name}  # {TIMES_OF_PRESETS}"
        )


@app.command("update", epilog="Example: finrl-pod data update mine --from newer.csv")
def update(
    name: Stored,
    file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="File of newer prices, with some of the stored bars. Default: the source or file of the panel.",
        ),
    ] = None,
    add: Annotated[str, typer.Option(metavar="SYMBOLS", help="Tickers of the source that join, by commas.")] = "",
    as_json: Json = False,
) -> None:
    """Append newer prices, and adjust the earlier ones for splits and dividends since then.

    A ticker without newer prices keeps its history; new ones join. On failure the panel stays unchanged.
    """
    if file is not None:
        check_exists(file, "file")
    from finrl_pod_app.prices.price_updates import update_prices

    result = update_prices(name, file, add=_tickers(add))
    print_result(result.document(), result.text(), as_json=as_json)


@app.command("delete", epilog="Example: finrl-pod data delete mine")
def delete(name: Stored, as_json: Json = False) -> None:
    """Delete a stored panel, without asking. Runs made on it keep their reports and agents."""
    from finrl_pod.data.store import BUILT_IN, Store
    from finrl_pod_app.prices.stored_prices import consequence, existing

    store = Store()
    manifest = None if name in BUILT_IN else existing(store, name)
    store.delete(name)
    text = f"deleted {name}"
    if manifest is not None:
        text += (
            f": {count_text(manifest.bars, 'bar')}, {manifest.start} to {manifest.end}\n{consequence(manifest.sha256)}"
        )
    print_result({"deleted": name, "sha256": manifest and manifest.sha256}, text, as_json=as_json)


def _tickers(text: str) -> tuple[str, ...]:
    """The tickers of a list that is separated by commas, in capital letters."""
    return tuple(dict.fromkeys(s.strip().upper() for s in text.split(",") if s.strip()))


def _show_saved(result: StoredPrices, as_json: bool) -> None:
    manifest = result.manifest
    _show(manifest, as_json)
    if result.status == "unchanged" and not as_json:
        echo(f"{manifest.name} was already stored, unchanged.")
    if result.replaced_sha256 is not None:
        from finrl_pod_app.prices.stored_prices import consequence

        print_note(f"replaced the earlier prices of {manifest.name}. {consequence(result.replaced_sha256)}")


def _show(manifest: Manifest, as_json: bool) -> None:
    if as_json:
        print_json(manifest.to_dict())
    else:
        show_manifest(manifest)


def show_manifest(manifest: Manifest) -> None:
    """Print the source, contents and known flaws of a panel."""
    from rich.text import Text

    from finrl_pod.prices import fills_sentence, read_as_sentence, taken_as
    from finrl_pod_app.cli.console import plain_table
    from finrl_pod_app.setup.terminal import make_console

    m = manifest
    adjustment = "yes" if m.adjusted else "no"
    if taken_as(m.adjusted) in m.flaws:
        adjustment = f"assumed {'' if m.adjusted else 'not '}adjusted (not checked)"
    query = ", ".join(f"{k}={','.join(v) if isinstance(v, list) else v}" for k, v in m.query.items())
    index = m.benchmark and f"{m.benchmark['name']}{' (price only, no dividends)' if m.benchmark['price_only'] else ''}"
    rows = {
        "source": "built-in: " + m.source if m.builtin else m.source,
        "query": query,
        "bars": f"{m.bars:,} ({m.bar}), {m.start} to {m.end}",
        count_text(len(m.symbols), "ticker"): ", ".join(m.symbols),
        "columns": ", ".join(m.columns),
        "fills": fills_sentence(m.columns),
        "sectors": ", ".join(dict.fromkeys(m.sectors or ())),
        "benchmark": str(index or ""),
        "adjusted": adjustment,
        "read as": read_as_sentence(m.read_as),
        "created": m.created,
        "sha256": m.sha256,
    }
    table = plain_table(m.name, ("panel", "contents"), multiline=("contents",))
    for key, value in rows.items():
        if value:
            table.add_row(key, Text(value))
    for i, flaw in enumerate(m.flaws):
        table.add_row("" if i else "flaws", Text(flaw))
    make_console().print(table)


features_app = typer.Typer(help="List features, and see what they say about later returns.", no_args_is_help=True)


ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE.toml", help="Prices, splits and tables of a config.")
]


@features_app.command("list", epilog="Example: finrl-pod features list --data us74")
def list_features(
    data: Annotated[str | None, typer.Option(help="Only those that this stored panel allows.")] = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """List the features that agents and strategies can use; with --config also features of its tables."""
    from finrl_pod.data import features

    names = features.names()
    if data is not None or config is not None:
        from finrl_pod.settings.run import RunConfig, load
        from finrl_pod_app.prices.stored_prices import load_panel
        from finrl_pod_app.setup.overrides import override_config

        names = features.available(load_panel(override_config(load(config) if config else RunConfig(), data)))
    print_result({"features": list(names)}, "\n".join(names), as_json=as_json)


@features_app.command("analyse", epilog="Example: finrl-pod features analyse momentum_252_21 return_5 --horizons 1,21")
def analyse(
    names: Annotated[list[str] | None, typer.Argument(metavar="[FEATURE]...", help="Default: all.")] = None,
    data: Annotated[str | None, typer.Option(help="Stored panel; default: sample.")] = None,
    config: ConfigFile = None,
    split: Annotated[
        Literal["train", "validation", "test", "all"], typer.Option(help="Bars, as split by `init`.")
    ] = "train",
    start: Annotated[str | None, typer.Option(metavar="DATE", help="First day.")] = None,
    end: Annotated[str | None, typer.Option(metavar="DATE", help="Last day.")] = None,
    horizons: Annotated[str, typer.Option(metavar="1,5,21", help="Bars ahead.")] = "1,5,21,63",
    quantiles: Annotated[
        int | None, typer.Option(help="Groups of assets by rank; by default 5, or one for each of fewer assets.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Information coefficient by horizon, returns by quantile, and turnover of features; on training bars.

    Choosing features by their figures on test bars makes the test worthless.
    """
    from finrl_pod.errors import InputError
    from finrl_pod_app.cli import console
    from finrl_pod_app.cli.console_evaluation import show_features
    from finrl_pod_app.evaluation import feature_analysis

    try:
        bars_ahead = [int(text) for text in horizons.split(",")]
    except ValueError:
        raise InputError(f"--horizons takes numbers of bars such as 1,5,21, got {horizons!r}") from None
    with console.step_display(quiet=as_json) as on_step:
        document = feature_analysis.analyse_features(
            names or (), data=data, config=config, split=split, start=start, end=end, horizons=bars_ahead,
            quantiles=quantiles, on_feature=on_step,
        )  # fmt: skip
    print_result(document, show_features, as_json=as_json)
