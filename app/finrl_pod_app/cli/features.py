"""Commands `features list` and `features analyse`."""

from __future__ import annotations

from typing import Annotated

import typer

from finrl_pod_app.cli.options import Json, print_json

app = typer.Typer(help="List features, and see what they say about later returns.", no_args_is_help=True)


@app.command("list", epilog="Example: finrl-pod features list --data us74")
def list_features(
    data: Annotated[str | None, typer.Option(help="Only those that this stored panel allows.")] = None,
    as_json: Json = False,
) -> None:
    """List the features that agents and strategies can use."""
    from finrl_pod.data import features

    names = features.names()
    if data is not None:
        from finrl_pod.data.store import Store

        names = features.available(Store().load(data))
    if as_json:
        print_json({"features": list(names)})
    else:
        typer.echo("\n".join(names))


@app.command("analyse", epilog="Example: finrl-pod features analyse momentum_252_21 return_5 --horizons 1,21")
def analyse(
    names: Annotated[list[str] | None, typer.Argument(metavar="[FEATURE]...", help="Default: all.")] = None,
    data: Annotated[str | None, typer.Option(help="Stored panel; default: sample.")] = None,
    split: Annotated[str, typer.Option(help="train, validation, test (as split by `init`) or all bars.")] = "train",
    start: Annotated[str | None, typer.Option(metavar="DATE", help="First day.")] = None,
    end: Annotated[str | None, typer.Option(metavar="DATE", help="Last day.")] = None,
    horizons: Annotated[str, typer.Option(metavar="1,5,21", help="Bars ahead.")] = "1,5,21,63",
    quantiles: Annotated[int, typer.Option(help="Groups of assets by rank.")] = 5,
    as_json: Json = False,
) -> None:
    """Information coefficient by horizon, returns by quantile, and turnover of features; on training bars.

    Choosing features by their figures on test bars makes the test worthless.
    """
    from finrl_pod.errors import InputError
    from finrl_pod_app.cli import console
    from finrl_pod_app.cli.console_evaluation import show_features
    from finrl_pod_app.evaluation import feature_analysis

    if split not in ("train", "validation", "test", "all"):
        raise InputError(f"--split must be train, validation, test or all, got {split!r}")
    try:
        ahead = [int(text) for text in horizons.split(",")]
    except ValueError:
        raise InputError(f"--horizons takes numbers of bars such as 1,5,21, got {horizons!r}") from None
    with console.step_display(quiet=as_json) as on_step:
        document = feature_analysis.analyse_features(
            names or (), data=data, split=split, start=start, end=end, horizons=ahead, quantiles=quantiles,
            on_feature=on_step,
        )  # fmt: skip
    if as_json:
        print_json(document)
    else:
        show_features(document)
