"""Backtest one strategy and, for comparison, equal weight and the index: `finrl-pod backtest`."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack, get_args

from finrl_pod_strategies.policy import PolicyStrategy
from finrl_pod_strategies.user_strategy import UserStrategy, load_strategy

from finrl_pod.data.dates import first_moment, last_moment
from finrl_pod.data.sources.feature_tables import with_newest_tables
from finrl_pod.data.store import Store
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError
from finrl_pod.market.mandate_checks import validate_mandate
from finrl_pod.promotion.verdict import VERDICT_FILE
from finrl_pod.protocols import Strategy
from finrl_pod.settings.run import RunConfig, SplitConfig
from finrl_pod.types import MarketTensor, Panel, Times
from finrl_pod.user_files import is_custom
from finrl_pod_app.evaluation import champions
from finrl_pod_app.evaluation.finished_backtest import (
    REFERENCES,
    BacktestInputs,
    BacktestTerms,
    SplitName,
    run_test,
)
from finrl_pod_app.prices.stored_prices import (
    backtest_period,
    load_panel,
    load_run_panel,
    splits_of_panel,
    with_stored_splits,
)
from finrl_pod_app.report.columns import CHAMPION
from finrl_pod_app.report.records import RunReport
from finrl_pod_app.setup.output_folder import BACKTEST, rewritable_folder
from finrl_pod_app.setup.overrides import SettingValue, override_config, setting_values

if TYPE_CHECKING:
    from finrl_pod.tournament.run_directory import RunDirectory

DEFAULT_TERMS = BacktestTerms()


class BacktestOptions(TypedDict, total=False):
    """Options of a backtest: the prices, and settings that override the config.

    data: name of a stored panel. split: "train", "validation", "test" or "all"; start, end: first and last date instead
    of the dates of the split. cost_bps, cash, settings: override the environment, see `override_config`. seed: seed of
    a random strategy.
    """

    data: str | None
    split: SplitName | None
    start: str | None
    end: str | None
    cost_bps: float | None
    cash: float | None
    settings: Sequence[str] | Mapping[str, SettingValue]
    seed: int | None


def run_backtest(
    target: str | Path,
    *,
    out: Path | None = None,
    scoring: RunConfig | None = None,
    terms: BacktestTerms = DEFAULT_TERMS,
    on_account: Callable[[float], None] = lambda _: None,
    **options: Unpack[BacktestOptions],
) -> RunReport:
    """Backtest the champion of a run (a Path), a baseline (its name) or a custom `file.py:Class`.

    scoring: the target is `file.py:function` whose values on the panel are scores, traded under the mandate and the
    rules of this config, on its prices. terms: a config of a daemon among them also brings prices, symbols, capital and
    costs. on_account: called with the size of each larger account before it is simulated. settings: `name=value` lines
    of the environment.

    Without split and dates, a run is tested on its test split, a custom strategy on validation, and a baseline on the
    test split of the default config (on the sample) or on all bars. Returns the report; with `out` it is written, see
    `FinishedBacktest.write`.
    """
    symbols = () if terms.paper is None else terms.paper.symbols
    if terms.paper is not None and options.get("data") is None:
        options["data"] = terms.paper.broker.panel
    terms = dataclasses.replace(terms, cost_bps=options.get("cost_bps"), cash=options.get("cash"))
    terms.check(target)
    with rewritable_folder(out, BACKTEST):
        inputs = prepare(target, scoring=scoring, symbols=symbols, **options)
        tested = run_test(inputs, terms, on_account=on_account)
        return tested.report(with_band=False) if out is None else tested.write(out)


def prepare(
    target: str | Path,
    *,
    base: RunConfig | None = None,
    scoring: RunConfig | None = None,
    symbols: Sequence[str] = (),
    fix: str = "",
    **options: Unpack[BacktestOptions],
) -> BacktestInputs:
    """Load the strategy, the prices and the market, and find the bars to test.

    base: config that the arguments override if the target is not a run; by default RunConfig(). symbols: selected
    symbols; default: the selection of the config. fix: what to do if the prices of a run are no longer stored, for the
    message, instead of --data. scoring: config, see `run_backtest`. Errors in the target come before prices are read.
    """
    if options.get("split") not in (None, *get_args(SplitName)):
        raise InputError(f"split must be one of {', '.join(get_args(SplitName))}, got {options.get('split')!r}")
    if isinstance(target, Path):
        return _prepared_run(target, options, symbols, fix)
    seed = options.get("seed")
    config = _with_options(scoring or base or RunConfig(), options, symbols)
    config = config if scoring is None else with_stored_splits(config)
    strategy = load_strategy(target, seed) if scoring is None else champions.scored_strategy(target, config)
    if base is None:  # strategies next to a run are tested under the settings of its champion
        check_settings_apply(strategy, options.get("settings", ()))
    panel = load_panel(config)
    if scoring is not None:
        validate_mandate(config.mandate, config.environment, panel.symbols)
    is_stored = options.get("data") is not None
    splits = splits_of_panel(panel) if is_stored else config.splits
    baseline: SplitName = "all" if is_stored else "test"
    period = _period(panel, splits, options, "validation" if is_custom(target) else baseline)
    market = _market_for(strategy, config, panel, period.first, period.last)
    inputs = (_result_name(target, strategy), strategy, config, panel, market, period.first, period.last)
    return BacktestInputs(*inputs, _subject(strategy), period=period.name, shows_test=period.shows_test)


def check_settings_apply(strategy: Strategy, settings: Sequence[str] | Mapping[str, SettingValue]) -> None:
    """Raise InputError for a field of [environment] that changes nothing in a backtest of this strategy."""
    actions = strategy.rules.kind if isinstance(strategy, PolicyStrategy) else None
    for name in setting_values(settings):
        if name == "turbulence_limit" and actions is None:
            raise InputError(f"environment.{name} is a rule of trained agents; {strategy.name} decides itself")
        if name == "hmax" and actions != "stock_trading":
            raise InputError(
                f'environment.{name} is for agents of environment.kind = "stock_trading", and {strategy.name} is none'
            )


@dataclass(frozen=True)
class _Period:
    """Bars of a backtest. name: name of their split, None for dates. shows_test: whether the test split has begun."""

    first: int
    last: int
    name: SplitName | None
    shows_test: bool


def _period(panel: Panel, splits: SplitConfig | None, options: BacktestOptions, default: SplitName) -> _Period:
    """The bars that the options ask for. splits: None if the splits of a run do not fit the panel."""
    split = options.get("split") or default
    start = options.get("start")
    end = options.get("end")
    if splits is None:
        splits = splits_of_panel(panel)
        split = options.get("split") or "all"
    first, last = backtest_period(panel, start, end, splits, split)
    shows_test = bool(panel.times[last] >= first_moment(splits.test[0]).to_datetime64())
    return _Period(first, last, None if start or end else split, shows_test)


def with_seed(inputs: BacktestInputs, target: str, seed: int | None) -> BacktestInputs:
    """The same backtest with another seed, on the same prices."""
    strategy = load_strategy(target, seed)
    market = inputs.market
    if strategy.feature_names != inputs.strategy.feature_names:
        market = _market_for(strategy, inputs.config, inputs.panel, inputs.first, inputs.last)
    return dataclasses.replace(
        inputs, name=_result_name(target, strategy), strategy=strategy, market=market, subject=_subject(strategy)
    )


def _market_for(strategy: Strategy, config: RunConfig, panel: Panel, first: int, last: int) -> MarketTensor:
    names = strategy.feature_names
    fit = (0, len(panel.times) - 1) if names else (first, last)  # strategies only get raw features
    return build_market(panel, names, fit, config.environment.fill)


def _result_name(target: str, strategy: Strategy) -> str:
    """Name in results: the name of the strategy, or the target if a reference or the champion has that name."""
    return target if is_custom(target) and strategy.name in (*REFERENCES, CHAMPION) else strategy.name


def _subject(strategy: Strategy) -> str | None:
    return strategy.strategy_hash if isinstance(strategy, UserStrategy) else None


def _with_options(config: RunConfig, options: BacktestOptions, symbols: Sequence[str]) -> RunConfig:
    """The config with the options' settings, and with `symbols` if there are any."""
    config = override_config(
        config, options.get("data"), options.get("cost_bps"), options.get("cash"), options.get("settings", ())
    )
    data = dataclasses.replace(config.data, symbols=tuple(symbols) or config.data.symbols)
    return dataclasses.replace(config, data=data)


def _prepared_run(path: Path, options: BacktestOptions, symbols: Sequence[str], fix: str) -> BacktestInputs:
    from finrl_pod.tournament.run_directory import RunDirectory
    from finrl_pod.tournament.selection import champion_of

    run: RunDirectory = RunDirectory.open(path)
    config = _with_options(run.config, options, symbols)
    data = options.get("data")
    if data is None:
        if not fix and Store().exists(config.data.name):
            fix = f", or pass --data {config.data.name} to test the champion on the prices of that name"
        panel = load_run_panel(config, run.data_sha256, path, fix=fix)
    else:
        panel = load_panel(config)
    splits = config.splits if data is None or panel.sha256 == run.data_sha256 else None
    # A champion without a verdict may change: its test period is not for a look by default.
    has_verdict = (path / VERDICT_FILE).exists()
    period = _period(panel, splits, options, "test" if has_verdict else "validation")
    members = champion_of(run, run.config)
    champion = champions.load_champion(run, members)
    check_settings_apply(champion, options.get("settings", ()))
    trained_rules = champion.rules
    champion = champion.under(config.environment)
    subject = champions.champion_identity(run.config.sha256, run, members)
    if champion.rules != trained_rules:  # it decides differently: looks are counted of its own
        subject = hashlib.sha256(f"{subject}{champion.rules}".encode()).hexdigest()
    if panel.sha256 != run.data_sha256:  # on newer prices also newer values of tables
        panel = with_newest_tables(panel, champion)
    market = champions.champion_market(champion, panel, config)
    dates = (run.config.splits.train[0], run.config.splits.validation[1])
    times = panel.times[period.first : period.last + 1]
    return BacktestInputs(
        *(CHAMPION, champion, config, panel, market, period.first, period.last),
        subject=subject,
        in_sample=in_sample(*dates, times, "the champion was trained or selected"),
        period=period.name,
        shows_test=period.shows_test,
        run=path,
    )


def in_sample(first: str, last: str, times: Times, activity: str) -> str | None:
    """A warning if some of the bars `times` are between two dates, else None.

    activity: what was done with the bars between.
    """
    start, end = first_moment(first).to_datetime64(), last_moment(last).to_datetime64()
    count = int(((times >= start) & (times <= end)).sum())
    if not count:
        return None
    bars = f"all {count:,}" if count == len(times) else f"{count:,} of these {len(times):,}"
    return (
        f"Warning: {bars} bars are between {first} and {last}, on which {activity}. Returns there are in sample and "
        "not evidence of skill."
    )
