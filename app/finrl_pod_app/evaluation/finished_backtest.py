"""Backtest a strategy on given prices, with orders, flows, a benchmark and larger accounts, and report on it.

The commands and the Python API differ in how they find strategy and prices; from there on, both are this file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pandas as pd
from finrl_pod_strategies.baselines import SavingsPlan, index_market, index_rules, make_baseline, run_baseline
from finrl_pod_strategies.mandate_account import DecisionRecorder
from finrl_pod_strategies.policy import PolicyStrategy

from finrl_pod.data.side_tables import read_flows
from finrl_pod.data.splits import Span
from finrl_pod.errors import InputError
from finrl_pod.evaluate.attribution import Attribution, attribution, trades_table
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.evaluate.intrabar_orders import OrderRules, orders_of
from finrl_pod.evaluate.variations import RecordingStrategy, backtest_recorded, cost_curve
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.market.rules import rules_of
from finrl_pod.promotion.trial_log import LookCount, log_look
from finrl_pod.protocols import Strategy
from finrl_pod.settings.run import RunConfig
from finrl_pod.types import BacktestResult, Floats, MarketTensor, Panel
from finrl_pod_app.evaluation import champions
from finrl_pod_app.evaluation.benchmarks import Benchmark, BenchmarkAccount, find_benchmark
from finrl_pod_app.evaluation.compiled_backtests import backtest_decisions
from finrl_pod_app.evaluation.mandate_report import attribution_of, comparison, mandate_parts, mandate_period
from finrl_pod_app.evaluation.score_attribution import score_attribution
from finrl_pod_app.report.builder import bars_sentence, bootstrap_band, build_report, rule_sentences, subject_of
from finrl_pod_app.report.columns import CHAMPION
from finrl_pod_app.report.records import Capacity, ReportParts, RunReport
from finrl_pod_app.setup.doctor import installed_versions

if TYPE_CHECKING:
    from finrl_pod.paper.settings import PaperConfig

Execution = Literal["weights", "paper"]
SplitName = Literal["train", "validation", "test", "all"]
REFERENCES = ("equal_weight", "index")  # shown next to the tested strategy


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

    def log_look(self, benchmark: BenchmarkAccount | None = None) -> LookCount | None:
        """Log a look at its bars, by the strategy or by its benchmark; returns its number and the count of all looks.

        None for a baseline, and for bars before the test split: only results on test count as looks.
        """
        subject = self.subject if benchmark is None else benchmark.subject
        if subject is None or not self.shows_test:
            return None
        tested = self.name if self.run is None else f"{CHAMPION} of {self.run}"
        activity = tested if benchmark is None else benchmark.strategy.name
        return log_look(self.panel, Span(self.first, self.last), subject, f"backtest of {activity}")


@dataclass(frozen=True)
class BacktestTerms:
    """How a strategy is tested, apart from its prices and rules.

    execution: "weights" trades to the target weights under the rules of the environment, "paper" with the orders of the
    paper-trading daemon, under its config `paper` or the defaults; cost_bps, cash: instead of those in `paper`. orders:
    stops and limits, instead of the orders of the strategy. flows: deposits and withdrawals, see `read_flows`; the
    savings plan is then compared too. benchmark: what the metrics compare with, see `find_benchmark`; default: the
    index of the prices, else equal weight. capacity: also simulate larger accounts, with market impact; adv: average
    daily volume of each asset in currency for it, instead of the volumes in the data.
    """

    execution: Execution = "weights"
    paper: PaperConfig | None = None
    cost_bps: float | None = None
    cash: float | None = None
    orders: OrderRules | None = None
    flows: str | Path | float | None = None
    benchmark: Benchmark | None = None
    capacity: bool = False
    adv: float | None = None

    def check(self, strategy: object) -> None:
        """Raise InputError for terms that exclude each other. strategy: what is tested, before it is loaded."""
        if self.paper is not None and self.execution != "paper":
            raise InputError('the config of a daemon needs execution "paper"')
        if self.capacity and (self.execution == "paper" or strategy == "index"):
            raise InputError(
                "a capacity is computed for strategies traded to exact weights; leave out execution paper and index"
            )
        if self.adv is not None and not self.capacity:
            raise InputError("adv is the volume that capacity assumes; give both")

    def apply_to(self, inputs: BacktestInputs) -> BacktestInputs:
        """The inputs with orders and flows. Raises InputError if they are not simulated on these terms."""
        orders = self.orders or orders_of(inputs.strategy)
        if orders is not None and (self.capacity or self.execution == "paper" or inputs.name == "index"):
            raise InputError("stops and limits are simulated for strategies traded to weights, without capacity")
        if self.flows is None:
            return dataclasses.replace(inputs, orders=orders)
        if self.capacity or self.execution == "paper":
            raise InputError("flows are for strategies traded to exact weights, without capacity")
        flows = read_flows(self.flows, inputs.panel.times[inputs.first : inputs.last + 1])
        return dataclasses.replace(inputs, orders=orders, flows=flows)


@dataclass(frozen=True, eq=False)
class FinishedBacktest:
    """A strategy after its backtest, beside its references and its benchmark.

    results: results by strategy, the tested strategy first. look: its number and the count of all looks, None if it
    was none. rules: sentences that replace those on the market. cost_bps: proportional cost, None for the cost of the
    config. parts: parts of the report. recording: the recorded decisions, None with paper orders.
    """

    inputs: BacktestInputs
    results: Mapping[str, BacktestResult]
    parts: ReportParts
    recording: RecordingStrategy | None = None
    rules: tuple[str, ...] = ()
    cost_bps: float | None = None
    benchmark_account: BenchmarkAccount | None = None
    look: LookCount | None = None
    capacity: Capacity | None = None

    def report(self, *, with_band: bool) -> RunReport:
        """The report of the backtest. with_band: add the bootstrap band of the equity curve and a curve of costs."""
        inputs = self.inputs
        results = self.results
        orders = () if inputs.orders is None else inputs.orders.sentences()
        rules = self.rules or rule_sentences(inputs.config.environment, inputs.panel, inputs.flows)
        parts: ReportParts = {**self.parts, "split": inputs.period, "period": period_sentence(inputs)}
        parts["rules"] = [*([inputs.in_sample] if inputs.in_sample else []), *rules, *orders]
        if meaning := bars_sentence(inputs.panel):
            parts["bars"] = meaning
        if inputs.in_sample:
            parts["in_sample"] = inputs.in_sample
        if self.capacity is not None:
            parts["capacity"] = self.capacity
        if self.look is not None:
            parts |= {"looks": self.look.number, "looks_so_far": self.look.so_far}
        if profit := self.attribution():
            parts["attribution"] = {"by_asset": profit.by_asset(), "by_year": profit.by_year()}
        is_champion = inputs.name == CHAMPION  # compared with its base; with a benchmark only if asked
        if inputs.name != self.base and (not is_champion or self.benchmark_account is not None):
            accounts = (results[inputs.name], results[self.base])
            parts["comparison"] = comparison(*accounts)
            if not is_champion:
                parts["active_attribution"] = attribution_of(*accounts, inputs.panel, inputs.config.seed)
        dates = [str(inputs.panel.times[i].astype("datetime64[D]")) for i in (inputs.first, inputs.last)]
        return build_report(
            config=inputs.config,
            panel=inputs.panel,
            splits={"test": dates},
            results=results,
            versions=installed_versions(),
            cost_curve=self._cost_curve() if with_band else None,
            cost_bps=self.cost_bps,
            benchmark=None if self.benchmark_account is None else self.benchmark_account.strategy.name,
            band=bootstrap_band(results[subject_of(results)].equity, inputs.config.seed) if with_band else None,
            parts=parts,
        )

    @property
    def base(self) -> str:
        """The strategy that the tested one is compared with."""
        if self.benchmark_account is not None:
            return self.benchmark_account.strategy.name
        reference = champions.reference_strategy(self.inputs.config).name
        return reference if trades_mandate(self.inputs.strategy) and reference in self.results else REFERENCES[0]

    def attribution(self) -> Attribution | None:
        """Profit by asset and year; None with paper orders and for the index."""
        inputs = self.inputs
        if self.recording is None or inputs.name == "index":
            return None
        return attribution(self.results[inputs.name], inputs.market, inputs.market_period.rules)

    def trades(self) -> pd.DataFrame | None:
        """The trades, see `trades_table`; None with paper orders."""
        if self.recording is None:
            return None
        (market, rules) = (self.inputs.market, self.inputs.market_period.rules)
        if self.inputs.name == "index":  # a market of one asset
            (market, rules) = (index_market(self.inputs.panel, market.fill_rule)[1], index_rules(rules))
        return trades_table(self.results[self.inputs.name], market, rules)

    def _cost_curve(self) -> Sequence[Mapping[str, float]] | None:
        """Metrics of the same decisions at other costs; None for accounts that no other costs are computed for."""
        inputs = self.inputs
        if self.recording is None or inputs.name == "index" or inputs.orders is not None or inputs.flows is not None:
            return None
        return cost_curve(self.recording, inputs.market_period)

    def write(self, out: Path) -> RunReport:
        """Write the report with its page, and bars, weights, trades and attribution as Parquet and CSV."""
        from finrl_pod.evaluate.export import write_results, write_table
        from finrl_pod_app.report.html import write_report

        report = self.report(with_band=True)
        write_report(out, report, self.results)
        write_results(out, self.results)
        if profit := self.attribution():
            write_table(out / "attribution", pd.DataFrame(dict(profit.table())))
        if (trades := self.trades()) is not None:
            write_table(out / "trades", trades)
        return report


def run_test(
    inputs: BacktestInputs,
    terms: BacktestTerms,
    *,
    for_report: bool = True,
    on_account: Callable[[float], None] = lambda _: None,
) -> FinishedBacktest:
    """Backtest a strategy beside its references and its benchmark, and log the looks.

    for_report: otherwise without the parts that only a report shows. on_account: called with the size of each larger
    account before it is simulated. Raises InputError for terms that do not fit, and for an unknown benchmark.
    """
    inputs = terms.apply_to(inputs)
    benchmark_account = None
    if terms.benchmark is not None:
        benchmark_account = find_benchmark(terms.benchmark, inputs.name, inputs.panel)
    if terms.execution == "paper":
        finished = _on_paper(inputs, terms, benchmark_account)
    else:
        finished = _on_weights(inputs, benchmark_account, for_report=for_report)
        if terms.capacity and finished.recording is not None:
            capacity = _capacity(inputs, finished.recording, terms.adv, on_account)
            finished = dataclasses.replace(finished, capacity=capacity)
    if benchmark_account is not None:
        inputs.log_look(benchmark_account)
    return dataclasses.replace(finished, look=inputs.log_look())  # what failed has shown nothing


def trades_mandate(strategy: Strategy) -> bool:
    """Whether a strategy is an agent or trades scores: its base is the mandate at tilt 0."""
    return isinstance(strategy, PolicyStrategy) or champions.trades_scores(strategy)


def _capacity(
    inputs: BacktestInputs, recording: RecordingStrategy, adv: float | None, on_account: Callable[[float], None]
) -> Capacity:
    """Active growth over the base at larger accounts."""
    from finrl_pod.evaluate.capacity import capacity_curve

    period = inputs.market_period
    has_mandate = trades_mandate(inputs.strategy)
    base = champions.reference_strategy(inputs.config) if has_mandate else make_baseline(REFERENCES[0])
    base_recording = backtest_recorded(base, inputs.panel, period)[1]
    curve = capacity_curve(recording, base_recording, period, adv=adv, seed=inputs.config.seed, on_size=on_account)
    return Capacity.model_validate({"base": base.name, "adv": adv, **curve.plain()})


def _on_weights(
    inputs: BacktestInputs, benchmark_account: BenchmarkAccount | None, *, for_report: bool
) -> FinishedBacktest:
    """Trade to exact target weights."""
    recorder = None
    if for_report and inputs.name == CHAMPION and isinstance(inputs.strategy, PolicyStrategy):
        recorder = DecisionRecorder(inputs.strategy)
    recording = RecordingStrategy(recorder or inputs.strategy)
    recording.orders = inputs.orders
    on_prices = (inputs.panel, inputs.market_period)
    environment = inputs.config.environment
    if inputs.name == "index":
        result = run_baseline("index", *on_prices)
    elif inputs.orders is None:
        result, recording = backtest_decisions(recording.inner, *on_prices, environment)
    else:
        result = backtest(recording, *on_prices)
    results = {inputs.name: result, **run_references(inputs.name, *on_prices)}
    if benchmark_account is not None and benchmark_account.strategy.name not in results:
        results[benchmark_account.strategy.name] = benchmark_account.result(*on_prices)
    if for_report and trades_mandate(inputs.strategy):
        reference = champions.reference_strategy(inputs.config)
        if reference.name not in results:
            results[reference.name] = backtest_decisions(reference, *on_prices, environment)[0]
    parts: ReportParts = {}
    if recorder is not None:
        desired_tilts = recorder.desired_tilts(result.times, len(result.symbols))
        periods = {"test": mandate_period(inputs.config, results, desired_tilts)}
        parts = mandate_parts(inputs.config, inputs.panel, results, periods)
        parts["score_attribution"] = score_attribution(recorder, result)
    return FinishedBacktest(inputs, results, parts, recording, benchmark_account=benchmark_account)


def run_references(tested_name: str, panel: Panel, period: MarketPeriod) -> dict[str, BacktestResult]:
    """Backtests of the strategies that a tested one is shown next to, on its prices, bars and rules, by name.

    tested_name: strategy to leave out. A panel without an index has no result of it, a period without deposits or
    withdrawals none of the savings plan.
    """
    names = REFERENCES if panel.benchmark is not None else REFERENCES[:1]
    names = names if period.flows is None else (*names, SavingsPlan.name)
    return {name: run_baseline(name, panel, period) for name in names if name != tested_name}


def _on_paper(
    inputs: BacktestInputs, options: BacktestTerms, benchmark_account: BenchmarkAccount | None
) -> FinishedBacktest:
    """Trade with the orders of the daemon.

    The index has no shares: it and a chosen benchmark trade to exact weights.
    """
    from finrl_pod_app.evaluation.execution_rules import rules_of_config, rules_of_environment

    environment = inputs.config.environment
    # The limits of the daemon that trades the strategy, for the baselines too.
    if options.paper is None:
        terms = rules_of_environment(environment, inputs.panel, inputs.strategy)
    else:
        terms = rules_of_config(options.paper, inputs.strategy, options.cost_bps, options.cash)
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
    return FinishedBacktest(
        inputs,
        results,
        {"execution": "paper", "orders": order_counts},
        rules=tuple(terms.description()),
        cost_bps=float(10_000 * terms.rules.cost_rate),
        benchmark_account=benchmark_account,
    )


def period_sentence(inputs: BacktestInputs) -> str:
    """What the bars of a backtest are, and whether they count as a look at the test split."""
    first, last = (str(inputs.panel.times[i].astype("datetime64[D]")) for i in (inputs.first, inputs.last))
    names = {"all": "all bars", None: "dates of your choice"}
    name = names.get(inputs.period, f"{inputs.period} split")
    if not inputs.shows_test:
        unseen = "Test bars are not shown; look at them once, at the end, with --split test."
        return f"Period: {name}, {first} to {last}. {unseen}"
    return f"Period: {name}, {first} to {last}."
