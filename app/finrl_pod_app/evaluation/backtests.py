"""Backtest one strategy and, for comparison, equal weight and the index: `finrl-pod backtest`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, get_args

from finrl_pod_strategies.baselines import make_baseline, run_baseline
from finrl_pod_strategies.mandate_account import MandateRecorder
from finrl_pod_strategies.policy import PolicyStrategy
from finrl_pod_strategies.user_strategy import load_strategy, strategy_hash

from finrl_pod.data.dates import first_moment, last_moment
from finrl_pod.data.splits import Span
from finrl_pod.data.store import Store
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import InputError
from finrl_pod.evaluate.attribution import attribution
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.intrabar_orders import OrderRules, orders_of
from finrl_pod.evaluate.variations import RecordingStrategy
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.market.rules import rules_of
from finrl_pod.promotion.gate import VERDICT_FILE
from finrl_pod.promotion.trial_log import LookCount, log_look
from finrl_pod.protocols import Strategy
from finrl_pod.settings.run import BUILT_IN_SPLITS, RunConfig, SplitConfig
from finrl_pod.types import BacktestResult, MarketTensor, Panel, Times
from finrl_pod.user_files import is_custom
from finrl_pod_app.evaluation.benchmarks import BenchmarkAccount, find_benchmark
from finrl_pod_app.evaluation.mandate_report import comparison, mandate_parts, mandate_period
from finrl_pod_app.evaluation.trial_log import champion_identity, reference_strategy
from finrl_pod_app.prices.panels import backtest_period, load_panel
from finrl_pod_app.prices.stored_prices import load_run_panel
from finrl_pod_app.report.builder import bars_sentence, bootstrap_band, build_report, rule_sentences, subject_of
from finrl_pod_app.report.columns import CHAMPION
from finrl_pod_app.report.records import RunReport
from finrl_pod_app.setup.doctor import installed_versions
from finrl_pod_app.setup.output_folder import BACKTEST, rewritable_folder
from finrl_pod_app.setup.overrides import override_config
from finrl_pod_app.setup.presets import propose_splits

if TYPE_CHECKING:
    from finrl_pod.paper.settings import PaperConfig
    from finrl_pod.tournament.run_directory import RunDirectory

Execution = Literal["weights", "paper"]
SplitName = Literal["train", "validation", "test", "all"]
REFERENCES = ("equal_weight", "index")  # shown next to the tested strategy


class BacktestOptions(TypedDict, total=False):
    """Options of a backtest: the prices, and settings that replace those of the config.

    data: name of a stored panel. split: "train", "validation", "test" or "all"; start, end: dates, both included, which
    replace those of the split. cost_bps, cash: replace the environment's. settings: "section.name=value". seed: of a
    strategy that takes one.
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
class PreparedBacktest:
    """A strategy with the prices, the market and the bars that it is tested on.

    subject: its identity in the registry of looks, None for a baseline. in_sample: a warning if it was trained or
    selected on some of these bars. period: the name of the split, or None for dates of the user's choice. shows_test:
    whether some of the bars belong to the test split or come after its start. run: folder of a champion's run. orders:
    stops and limits within bars.
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

    @property
    def terms(self) -> tuple[int, int, ExecutionRules, float]:
        """The last four arguments of `backtest`."""
        return self.first, self.last, rules_of(self.config.environment), self.config.environment.cash

    @property
    def description(self) -> str:
        """What is tested: the strategy, or the champion with its run."""
        return self.name if self.run is None else f"{CHAMPION} of {self.run}"

    def log_look(self, benchmark: BenchmarkAccount | None = None) -> LookCount | None:
        """Log a look at its bars, by the strategy or by its benchmark; returns its number, and that of all so far.

        None for a baseline, and for bars before the test split: only results on test count as looks.
        """
        subject = self.subject if benchmark is None else benchmark.subject
        if subject is None or not self.shows_test:
            return None
        what = self.description if benchmark is None else benchmark.strategy.name
        return log_look(self.panel, Span(self.first, self.last), subject, f"backtest of {what}")


def run_backtest(
    target: str | Path,
    *,
    out: Path | None = None,
    execution: Execution = "weights",
    paper: PaperConfig | None = None,
    orders: OrderRules | None = None,
    capacity: bool = False,
    adv: float | None = None,
    benchmark: str | None = None,
    on_account: Callable[[float], None] = lambda _: None,
    **options: Unpack[BacktestOptions],
) -> RunReport:
    """Backtest a run's champion (a Path), a baseline (its name) or a user's `file.py:Class`.

    execution: "weights" trades to the target weights under the environment's rules. "paper" trades with the orders of
    the paper-trading daemon, with the prices, symbols, capital, costs and order settings of its config `paper`, or the
    defaults.

    settings: `name=value` lines of the environment. orders: stops and limits, in place of the strategy's own. capacity:
    also simulate larger accounts, with market impact; adv: average daily volume of each asset in currency for it, in
    place of the data's; on_account: called with each account's size before it is simulated. benchmark: what the metrics
    compare with: a symbol, which is bought and held, a baseline, or `file.py:Class`; default: the index of the prices,
    else equal weight. Without split and dates, a
    run is tested on its test split, a strategy of the user's own on validation, and a baseline on the test split of the
    default config (on the sample) or on all bars. Returns the report; with `out` it is written with its page, and bars,
    weights and attribution as Parquet and CSV.
    """
    if paper is not None and execution != "paper":
        raise InputError('a daemon\'s config needs execution "paper"')
    if capacity and (execution == "paper" or target == "index"):
        raise InputError(
            "a capacity is that of a strategy traded to exact weights; leave out --execution paper and index"
        )
    if adv is not None and not capacity:
        raise InputError("--adv is the volume that --capacity assumes; give both")
    symbols = () if paper is None else paper.symbols
    if paper is not None and options.get("data") is None:
        options["data"] = paper.broker.panel
    tables: dict[str, Mapping[str, Sequence[Any]]] = {}
    with rewritable_folder(out, BACKTEST):
        prepared = prepare(target, symbols=symbols, **options)
        prepared = dataclasses.replace(prepared, orders=orders or orders_of(prepared.strategy))
        if prepared.orders is not None and (capacity or execution == "paper" or prepared.name == "index"):
            raise InputError("stops and limits are simulated for strategies traded to weights, without --capacity")
        against = None if benchmark is None else find_benchmark(benchmark, prepared.name, prepared.panel)
        parts: dict[str, object] = {"split": prepared.period}
        if execution == "paper":
            tested = _on_paper(prepared, paper, against, options.get("cost_bps"), options.get("cash"))
        else:
            tested = _on_weights(prepared, against, curved=out is not None)
            if capacity and tested.recording is not None:
                parts["capacity"] = _capacity(prepared, tested.recording, adv, on_account)
            if prepared.name != "index":
                profit = attribution(tested.results[prepared.name], prepared.market, prepared.terms[2])
                parts["attribution"] = profit.plain()
                tables["attribution"] = profit.table()
        if against is not None:
            prepared.log_look(against)
        looks = prepared.log_look()  # what failed has shown nothing
        if looks is not None:
            parts |= {"looks": looks.number, "looks_so_far": looks.so_far}
        report = _report(prepared, tested, against, parts, banded=out is not None)
        if out is not None:
            _write(out, report, tested.results, tables)
    return report


@dataclass(frozen=True, eq=False)
class _Tested:
    """Results by strategy, and what the report says about them.

    recording: the recorded decisions, None with paper orders. rules: sentences that replace those on the market.
    orders: sentences on stops and limits. cost_bps: proportional cost, None for the cost of the config. parts: of the
    report.
    """

    results: Mapping[str, BacktestResult]
    recording: RecordingStrategy | None = None
    curve: Sequence[Mapping[str, float]] | None = None
    rules: Sequence[str] | None = None
    orders: Sequence[str] = ()
    cost_bps: float | None = None
    parts: Mapping[str, object] = field(default_factory=dict)


def _capacity(
    prepared: PreparedBacktest, recorded: RecordingStrategy, adv: float | None, on_account: Callable[[float], None]
) -> Mapping[str, object]:
    """Active growth over the base at larger accounts."""
    from finrl_pod.evaluate.capacity import capacity_curve
    from finrl_pod.evaluate.variations import backtest_recorded

    market, (first, last, rules, _), tested = prepared.market, prepared.terms, prepared.strategy
    is_champion = isinstance(tested, PolicyStrategy)
    base = reference_strategy(prepared.config) if is_champion else make_baseline("equal_weight")
    its = backtest_recorded(base, prepared.panel, market, *prepared.terms)[1]
    curve = capacity_curve(
        recorded, its, market, first, last, rules, adv=adv, seed=prepared.config.seed, on_size=on_account
    )
    return {"base": base.name, "adv": adv, **curve.plain()}


def _on_weights(prepared: PreparedBacktest, against: BenchmarkAccount | None, *, curved: bool) -> _Tested:
    """Trade to exact target weights.

    curved: also compute the metrics of the same decisions at other costs.
    """
    champion = prepared.strategy if isinstance(prepared.strategy, PolicyStrategy) else None
    recorder = None if champion is None else MandateRecorder(champion)
    strategy = RecordingStrategy(recorder or prepared.strategy)
    strategy.orders = prepared.orders
    on_prices = (prepared.panel, prepared.market, *prepared.terms)
    index = prepared.name == "index"
    own = run_baseline("index", *on_prices) if index else backtest(strategy, *on_prices)
    results = {prepared.name: own, **run_references(prepared.name, *on_prices)}
    if against is not None and against.strategy.name not in results:
        results[against.strategy.name] = against.result(prepared.panel, prepared.market, *prepared.terms)
    if champion is not None:
        reference = reference_strategy(prepared.config)
        if reference.name not in results:
            results[reference.name] = backtest(reference, *on_prices)
    curve = None
    if curved and prepared.name != "index" and prepared.orders is None:
        from finrl_pod.evaluate.variations import cost_curve

        curve = cost_curve(strategy, prepared.market, *prepared.terms)
    return _Tested(
        results,
        strategy,
        curve,
        orders=() if prepared.orders is None else prepared.orders.sentences(),
        parts={} if recorder is None else _mandate_parts(prepared, recorder, results),
    )


def run_references(
    tested: str, panel: Panel, market: MarketTensor, first: int, last: int, rules: ExecutionRules, cash: float
) -> dict[str, BacktestResult]:
    """Backtests of the strategies that a tested one is shown next to, on its prices, bars and rules, by name.

    tested: name of the tested strategy, which is left out, as is the index if the panel has none.
    """
    names = (name for name in REFERENCES if name != tested and (name != "index" or panel.benchmark is not None))
    return {name: run_baseline(name, panel, market, first, last, rules, cash) for name in names}


def _mandate_parts(
    prepared: PreparedBacktest, recorder: MandateRecorder, results: Mapping[str, BacktestResult]
) -> Mapping[str, object]:
    """The report's parts on a champion's mandate."""
    champion = results[CHAMPION]
    period = mandate_period(prepared.config, results, recorder.desired_tilts(champion.times, len(champion.symbols)))
    return mandate_parts(prepared.config, results, {"test": period})


def _on_paper(
    prepared: PreparedBacktest,
    paper: PaperConfig | None,
    against: BenchmarkAccount | None,
    cost_bps: float | None,
    cash: float | None,
) -> _Tested:
    """Trade with the daemon's orders; the index, which has no shares, and a chosen benchmark trade to exact weights."""
    from finrl_pod_app.evaluation.execution_rules import rules_of_config, rules_of_environment

    environment = prepared.config.environment
    # The limits of the daemon that trades the strategy, for the baselines too.
    if paper is None:
        terms = rules_of_environment(environment, prepared.panel, prepared.strategy)
    else:
        terms = rules_of_config(paper, prepared.strategy, cost_bps, cash)
    results: dict[str, BacktestResult] = {}
    sent: dict[str, int] = {}
    rules = ExecutionRules(cost_rate=float(terms.rules.cost_rate))
    for name in dict.fromkeys((prepared.name, *REFERENCES)):
        if name == "index":
            if prepared.panel.benchmark is not None or name == prepared.name:
                results[name] = run_baseline(
                    name, prepared.panel, prepared.market, prepared.first, prepared.last, rules, terms.cash
                )
            continue
        strategy = prepared.strategy if name == prepared.name else make_baseline(name)
        tested = terms.backtest(strategy, prepared.panel, prepared.market, prepared.first, prepared.last)
        results[name], sent[name] = tested
    if against is not None and against.strategy.name not in results:
        period = (prepared.first, prepared.last)
        results[against.strategy.name] = against.result(prepared.panel, prepared.market, *period, rules, terms.cash)
    return _Tested(
        results,
        rules=terms.description(),
        cost_bps=float(10_000 * terms.rules.cost_rate),
        parts={"execution": "paper", "orders": sent},
    )


def _report(
    prepared: PreparedBacktest,
    tested: _Tested,
    against: BenchmarkAccount | None,
    parts: Mapping[str, object],
    *,
    banded: bool,
) -> RunReport:
    """The report of a backtest. banded: with the bootstrap band of the equity curve."""
    results = tested.results
    parts = {**tested.parts, **parts, "period": f"{period_sentence(prepared)}{_changes(prepared)}"}
    rules = tested.rules or rule_sentences(prepared.config.environment, prepared.panel)
    parts["rules"] = [*([prepared.in_sample] if prepared.in_sample else []), *rules, *tested.orders]
    if meaning := bars_sentence(prepared.panel):
        parts["bars"] = meaning
    if prepared.in_sample:
        parts["in_sample"] = prepared.in_sample
    base = REFERENCES[0] if against is None else against.strategy.name
    if prepared.name not in (CHAMPION, base):  # reports of runs compare a champion with its base
        parts["comparison"] = comparison(results[prepared.name], results[base])
    dates = [str(prepared.panel.times[i].astype("datetime64[D]")) for i in (prepared.first, prepared.last)]
    return build_report(
        config=prepared.config,
        panel=prepared.panel,
        splits={"test": dates},
        results=results,
        versions=installed_versions(),
        cost_curve=tested.curve,
        cost_bps=tested.cost_bps,
        benchmark=None if against is None else against.strategy.name,
        band=bootstrap_band(results[subject_of(results)].equity, prepared.config.seed) if banded else None,
        parts=parts,
    )


def _write(
    out: Path,
    report: RunReport,
    results: Mapping[str, BacktestResult],
    tables: Mapping[str, Mapping[str, Sequence[Any]]],
) -> None:
    """Write the report and the tables."""
    from finrl_pod.evaluate.export import write_results, write_table
    from finrl_pod_app.report.html import write_report

    write_report(out, report, results)
    write_results(out, results)
    for name, columns in tables.items():
        write_table(out / name, columns)


def prepare(
    target: str | Path,
    *,
    base: RunConfig | None = None,
    symbols: Sequence[str] = (),
    fix: str = "",
    **options: Unpack[BacktestOptions],
) -> PreparedBacktest:
    """Load the strategy, the prices and the market, and find the bars to test.

    base: config that the arguments override if the target is not a run; by default RunConfig(). symbols: of the panel,
    by default those of the config. fix: what to do if the prices of a run are no longer stored, for the message, in
    place of --data. Errors in the target are raised before prices are read.
    """
    if options.get("split") not in (None, *get_args(SplitName)):
        raise InputError(f"split must be one of {', '.join(get_args(SplitName))}, got {options.get('split')!r}")
    if isinstance(target, Path):
        return _prepared_run(target, options, symbols, fix)
    seed = options.get("seed")
    strategy = load_strategy(target, seed)
    config = _with_options(base or RunConfig(), options, symbols)
    panel = load_panel(config)
    stored = options.get("data") is not None
    splits = splits_of_panel(panel) if stored else config.splits
    baseline: SplitName = "all" if stored else "test"
    period = _period(panel, splits, options, "validation" if is_custom(target) else baseline)
    market = _market_for(strategy, config, panel, period.first, period.last)
    subject = _subject(target, seed)
    return PreparedBacktest(
        _result_name(target, strategy),
        strategy,
        config,
        panel,
        market,
        period.first,
        period.last,
        subject,
        period=period.name,
        shows_test=period.shows_test,
    )


@dataclass(frozen=True)
class _Period:
    """Bars of a backtest; name: of their split, None for dates. shows_test: whether the test split has begun."""

    first: int
    last: int
    name: SplitName | None
    shows_test: bool


def _period(panel: Panel, splits: SplitConfig | None, options: BacktestOptions, default: SplitName) -> _Period:
    """The bars that the options ask for. splits: None if those of a run do not fit the panel."""
    split, start, end = options.get("split") or default, options.get("start"), options.get("end")
    if splits is None:
        splits, split = splits_of_panel(panel), options.get("split") or "all"
    first, last = backtest_period(panel, start, end, splits, split)
    shows_test = bool(panel.times[last] >= first_moment(splits.test[0]).to_datetime64())
    return _Period(first, last, None if start or end else split, shows_test)


def splits_of_panel(panel: Panel) -> SplitConfig:
    """Splits of a panel that no config describes: the default ones if they fit, else 70, 15 and 15 percent."""
    first, last = (panel.times[i].astype("datetime64[D]").item() for i in (0, -1))
    return propose_splits(first, last, BUILT_IN_SPLITS.get(panel.name))


def period_sentence(prepared: PreparedBacktest) -> str:
    """What the bars of a backtest are, and whether they count as a look at the test split."""
    first, last = (str(prepared.panel.times[i].astype("datetime64[D]")) for i in (prepared.first, prepared.last))
    names = {"all": "all bars", None: "dates of your choice"}
    name = names.get(prepared.period, f"{prepared.period} split")
    if not prepared.shows_test:
        unseen = "Test bars are not shown; look at them once, at the end, with --split test."
        return f"Period: {name}, {first} to {last}. {unseen}"
    if prepared.period == "all" and prepared.subject is None:
        compare = "Strategies of your own are tested on validation by default: compare with --split validation."
        return f"Period: {name}, {first} to {last}. {compare}"
    return f"Period: {name}, {first} to {last}."


def _changes(prepared: PreparedBacktest) -> str:
    """The rules of the market that differ from those of a champion's run, as a sentence; empty without any."""
    from finrl_pod.tournament.run_directory import RunDirectory

    if prepared.run is None:
        return ""
    rules, own = prepared.config.environment, RunDirectory.open(prepared.run).config.environment
    names = [item.name for item in dataclasses.fields(rules) if getattr(rules, item.name) != getattr(own, item.name)]
    changes = ", ".join(f"{name} = {getattr(rules, name)} (of the run: {getattr(own, name)})" for name in names)
    return f" Changed rules: {changes}." if changes else ""


def with_seed(prepared: PreparedBacktest, target: str, seed: int | None) -> PreparedBacktest:
    """A prepared backtest with another seed, on the same prices."""
    strategy, market = load_strategy(target, seed), prepared.market
    if strategy.feature_names != prepared.strategy.feature_names:
        market = _market_for(strategy, prepared.config, prepared.panel, prepared.first, prepared.last)
    return dataclasses.replace(
        prepared, name=_result_name(target, strategy), strategy=strategy, market=market, subject=_subject(target, seed)
    )


def _market_for(strategy: Strategy, config: RunConfig, panel: Panel, first: int, last: int) -> MarketTensor:
    names = strategy.feature_names
    fit = (0, len(panel.times) - 1) if names else (first, last)  # strategies only get raw features
    return build_market(panel, names, fit, config.environment.fill)


def _result_name(target: str, strategy: Strategy) -> str:
    """Name in results: the strategy's own, unless a user's strategy has the name of a reference or the champion."""
    return target if is_custom(target) and strategy.name in (*REFERENCES, CHAMPION) else strategy.name


def _subject(target: str, seed: int | None) -> str | None:
    return strategy_hash(target, seed) if is_custom(target) else None


def _with_options(config: RunConfig, options: BacktestOptions, symbols: Sequence[str]) -> RunConfig:
    """The config with the options' settings, and with `symbols` if there are any."""
    config = override_config(
        config, options.get("data"), options.get("cost_bps"), options.get("cash"), options.get("settings", ())
    )
    data = dataclasses.replace(config.data, symbols=tuple(symbols) or config.data.symbols)
    return dataclasses.replace(config, data=data)


def _prepared_run(path: Path, options: BacktestOptions, symbols: Sequence[str], fix: str) -> PreparedBacktest:
    from finrl_pod.tournament.run_directory import RunDirectory
    from finrl_pod_app.evaluation.champions import champion_market, load_champion, saved_members

    run: RunDirectory = RunDirectory.open(path)
    config, data = _with_options(run.config, options, symbols), options.get("data")
    if data is None:
        if not fix and Store().exists(config.data.name):
            fix = f", or pass --data {config.data.name} to test the champion on the prices of that name"
        panel = load_run_panel(config, run.data_sha256, path, fix=fix)
    else:
        panel = load_panel(config)
    splits = config.splits if data is None or panel.sha256 == run.data_sha256 else None
    # A champion without a verdict may change: its test period is not for a look by default.
    finished = (path / VERDICT_FILE).exists()
    period = _period(panel, splits, options, "test" if finished else "validation")
    first, last = period.first, period.last
    members = saved_members(run)
    champion, subject = load_champion(run, members), champion_identity(run.config.sha256, run, members)
    market, known = (
        champion_market(champion, panel, config),
        in_sample(
            run.config.splits.train[0],
            run.config.splits.validation[1],
            panel.times[first : last + 1],
            "the champion was trained or selected",
        ),
    )
    return PreparedBacktest(
        CHAMPION, champion, config, panel, market, first, last, subject, known, period.name, period.shows_test, path
    )


def in_sample(first: str, last: str, times: Times, what: str) -> str | None:
    """A warning if some of the bars `times` are between two dates, else None. what: was done on the bars between."""
    start, end = first_moment(first).to_datetime64(), last_moment(last).to_datetime64()
    inside = int(((times >= start) & (times <= end)).sum())
    if not inside:
        return None
    some = f"all {inside:,}" if inside == len(times) else f"{inside:,} of these {len(times):,}"
    return (
        f"Warning: {some} bars are between {first} and {last}, on which {what}. Returns there are in sample and not "
        "evidence of skill."
    )
