"""Backtest one strategy and, for comparison, equal weight and the index: `finrl-pod backtest`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, get_args

import pandas as pd
from finrl_pod_strategies.baselines import SavingsPlan, make_baseline, run_baseline
from finrl_pod_strategies.mandate_account import DecisionRecorder
from finrl_pod_strategies.policy import PolicyStrategy
from finrl_pod_strategies.user_strategy import UserStrategy, load_strategy

from finrl_pod.data.dates import first_moment, last_moment
from finrl_pod.data.side_tables import read_flows
from finrl_pod.data.sources.feature_tables import with_newest_tables
from finrl_pod.data.splits import Span
from finrl_pod.data.store import Store
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError
from finrl_pod.evaluate.attribution import attribution
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.intrabar_orders import OrderRules, orders_of
from finrl_pod.evaluate.variations import RecordingStrategy, backtest_recorded, cost_curve
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.market.mandate_checks import validate_mandate
from finrl_pod.market.rules import rules_of
from finrl_pod.promotion.trial_log import LookCount, log_look
from finrl_pod.promotion.verdict import VERDICT_FILE
from finrl_pod.protocols import Strategy
from finrl_pod.settings.run import RunConfig, SplitConfig
from finrl_pod.types import BacktestResult, Floats, MarketTensor, Panel, Times
from finrl_pod.user_files import is_custom
from finrl_pod_app.evaluation import champions
from finrl_pod_app.evaluation.mandate_report import attribution_of, comparison, mandate_parts, mandate_period
from finrl_pod_app.evaluation.score_attribution import score_attribution
from finrl_pod_app.prices.stored_prices import backtest_period, load_panel, load_run_panel, splits_of_panel
from finrl_pod_app.report.builder import bars_sentence, bootstrap_band, build_report, rule_sentences, subject_of
from finrl_pod_app.report.columns import CHAMPION
from finrl_pod_app.report.records import ReportParts, RunReport
from finrl_pod_app.setup.doctor import installed_versions
from finrl_pod_app.setup.output_folder import BACKTEST, rewritable_folder
from finrl_pod_app.setup.overrides import override_config

if TYPE_CHECKING:
    from finrl_pod.paper.settings import PaperConfig
    from finrl_pod.tournament.run_directory import RunDirectory

Execution = Literal["weights", "paper"]
SplitName = Literal["train", "validation", "test", "all"]
REFERENCES = ("equal_weight", "index")  # shown next to the tested strategy


class BacktestOptions(TypedDict, total=False):
    """Options of a backtest: the prices, and settings that override the config.

    data: name of a stored panel. split: "train", "validation", "test" or "all"; start, end: first and last date instead
    of the dates of the split. cost_bps, cash: override the environment. settings: "section.name=value". seed: seed of a
    random strategy.
    """

    data: str | None
    split: SplitName | None
    start: str | None
    end: str | None
    cost_bps: float | None
    cash: float | None
    settings: Sequence[str]
    seed: int | None


@dataclass(frozen=True, eq=False)
class BacktestInputs:
    """A strategy with the prices, the market and the bars that it is tested on.

    subject: its identity in the registry of looks, None for a baseline. in_sample: a warning if it was trained or
    selected on some of these bars. period: the name of the split, or None for chosen dates. shows_test:
    whether some of the bars belong to the test split or come after its start. run: run folder of a champion. orders:
    stops and limits within bars. flows: currency paid in at each bar, negative if taken out, or None.
    """

    name: str
    strategy: Strategy
    config: RunConfig
    panel: Panel
    market: MarketTensor
    first: int
    last: int
    subject: str | None = None
    in_sample: str | None = None
    period: SplitName | None = None
    shows_test: bool = True
    run: Path | None = None
    orders: OrderRules | None = None
    flows: Floats | None = None

    @property
    def market_period(self) -> MarketPeriod:
        """The period of the market that the strategy is tested in, under the rules of its config."""
        environment = self.config.environment
        return MarketPeriod(self.market, self.first, self.last, rules_of(environment), environment.cash, self.flows)

    def log_look(self, benchmark: champions.BenchmarkAccount | None = None) -> LookCount | None:
        """Log a look at its bars, by the strategy or by its benchmark; returns its number and the count of all looks.

        None for a baseline, and for bars before the test split: only results on test count as looks.
        """
        subject = self.subject if benchmark is None else benchmark.subject
        if subject is None or not self.shows_test:
            return None
        tested = self.name if self.run is None else f"{CHAMPION} of {self.run}"
        activity = tested if benchmark is None else benchmark.strategy.name
        return log_look(self.panel, Span(self.first, self.last), subject, f"backtest of {activity}")


def run_backtest(
    target: str | Path,
    *,
    out: Path | None = None,
    scoring: RunConfig | None = None,
    execution: Execution = "weights",
    paper: PaperConfig | None = None,
    orders: OrderRules | None = None,
    flows: str | Path | float | None = None,
    capacity: bool = False,
    adv: float | None = None,
    benchmark: str | None = None,
    on_account: Callable[[float], None] = lambda _: None,
    **options: Unpack[BacktestOptions],
) -> RunReport:
    """Backtest the champion of a run (a Path), a baseline (its name) or a custom `file.py:Class`.

    scoring: the target is `file.py:function` whose values on the panel are scores, traded under the mandate and the
    rules of this config, on its prices. execution: "weights" trades to the target weights under the rules of the
    environment. "paper" trades with the orders of the paper-trading daemon, with the prices, symbols, capital, costs
    and order settings of its config `paper`, or the defaults.

    settings: `name=value` lines of the environment. orders: stops and limits, instead of the orders of the strategy.
    flows: deposits and withdrawals, see `read_flows`; the savings plan is then compared too.
    capacity: also simulate larger accounts, with market impact; adv: average daily volume of each asset in currency for
    it, instead of the volumes in the data; on_account: called with the size of each account before it is simulated.
    benchmark: what the metrics compare with: a symbol (bought and held), a baseline, or `file.py:Class`; default: the
    index of the prices, else equal weight. Without split and dates, a run is tested on its test split, a custom
    strategy on validation, and a baseline on the test split of the default config (on the sample) or on all bars.
    Returns the report; with `out` it is written with its page, and bars, weights and attribution as Parquet and CSV.
    """
    if paper is not None and execution != "paper":
        raise InputError('the config of a daemon needs execution "paper"')
    if capacity and (execution == "paper" or target == "index"):
        raise InputError(
            "a capacity is computed for strategies traded to exact weights; leave out --execution paper and index"
        )
    if adv is not None and not capacity:
        raise InputError("--adv is the volume that --capacity assumes; give both")
    symbols = () if paper is None else paper.symbols
    if paper is not None and options.get("data") is None:
        options["data"] = paper.broker.panel
    tables: dict[str, Mapping[str, Sequence[Any]]] = {}
    with rewritable_folder(out, BACKTEST):
        inputs = prepare(target, scoring=scoring, symbols=symbols, **options)
        inputs = dataclasses.replace(inputs, orders=orders or orders_of(inputs.strategy))
        if inputs.orders is not None and (capacity or execution == "paper" or inputs.name == "index"):
            raise InputError("stops and limits are simulated for strategies traded to weights, without --capacity")
        if flows is not None:
            if capacity or execution == "paper":
                raise InputError("--flows is for strategies traded to exact weights, without --capacity")
            times = inputs.panel.times[inputs.first : inputs.last + 1]
            inputs = dataclasses.replace(inputs, flows=read_flows(flows, times))
        benchmark_account = (
            None if benchmark is None else champions.find_benchmark(benchmark, inputs.name, inputs.panel)
        )
        report_parts: ReportParts = {"split": inputs.period}
        if execution == "paper":
            outcome = _on_paper(inputs, paper, benchmark_account, options)
        else:
            outcome = _on_weights(inputs, benchmark_account, with_curve=out is not None)
            if capacity and outcome.recording is not None:
                report_parts["capacity"] = _capacity(inputs, outcome.recording, adv, on_account)
            if inputs.name != "index":
                profit = attribution(outcome.results[inputs.name], inputs.market, inputs.market_period.rules)
                report_parts["attribution"] = {"by_asset": profit.by_asset(), "by_year": profit.by_year()}
                tables["attribution"] = profit.table()
        if benchmark_account is not None:
            inputs.log_look(benchmark_account)
        looks = inputs.log_look()  # what failed has shown nothing
        if looks is not None:
            report_parts |= {"looks": looks.number, "looks_so_far": looks.so_far}
        report = _report(inputs, outcome, benchmark_account, report_parts, with_band=out is not None)
        if out is not None:
            from finrl_pod.evaluate.export import write_results, write_table
            from finrl_pod_app.report.html import write_report

            write_report(out, report, outcome.results)
            write_results(out, outcome.results)
            for name, columns in tables.items():
                write_table(out / name, pd.DataFrame(dict(columns)))
    return report


@dataclass(frozen=True, eq=False)
class _Outcome:
    """Results by strategy, and what the report says about them.

    recording: the recorded decisions, None with paper orders. rules: sentences that replace those on the market.
    orders: sentences on stops and limits. cost_bps: proportional cost, None for the cost of the config. parts: parts of
    the report by name.
    """

    results: Mapping[str, BacktestResult]
    recording: RecordingStrategy | None = None
    curve: Sequence[Mapping[str, float]] | None = None
    rules: Sequence[str] | None = None
    orders: Sequence[str] = ()
    cost_bps: float | None = None
    parts: ReportParts = field(default_factory=ReportParts)


def _capacity(
    inputs: BacktestInputs, recording: RecordingStrategy, adv: float | None, on_account: Callable[[float], None]
) -> object:
    """Active growth over the base at larger accounts."""
    from finrl_pod.evaluate.capacity import capacity_curve

    period = inputs.market_period
    has_mandate = isinstance(inputs.strategy, PolicyStrategy) or champions.trades_scores(inputs.strategy)
    base = champions.reference_strategy(inputs.config) if has_mandate else make_baseline(REFERENCES[0])
    base_recording = backtest_recorded(base, inputs.panel, period)[1]
    curve = capacity_curve(recording, base_recording, period, adv=adv, seed=inputs.config.seed, on_size=on_account)
    return {"base": base.name, "adv": adv, **curve.plain()}


def _on_weights(
    inputs: BacktestInputs, benchmark_account: champions.BenchmarkAccount | None, *, with_curve: bool
) -> _Outcome:
    """Trade to exact target weights.

    with_curve: also compute the metrics of the same decisions at other costs.
    """
    champion = inputs.strategy if isinstance(inputs.strategy, PolicyStrategy) else None
    recorder = None if champion is None else DecisionRecorder(champion)
    strategy = RecordingStrategy(recorder or inputs.strategy)
    strategy.orders = inputs.orders
    on_prices = (inputs.panel, inputs.market_period)
    index = inputs.name == "index"
    result = run_baseline("index", *on_prices) if index else backtest(strategy, *on_prices)
    results = {inputs.name: result, **run_references(inputs.name, *on_prices)}
    if benchmark_account is not None and benchmark_account.strategy.name not in results:
        results[benchmark_account.strategy.name] = benchmark_account.result(*on_prices)
    if champion is not None or champions.trades_scores(inputs.strategy):
        reference = champions.reference_strategy(inputs.config)
        if reference.name not in results:
            results[reference.name] = backtest(reference, *on_prices)
    parts: ReportParts = {}
    if recorder is not None:
        desired_tilts = recorder.desired_tilts(results[CHAMPION].times, len(results[CHAMPION].symbols))
        periods = {"test": mandate_period(inputs.config, results, desired_tilts)}
        parts = mandate_parts(inputs.config, inputs.panel, results, periods)
        parts["score_attribution"] = score_attribution(recorder, results[CHAMPION])
    has_curve = with_curve and not index and inputs.orders is None and inputs.flows is None
    return _Outcome(
        results,
        strategy,
        cost_curve(strategy, inputs.market_period) if has_curve else None,
        orders=() if inputs.orders is None else inputs.orders.sentences(),
        parts=parts,
    )


def run_references(tested_name: str, panel: Panel, period: MarketPeriod) -> dict[str, BacktestResult]:
    """Backtests of the strategies that a tested one is shown next to, on its prices, bars and rules, by name.

    tested_name: strategy to leave out. A panel without an index has no result of it, a period without deposits or
    withdrawals none of the savings plan.
    """
    names = REFERENCES if panel.benchmark is not None else REFERENCES[:1]
    names = names if period.flows is None else (*names, SavingsPlan.name)
    return {name: run_baseline(name, panel, period) for name in names if name != tested_name}


def _on_paper(
    inputs: BacktestInputs,
    paper: PaperConfig | None,
    benchmark_account: champions.BenchmarkAccount | None,
    options: BacktestOptions,
) -> _Outcome:
    """Trade with the orders of the daemon.

    The index has no shares: it and a chosen benchmark trade to exact weights.
    """
    from finrl_pod_app.evaluation.execution_rules import rules_of_config, rules_of_environment

    environment = inputs.config.environment
    # The limits of the daemon that trades the strategy, for the baselines too.
    if paper is None:
        terms = rules_of_environment(environment, inputs.panel, inputs.strategy)
    else:
        terms = rules_of_config(paper, inputs.strategy, options.get("cost_bps"), options.get("cash"))
    results: dict[str, BacktestResult] = {}
    order_counts: dict[str, int] = {}
    rules = ExecutionRules(cost_rate=float(terms.rules.cost_rate))
    period = MarketPeriod(inputs.market, inputs.first, inputs.last, rules, terms.cash)
    for name in dict.fromkeys((inputs.name, *REFERENCES)):
        if name == "index":
            if inputs.panel.benchmark is not None or name == inputs.name:
                results[name] = run_baseline(name, inputs.panel, period)
            continue
        strategy = inputs.strategy if name == inputs.name else make_baseline(name)
        results[name], order_counts[name] = terms.backtest(
            strategy, inputs.panel, inputs.market, inputs.first, inputs.last
        )
    if benchmark_account is not None and benchmark_account.strategy.name not in results:
        results[benchmark_account.strategy.name] = benchmark_account.result(inputs.panel, period)
    return _Outcome(
        results,
        rules=terms.description(),
        cost_bps=float(10_000 * terms.rules.cost_rate),
        parts={"execution": "paper", "orders": order_counts},
    )


def _report(
    inputs: BacktestInputs,
    outcome: _Outcome,
    benchmark_account: champions.BenchmarkAccount | None,
    report_parts: ReportParts,
    *,
    with_band: bool,
) -> RunReport:
    """The report of a backtest. with_band: add the bootstrap band of the equity curve."""
    results = outcome.results
    report_parts = {**outcome.parts, **report_parts, "period": period_sentence(inputs)}
    rules = outcome.rules or rule_sentences(inputs.config.environment, inputs.panel, inputs.flows)
    report_parts["rules"] = [*([inputs.in_sample] if inputs.in_sample else []), *rules, *outcome.orders]
    if meaning := bars_sentence(inputs.panel):
        report_parts["bars"] = meaning
    if inputs.in_sample:
        report_parts["in_sample"] = inputs.in_sample
    base = REFERENCES[0] if benchmark_account is None else benchmark_account.strategy.name
    if benchmark_account is None and champions.trades_scores(inputs.strategy) and outcome.recording is not None:
        base = champions.reference_strategy(inputs.config).name
    if inputs.name not in (CHAMPION, base):  # reports of runs compare a champion with its base
        accounts = (results[inputs.name], results[base])
        report_parts["comparison"] = comparison(*accounts)
        report_parts["active_attribution"] = attribution_of(*accounts, inputs.panel, inputs.config.seed)
    dates = [str(inputs.panel.times[i].astype("datetime64[D]")) for i in (inputs.first, inputs.last)]
    return build_report(
        config=inputs.config,
        panel=inputs.panel,
        splits={"test": dates},
        results=results,
        versions=installed_versions(),
        cost_curve=outcome.curve,
        cost_bps=outcome.cost_bps,
        benchmark=None if benchmark_account is None else benchmark_account.strategy.name,
        band=bootstrap_band(results[subject_of(results)].equity, inputs.config.seed) if with_band else None,
        parts=report_parts,
    )


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
    strategy = load_strategy(target, seed) if scoring is None else champions.scored_strategy(target, config)
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


def period_sentence(inputs: BacktestInputs) -> str:
    """What the bars of a backtest are, and whether they count as a look at the test split."""
    first, last = (str(inputs.panel.times[i].astype("datetime64[D]")) for i in (inputs.first, inputs.last))
    names = {"all": "all bars", None: "dates of your choice"}
    name = names.get(inputs.period, f"{inputs.period} split")
    if not inputs.shows_test:
        unseen = "Test bars are not shown; look at them once, at the end, with --split test."
        return f"Period: {name}, {first} to {last}. {unseen}"
    return f"Period: {name}, {first} to {last}."


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
    if panel.sha256 != run.data_sha256:  # on newer prices also newer values of tables
        panel = with_newest_tables(panel, champion)
    market = champions.champion_market(champion, panel, config)
    dates = (run.config.splits.train[0], run.config.splits.validation[1])
    times = panel.times[period.first : period.last + 1]
    return BacktestInputs(
        *(CHAMPION, champion, config, panel, market, period.first, period.last),
        subject=champions.champion_identity(run.config.sha256, run, members),
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
