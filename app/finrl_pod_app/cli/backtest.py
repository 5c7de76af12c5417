"""`finrl-pod backtest`, `finrl-pod sweep` and `finrl-pod orders`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from finrl_pod_app.cli.options import (
    Json,
    check_exists,
    check_panel,
    check_run_folder,
    echo,
    print_json,
    print_result,
    run_or_strategy,
    setting_option,
)

if TYPE_CHECKING:
    from finrl_pod.evaluate.intrabar_orders import OrderRules

Data = Annotated[str | None, typer.Option(help="Stored panel; default: the run's panel, or sample.")]
Cash = Annotated[float | None, setting_option("environment.cash")]
Setting = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Field of [environment], e.g. delay=2. Repeatable."),
]


Split = Literal["train", "validation", "test", "all"]


OnSplit = Annotated[
    Split | None,
    typer.Option(
        help="Bars to test on; default: test for finished runs, validation for others and for strategies of your own; "
        "for baselines test, or all bars with --data. --start and --end replace its dates."
    ),
]


Execution = Literal["weights", "paper"]


def backtest(
    run_dir: Annotated[
        Path | None, typer.Argument(metavar="[RUN_DIR]", help="Run whose champion is tested, or a baseline by name.")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="Baseline by name, or file.py:Class (runs as trusted code), instead of a run.")
    ] = None,
    scores: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="Function of the panel that returns scores [bars, symbols], traded under the mandate of a config.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG.toml", help="With --scores: prices, rules and mandate; default: as `finrl-pod init`."
        ),
    ] = None,
    data: Data = None,
    split: OnSplit = None,
    start: Annotated[str | None, typer.Option(metavar="DATE", help="First day, e.g. 2019-01-31.")] = None,
    end: Annotated[str | None, typer.Option(metavar="DATE", help="Last day.")] = None,
    cost_bps: Annotated[float | None, setting_option("environment.cost_bps")] = None,
    cash: Cash = None,
    setting: Setting = None,
    execution: Annotated[
        Execution, typer.Option(help="paper: trade with the orders of the paper-trading daemon.")
    ] = "weights",
    paper: Annotated[
        Path | None, typer.Option(metavar="CONFIG.toml", help="With --execution paper: config of a daemon.")
    ] = None,
    orders: Annotated[
        str | None,
        typer.Option(metavar="stop_loss=0.1,...", help="stop_loss, take_profit, trailing_stop, entry_limit; see docs."),
    ] = None,
    flows: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.csv|AMOUNT",
            help="Deposits and withdrawals (negative): columns date and amount, or an amount for each month.",
        ),
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(
            metavar="SYMBOL|NAME",
            help="Compare with a symbol of the stored prices (bought and held), traded or not, a baseline, or "
            "file.py:Class; default: the index, else equal weight.",
        ),
    ] = None,
    capacity: Annotated[
        bool, typer.Option("--capacity", help="Also simulate larger accounts with market impact; a minute.")
    ] = False,
    adv: Annotated[
        float | None,
        typer.Option(metavar="AMOUNT", help="With --capacity: average daily volume of an asset, where data have none."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the report, bars, weights and trades (Parquet and CSV).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Backtest a run's champion, a baseline or your own strategy, with the accounting and costs used in training."""
    from finrl_pod_strategies import check_strategy_name

    from finrl_pod.errors import InputError
    from finrl_pod_app.cli import console

    if sum(source is not None for source in (run_dir, strategy, scores)) != 1:
        raise InputError(
            "backtest takes one of a run directory, --strategy NAME and --scores FILE.py:NAME; see finrl-pod backtest "
            "--help"
        )
    if scores is None and config is not None:
        raise InputError("--config has the mandate of --scores FILE.py:NAME; for a strategy pass --data and --set")
    check_exists(config, "config")
    target: str | Path = str(scores or strategy) if run_dir is None else run_or_strategy(run_dir)
    if isinstance(target, str) and scores is None:
        check_strategy_name(target)
    check_exists(paper, "config")
    check_panel(data)
    daemon = None
    if paper is not None:
        from finrl_pod.paper.settings import load

        daemon = load(paper)
    order_rules = None if orders is None else _orders(orders)
    from finrl_pod.settings.run import RunConfig
    from finrl_pod.settings.run import load as load_config
    from finrl_pod_app.evaluation import backtests
    from finrl_pod_app.evaluation.finished_backtest import BacktestTerms

    scoring = None
    if scores is not None:
        scoring = RunConfig() if config is None else load_config(config)
    report = backtests.run_backtest(
        target,
        scoring=scoring,
        terms=BacktestTerms(
            execution=execution,
            paper=daemon,
            orders=order_rules,
            flows=flows,
            benchmark=benchmark,
            capacity=capacity,
            adv=adv,
        ),
        data=data,
        split=split,
        start=start,
        end=end,
        cost_bps=cost_bps,
        cash=cash,
        out=out,
        settings=setting or (),
        on_account=lambda size: echo(f"capacity: simulating an account of {size:,.0f}", err=True),
    )
    if as_json:
        print_json(report.to_dict())
    else:
        console.show_result(report, out)


def sweep(
    strategy: Annotated[
        list[str] | None, typer.Option(help="Baseline, random_weights, or file.py:Class. Repeatable.")
    ] = None,
    run: Annotated[list[Path] | None, typer.Option(help="Run whose champion is tested. Repeatable.")] = None,
    cost_bps: Annotated[str | None, typer.Option(metavar="0,5,10", help="Costs per side in basis points.")] = None,
    period: Annotated[
        list[str] | None, typer.Option(metavar="START:END", help="E.g. 2010-01-01:2014-12-31. Repeatable.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(metavar="0-9", help="Seeds for strategies that take one.")] = None,
    data: Data = None,
    split: OnSplit = None,
    cash: Cash = None,
    setting: Setting = None,
    out: Annotated[Path | None, typer.Option(help="Folder for sweep.json, sweep.parquet and sweep.csv.")] = None,
    as_json: Json = False,
) -> None:
    """Backtest every combination of strategies, costs, periods and seeds.

    Each strategy runs once per seed and period; the costs are applied to the same decisions.
    """
    from finrl_pod_strategies import check_strategy_name

    from finrl_pod.errors import InputError
    from finrl_pod_app.cli import console

    for name in strategy or ():
        check_strategy_name(name)
    for folder in run or ():
        check_run_folder(folder)
    check_panel(data)
    try:
        costs = [float(number) for number in cost_bps.split(",")] if cost_bps else []
    except ValueError:
        raise InputError(f"--cost-bps takes numbers such as 0,5,10, got {cost_bps!r}") from None
    periods = []
    for text in period or ():
        start, separator, end = text.partition(":")
        if not separator:
            raise InputError(f"--period takes START:END such as 2010-01-01:2014-12-31, got {text!r}")
        periods.append((start or None, end or None))
    numbers = _seeds(seeds)
    from finrl_pod_app.evaluation import sweeps

    with console.progress_display(quiet=as_json) as progress:
        document = sweeps.run_sweep(
            [*(strategy or ()), *(run or ())],
            costs=costs,
            periods=periods,
            seeds=numbers,
            data=data,
            split=split,
            cash=cash,
            settings=setting or (),
            out=out,
            progress=progress,
        ).to_dict()
    if as_json:
        print_json(document)
    else:
        console.show_sweep(document, out)


def orders(
    run_dir: Annotated[
        Path | None, typer.Argument(metavar="[RUN_DIR]", help="Run whose champion decides, or a baseline by name.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(help="Baseline by name, or file.py:Class (runs as trusted code), instead of a run."),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Stored panel; default: the panel of the run, or sample.")] = None,
    holdings: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Columns symbol and shares; default: nothing is held.")
    ] = None,
    cash: Annotated[float, typer.Option(help="Cash of the account.")] = 0.0,
    date: Annotated[
        str | None, typer.Option(metavar="DATE", help="Day of the decision; default: the last bar.")
    ] = None,
    whole_shares: Annotated[bool, typer.Option("--whole-shares", help="Cut orders to whole shares.")] = False,
    csv: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="Also write the rows to a file.")] = None,
    max_age: Annotated[
        int, typer.Option(min=0, metavar="DAYS", help="Refuse prices that end more trading days ago, without --date.")
    ] = 5,
    why: Annotated[
        bool, typer.Option("--why", help="Also show the score of each symbol, and what each feature contributed to it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what to buy and sell after the last close: the orders of a backtest, for holdings of your own.

    The virtual holdings of a mandate are kept beside the holdings, in FILE.state.json.
    """
    from finrl_pod_strategies import check_strategy_name

    from finrl_pod.errors import InputError
    from finrl_pod.files import write_text

    if (run_dir is None) == (strategy is None):
        raise InputError("orders takes one of a run directory and --strategy NAME; see finrl-pod orders --help")
    target = str(strategy) if run_dir is None else run_or_strategy(run_dir)
    if isinstance(target, str):
        check_strategy_name(target)
    check_panel(data)
    check_exists(holdings, "file")
    from finrl_pod_strategies.user_strategy import load_strategy

    from finrl_pod.data.sources.feature_tables import missing_tables
    from finrl_pod.settings.run import RunConfig
    from finrl_pod_app.cli.console_evaluation import show_orders
    from finrl_pod_app.evaluation.orders import OrderOptions, account_orders, run_champion
    from finrl_pod_app.prices.stored_prices import load_panel
    from finrl_pod_app.setup.overrides import override_config

    agent, config = run_champion(target) if isinstance(target, Path) else (load_strategy(target), RunConfig())
    config = override_config(config, data)
    if warning := missing_tables(agent):
        echo(f"Warning: {warning}.", err=True)
    options = OrderOptions(cash, date, whole_shares, max_age, why)
    result = account_orders(agent, config, load_panel(config), holdings, options)
    if csv is not None:
        write_text(csv, result.to_csv())
    print_result(result, show_orders, as_json=as_json)


def _orders(text: str) -> OrderRules:
    """Parse "stop_loss=0.1,take_profit=0.2"."""
    from finrl_pod.errors import InputError
    from finrl_pod.evaluate.intrabar_orders import OrderRules

    shares: dict[str, float] = {}
    for item in text.split(","):
        name, _, value = item.partition("=")
        try:
            shares[name.strip()] = float(value)
        except ValueError:
            raise InputError(f"--orders takes shares such as stop_loss=0.1,take_profit=0.2, got {text!r:.80}") from None
    return OrderRules.from_shares(shares, "--orders")


def _seeds(text: str | None) -> list[int]:
    """Parse "0-4,9" as [0, 1, 2, 3, 4, 9]."""
    from finrl_pod.errors import InputError
    from finrl_pod_app.evaluation.sweeps import MAX_COMBINATIONS

    seeds: list[int] = []
    for item in text.split(",") if text else ():
        match = re.fullmatch(r"([0-9]{1,19})(?:-([0-9]{1,19}))?", item)
        low, high = (int(x or match[1]) for x in match.groups()) if match else (1, 0)
        if high < low:
            raise InputError(f"--seeds takes numbers such as 0-9 or 1,5,7, got {text!r}")
        if len(seeds) + high - low >= MAX_COMBINATIONS:
            raise InputError(f"--seeds {text} is too large; the maximum is {MAX_COMBINATIONS:,} seeds")
        seeds += range(low, high + 1)
    return seeds
