"""Backtests, tournaments, audits and verdicts of `import finrl_pod as fp`; the commands do the same from the shell."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pandas as pd
from finrl_pod_strategies.policy import ModelStrategy, PolicyStrategy
from finrl_pod_strategies.user_strategy import UserStrategy, load_strategy

from finrl_pod.arguments import check_arguments
from finrl_pod.data.sources.feature_tables import with_newest_tables
from finrl_pod.data.splits import make_splits
from finrl_pod.data.store import Store
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import DataError, InputError, RunError
from finrl_pod.evaluate.intrabar_orders import OrderRules
from finrl_pod.files import read_json
from finrl_pod.market.mandate import active_mandate
from finrl_pod.market.mandate_checks import validate_mandate
from finrl_pod.protocols import Strategy
from finrl_pod.settings.run import MandateConfig, RunConfig
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.types import Panel
from finrl_pod.user_files import is_custom, user_object
from finrl_pod_app.api import markets, results
from finrl_pod_app.api import setup as api
from finrl_pod_app.api.training import TrainedAgent, progress_shown
from finrl_pod_app.evaluation.backtests import BacktestOptions, check_settings_apply, in_sample, prepare
from finrl_pod_app.evaluation.champions import scored_strategy, strategy_identity, trades_scores
from finrl_pod_app.evaluation.finished_backtest import (
    REFERENCES,
    BacktestInputs,
    BacktestTerms,
    Execution,
    FinishedBacktest,
    SplitName,
    run_test,
)
from finrl_pod_app.evaluation.orders import MAX_AGE, OrderOptions, account_orders, run_champion
from finrl_pod_app.prices.stored_prices import backtest_period, check_prices, load_panel, splits_of_panel
from finrl_pod_app.setup.output_folder import BACKTEST, rewritable_folder
from finrl_pod_app.setup.overrides import TRAINING_SETTINGS, override_config
from finrl_pod_app.setup.presets import for_stored_panel

if TYPE_CHECKING:
    from finrl_pod_app.evaluation.audit import Audit


IndexOrName = Annotated[str | pd.Series, "text or a Series of index values"]
OrderShares = Annotated[Mapping[str, float], 'shares such as {"stop_loss": 0.05}']


@check_arguments
def backtest(
    strategy: Strategy | TrainedAgent | str | object,
    prices: api.Setup | markets.Prices | None = None,
    *,
    split: SplitName = "validation",
    start: str | None = None,
    end: str | None = None,
    cost_bps: float | None = None,
    cash: float | None = None,
    config: markets.ConfigSource | None = None,
    settings: markets.Settings | None = None,
    execution: Execution = "weights",
    orders: OrderShares | None = None,
    flows: str | Path | float | None = None,
    benchmark: IndexOrName | None = None,
    capacity: bool = False,
    adv: float | None = None,
    out: str | Path | None = None,
) -> results.Backtest:
    """Backtest a strategy on one split of the prices, by default validation.

    strategy: an agent or the path of a saved one, the name of a baseline, file.py:Class, an object with
    `target_weights(window, positions)`, a model of another library with `predict(observation, deterministic=True)` that
    was trained on `market.gym()`, a function of a panel (or file.py:function) whose values [bars, symbols] are scores
    under the mandate of the config, or the result or folder of a tournament: its champion is tested on the prices and
    rules of the run. prices: a market of `make_market`, or prices as in `load_prices`; by default the market that an
    agent was trained on, the prices of a run, and the built-in sample for others.

    split: "train", "validation", "test" or "all"; start, end: dates that replace its own. config: rules of the market
    as in `make_market`, by default the rules of `prices`. cost_bps, cash, settings: cost of a trade in basis points of
    its value, starting cash, and fields of [environment] such as {"environment.delay": 2}, instead of the config.
    execution: "paper" trades with the orders of the paper-trading daemon. orders: stops and limits, such as
    {"stop_loss": 0.05}. flows: deposits and, negative, withdrawals: a CSV file with columns date and amount, or an
    amount for each month. benchmark: a symbol (bought and held) of the prices, or of the stored ones that they were
    selected from, a Series of index values by date, a baseline, or file.py:Class to compare with. capacity: also
    simulate larger accounts; adv: average daily volume of an asset in currency for it, where data have none. out:
    folder for report.html, which needs no other file, and bars, weights, trades and attribution as tables. Figures
    equal `finrl-pod backtest` with the same options. Each test result of a strategy that is not a baseline counts as a
    look. Raises InputError and DataError for bad input.
    """
    if isinstance(strategy, Panel | pd.DataFrame | api.Setup):
        raise InputError("the strategy comes first, then the prices: fp.backtest('equal_weight', prices)")
    rules = None if config is None else markets.load_config(config)
    terms = _terms(execution, orders, flows, benchmark, capacity, adv)
    terms.check(strategy)
    folder = None if out is None else Path(out)
    options: BacktestOptions = {"split": split, "start": start, "end": end, "cost_bps": cost_bps, "cash": cash}
    options["settings"] = settings or {}
    with rewritable_folder(folder, BACKTEST):
        if (run := _folder_of_run(strategy)) is not None:
            inputs = _champion_inputs(run, prices, rules, options)
        else:
            inputs = _inputs(strategy, prices, rules, options)
        tested = run_test(inputs, terms, for_report=folder is not None)
        if folder is not None:
            tested.write(folder)
    return _result(tested)


def _terms(
    execution: Execution,
    orders: OrderShares | None,
    flows: str | Path | float | None,
    benchmark: IndexOrName | None,
    capacity: bool,
    adv: float | None,
) -> BacktestTerms:
    order_rules = OrderRules.from_shares(orders) if orders else None
    return BacktestTerms(execution, orders=order_rules, flows=flows, benchmark=benchmark, capacity=capacity, adv=adv)


def _inputs(
    strategy: object,
    prices: api.Setup | markets.Prices | None,
    config: RunConfig | None,
    options: BacktestOptions,
) -> BacktestInputs:
    """The strategy with its prices, market and bars."""
    if isinstance(strategy, TrainedAgent) and prices is None:
        prices = strategy.market
    rules = config or (prices.config if isinstance(prices, api.Setup) else None)
    overrides = (None, options["cost_bps"], options["cash"], options["settings"])
    given_rules = override_config(rules or RunConfig(), *overrides)
    tested_strategy, counts_as_look = _strategy_of(strategy, prices, given_rules)
    if isinstance(tested_strategy, PolicyStrategy):
        own_rules = _rules_of_agent(tested_strategy)
        if rules is not None:
            _check_mandate(own_rules, rules)
        given_rules = override_config(rules or own_rules, *overrides)
        tested_strategy = tested_strategy.under(given_rules.environment)
    rules = given_rules
    check_settings_apply(tested_strategy, options["settings"])
    if prices is None:
        prices = "sample"
        if isinstance(tested_strategy, PolicyStrategy) and tested_strategy.data_sha256 != Store().show(prices).sha256:
            raise InputError(f"{tested_strategy.name} was trained on other prices than the sample: pass the prices")
    if isinstance(prices, api.Setup):
        panel = prices.panel
        splits = rules.splits
    else:
        panel = with_newest_tables(markets.load_prices(prices), tested_strategy)
        splits = splits_of_panel(panel)
    check_prices(rules.environment, panel)
    if isinstance(tested_strategy, PolicyStrategy):
        tested_strategy.check_universe(panel.symbols)
    if trades_scores(tested_strategy):
        validate_mandate(rules.mandate, rules.environment, panel.symbols)
    split = options["split"] or "validation"
    start, end = options["start"], options["end"]
    first, last = backtest_period(panel, start, end, splits, split)
    fit = (0, len(panel.times) - 1) if tested_strategy.feature_names else (first, last)
    training_market = strategy.market if isinstance(strategy, TrainedAgent) else None
    if isinstance(tested_strategy, ModelStrategy) and isinstance(prices, api.Setup):
        training_market = prices
    in_sample_warning = None
    if training_market is not None and training_market.panel.sha256 == panel.sha256:
        training_dates = training_market.config.splits.train
        in_sample_warning = in_sample(*training_dates, panel.times[first : last + 1], "the agent was trained")
    name = tested_strategy.name
    return BacktestInputs(
        f"own {name}" if counts_as_look and name in REFERENCES else name,
        tested_strategy,
        rules,
        panel,
        build_market(panel, tested_strategy.feature_names, fit, rules.environment.fill),
        first,
        last,
        strategy_identity(tested_strategy) if counts_as_look else None,  # before it changes its attributes
        in_sample_warning,
        None if start or end else split,
        shows_test=last >= _test_start(panel, rules if isinstance(prices, api.Setup) else None),
    )


def _champion_inputs(
    folder: Path, prices: api.Setup | markets.Prices | None, config: RunConfig | None, options: BacktestOptions
) -> BacktestInputs:
    """The champion of a run with the prices and rules of the run."""
    if prices is not None:
        panel = prices.panel if isinstance(prices, api.Setup) else markets.load_prices(prices)
        if panel.sha256 != RunDirectory.open(folder).data_sha256:
            raise InputError(f"the champion of {folder} is tested on the run's own prices; leave out others")
        markets.stored_panel(panel)  # where the run finds them
    if config is not None:
        raise InputError(f"the champion of {folder} is tested under the run's own rules; leave out config")
    if isinstance(prices, api.Setup):
        _check_own_rules(folder, prices.config)
    return prepare(folder, fix=f", or pass them: fp.backtest({str(folder)!r}, prices)", **options)


def _rules_of_agent(agent: PolicyStrategy) -> RunConfig:
    """The rules that an agent was trained under; its splits and features are not among them."""
    return RunConfig(environment=agent.rules, mandate=agent.mandate or MandateConfig(base="none"))


def _check_mandate(own: RunConfig, rules: RunConfig) -> None:
    """Raise InputError for rules with another mandate than an agent has: it belongs to what the agent learned."""
    (trained, other) = (active_mandate(config.mandate) for config in (own, rules))
    if trained == other:
        return
    names = [field.name for field in dataclasses.fields(MandateConfig)]
    differing = [name for name in names if getattr(own.mandate, name) != getattr(rules.mandate, name)]
    name = "base" if None in (trained, other) else differing[0]
    raise InputError(
        f"an agent keeps the mandate that it was trained under: mandate.{name} = {getattr(own.mandate, name)!r}, and "
        f"these rules have {getattr(rules.mandate, name)!r}; test it on a market with its own mandate, or train another"
    )


def _check_own_rules(folder: Path, rules: RunConfig) -> None:
    """Raise InputError for a market with other rules than the run in a folder, whose champion keeps its own."""
    own = RunDirectory.open(folder).config
    _check_mandate(own, rules)
    for field in dataclasses.fields(own.environment):
        own_value, value = (getattr(config.environment, field.name) for config in (own, rules))
        if own_value != value and field.name not in TRAINING_SETTINGS:
            raise InputError(
                f"the champion of {folder} is tested under the run's own rules, environment.{field.name} = "
                f"{own_value!r}, and the market has {value!r}; give settings to change them"
            )


def _result(tested: FinishedBacktest) -> results.Backtest:
    inputs = tested.inputs
    result = tested.results[inputs.name]
    trades = tested.trades()
    return results.Backtest(
        result,
        inputs.period or "dates",
        None if tested.look is None else tested.look.number,
        results.NO_TRADES if trades is None else trades,
        {name: other for name, other in tested.results.items() if name != inputs.name},
        inputs.in_sample,
        benchmark=None if tested.benchmark_account is None else tested.base,
        capacity=tested.capacity,
    )


@check_arguments
def orders(
    strategy: Strategy | TrainedAgent | results.TournamentResult | str | Path | object,
    prices: api.Setup | markets.Prices | None = None,
    holdings: Mapping[str, float] | str | Path | None = None,
    *,
    cash: float = 0.0,
    date: str | None = None,
    whole_shares: bool = False,
    max_age: int = MAX_AGE,
    why: bool = False,
) -> pd.DataFrame:
    """What to buy and sell after the close of `date`, by default of the last bar: the orders of a backtest.

    strategy, prices: as in `backtest`; a run also decides on newer prices. holdings: shares by symbol, or a CSV file
    with columns symbol and shares; beside a file the virtual holdings of a mandate are kept for the next decision.
    cash: currency. whole_shares: cut orders towards zero. max_age: trading days that the last prices may be old without
    a date. why: add the columns `score` and `why`: what an agent decided from, and the contribution of each feature to
    it. Returns a row for each symbol, see `finrl_pod_app.evaluation.orders.OrderRow` and `ExplainedRow`;
    `attrs["cash_left"]` has the cash after the orders. Raises InputError and DataError for bad input.
    """
    if isinstance(strategy, TrainedAgent) and prices is None:
        prices = strategy.market
    config = prices.config if isinstance(prices, api.Setup) else RunConfig()
    order_strategy: Strategy
    if (folder := _folder_of_run(strategy)) is not None:
        (order_strategy, config) = run_champion(folder)
    else:
        (order_strategy, _) = _strategy_of(strategy, prices, config)
    if isinstance(prices, api.Setup):
        panel = prices.panel
    else:
        panel = load_panel(config) if prices is None else markets.load_prices(prices)
    if isinstance(holdings, str):
        holdings = Path(holdings)
    options = OrderOptions(cash, date, whole_shares, api.whole_number("max_age", max_age, 0), why)
    result = account_orders(order_strategy, config, panel, holdings, options)
    frame = result.to_frame()
    frame.attrs["cash_left"] = result.cash_left
    return frame


def _folder_of_run(run: object) -> Path | None:
    """The folder of a run or of its result; None for anything else."""
    if isinstance(run, results.TournamentResult):
        return run.folder
    return Path(run) if isinstance(run, str | Path) and Path(run).is_dir() else None


def _test_start(panel: Panel, config: RunConfig | None) -> int:
    """First bar of the test split; the end of the panel if it is too short for splits."""
    try:
        return make_splits(panel.times, splits_of_panel(panel) if config is None else config.splits).test.first
    except DataError:
        return len(panel.times)


def _strategy_of(target: object, prices: object, config: RunConfig) -> tuple[Strategy, bool]:
    """A strategy, and whether its results on test count as looks.

    prices: market; a model needs one. config: its mandate trades scores.
    """
    if inspect.isroutine(target) or (isinstance(target, str) and _names_function(target)):
        return scored_strategy(target, config), True
    if isinstance(target, TrainedAgent):
        return target.strategy(), True
    if not hasattr(target, "target_weights") and callable(getattr(target, "predict", None)):
        if not isinstance(prices, api.Setup):
            raise InputError(
                f"a model with predict(), such as {type(target).__name__}, is tested on the market that it was trained "
                "on: fp.backtest(model, market)"
            )
        model: Any = target
        return prices.strategy(model), True
    if isinstance(target, Path) or (isinstance(target, str) and api.is_saved(target)):
        return api.load(target), True
    if isinstance(target, str):
        return load_strategy(target), is_custom(target)
    if isinstance(target, type):
        instance: object = target()
        return UserStrategy(lambda: instance, target.__name__), True
    if not callable(getattr(target, "target_weights", None)):
        raise InputError(
            f"a strategy needs a method target_weights(window, positions), {type(target).__name__} has none"
        )
    if isinstance(target, Strategy):
        return target, True
    return UserStrategy(lambda: target, type(target).__name__), True


def _names_function(text: str) -> bool:
    """Whether a text names a function as file.py:function. Raises InputError for a file that cannot be used."""
    return is_custom(text) and inspect.isroutine(user_object(text, f"the strategy {text}"))


@check_arguments
def run_tournament(
    config: markets.ConfigSource = markets.DEFAULT_PRESET,
    prices: markets.Prices | None = None,
    *,
    out: str | Path,
    settings: markets.Settings | None = None,
    cost_bps: float | None = None,
    test: bool = True,
    resume: bool = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    progress: bool | None = None,
) -> results.TournamentResult:
    """Train a population, pick its champion on validation and test it once; the run is written into `out`.

    config: a RunConfig, a TOML file, or a preset: "quick" (too short to learn much), "laptop", "gpu" or "minutes".
    prices: used instead of the prices of the config, stored under their name; splits and features then fit them. test:
    with False the test period stays unseen, and the result has the metrics of the champion on validation and no
    verdict; resume=True tests it later. settings, cost_bps: passed to `make_market`. progress: show stages, rate and
    time left; by default on a terminal and in a notebook.
    """
    from finrl_pod_app.cli.console import progress_display
    from finrl_pod_app.report.records import RunReport
    from finrl_pod_app.training.tournaments import run_tournament as run

    out = Path(out)
    run_config = _run_config(config, prices, settings, cost_bps)
    with progress_display(quiet=not progress_shown(progress)) as report:
        result = run(run_config, out, resume=resume, device=device, progress=report, test=test)
    return results.TournamentResult(result.to_dict() if isinstance(result, RunReport) else result, out)


@check_arguments
def load_run(folder: str | Path) -> results.TournamentResult:
    """The result of a finished tournament from its folder. Raises RunError for a folder without one."""
    path = Path(folder)
    names = ("report.json", "result.json")  # the second on an environment without a market
    file = next((path / name for name in names if (path / name).is_file()), None)
    if file is None:
        RunDirectory.open(path)  # a sentence for a folder that is none
        raise RunError(
            f"{path} holds no result: the tournament was not finished or not tested; repeat it with resume=True"
        )
    document: dict[str, Any] = read_json(file)
    if "champion" not in document:
        raise RunError(f"{file} is the report of a backtest, not of a tournament")
    return results.TournamentResult(document, path)


def _run_config(
    config: markets.ConfigSource,
    prices: markets.Prices | None,
    settings: markets.Settings | None,
    cost_bps: float | None,
) -> RunConfig:
    """The config of a run; its prices are stored."""
    config = markets.load_config(config)
    if prices is not None:
        config = for_stored_panel(config, Store(), markets.stored_panel(markets.load_prices(prices)))
    return markets.with_settings(config, settings, cost_bps)


@check_arguments
def audit(
    target: Strategy | TrainedAgent | results.TournamentResult | str | Path | object,
    prices: api.Setup | markets.Prices | None = None,
    *,
    progress: bool | None = None,
) -> results.AuditResult:
    """Audit the champion of the result or folder of a tournament, an agent, or a strategy, on a stored panel.

    target: also the name of a baseline, file.py:Class, an object or class with `target_weights(window, positions)`, or
    a model as in `backtest`. prices: a market, or prices to be stored; by default the market that an agent was
    trained on, else the sample. A market brings its rules. progress: show the checks, as in `train`. Raises
    InputError for an unknown target.
    """
    from finrl_pod_app.cli.console import step_display

    folder = _folder_of_run(target) or (target if isinstance(target, Path) else None)
    with step_display(quiet=not progress_shown(progress)) as on_step:
        return results.AuditResult(_audited(target, folder, prices, on_step).to_dict(), folder)


def _audited(
    target: object, folder: Path | None, prices: api.Setup | markets.Prices | None, on_step: Callable[[str], None]
) -> Audit:
    from finrl_pod_app.evaluation.audit import audit_run, audit_strategy

    if folder is not None:
        return audit_run(folder, on_step=on_step)
    if isinstance(target, TrainedAgent) and prices is None:
        prices = target.market
    if isinstance(prices, api.Setup):
        panel_name = None
        config = override_config(prices.config, data=markets.stored_panel(prices.panel))
    else:
        panel_name = prices if isinstance(prices, str | None) else markets.stored_panel(markets.load_prices(prices))
        config = None
    if isinstance(target, str) and config is None:
        return audit_strategy(target, panel_name, on_step=on_step)
    decides = any(callable(getattr(target, name, None)) for name in ("target_weights", "predict"))
    if not isinstance(target, str | TrainedAgent) and not decides:
        raise InputError(
            "an audit takes a tournament, the folder of a run, an agent, the name of a baseline, file.py:Class, or a "
            f"strategy with target_weights(window, positions), got {target!r:.60}"
        )
    strategy, _ = _strategy_of(target, prices, config or RunConfig())
    return audit_strategy(strategy, panel_name, config=config, on_step=on_step)


@check_arguments
def check(target: object, kind: str | None = None) -> results.CheckResult:
    """Try a custom extension on a small random market, as `finrl-pod check` does, and tell what is wrong.

    target: a feature (a function of a panel), the class of a strategy, or the name of any extension as file.py:Name.
    kind: kind of a named extension; by default inferred from the object. Raises InputError for an extension that cannot
    be found or used.
    """
    from finrl_pod_app.setup.extension_checks import check_extension, check_object
    from finrl_pod_app.setup.extensions import find_extension

    if isinstance(target, str | Path):
        name = str(target)
        (kind, _) = find_extension(str(target), kind)
        faults = check_extension(name, kind)
    else:
        name = getattr(target, "__name__", type(target).__name__)
        kind, faults = check_object(target)
    rows = [{"rule": fault.rule, "message": fault.message} for fault in faults]
    return results.CheckResult({"target": name, "kind": kind, "passed": not faults, "faults": rows})


@check_arguments
def walkforward(
    config: markets.ConfigSource = markets.DEFAULT_PRESET,
    prices: markets.Prices | None = None,
    *,
    out: str | Path,
    settings: markets.Settings | None = None,
    cost_bps: float | None = None,
    folds: int = 6,
    seeds: int = 3,
    resume: bool = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> results.WalkforwardResult:
    """Retrain on each fold and test on the bars that follow, see `finrl-pod walkforward`.

    prices, settings, cost_bps: the arguments of `run_tournament`. Raises InputError for invalid arguments.
    """
    from finrl_pod_app.training.walkforward import run_walkforward

    out = Path(out)
    folds = api.whole_number("folds", folds, 1)
    seeds = api.whole_number("seeds", seeds, 1)
    run_config = _run_config(config, prices, settings, cost_bps)
    document = run_walkforward(run_config, out, folds=folds, seeds=seeds, resume=resume, device=device)
    return results.WalkforwardResult(document, out)


@check_arguments
def judge(run: str | Path | results.TournamentResult) -> results.VerdictResult:
    """The verdict of a finished run, rule by rule. Raises RunError for a folder without one."""
    from finrl_pod.promotion.verdict import read_verdict
    from finrl_pod_app.report.records import report_of_run

    folder = run.folder if isinstance(run, results.TournamentResult) else Path(run)
    if folder is None:
        raise RunError("run is a result without a folder; give the folder of a run")
    return results.VerdictResult(read_verdict(folder).to_dict() | report_of_run(folder).verdict_context(), folder)
