"""The report of a run as a record of frozen parts: the contents of report.json, with its version and JSON Schema.

python -m finrl_pod_app.report.records > app/finrl_pod_app/report/report.schema.json
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict

from pydantic import Field, ValidationError

from finrl_pod.errors import RunError
from finrl_pod.files import read_json, to_plain
from finrl_pod.promotion.verdict import Estimate, Metrics, Number, Part, PartialEstimate, Verdict, significance_per_look
from finrl_pod.settings.run import BUILT_IN_SPLITS, GateConfig, MandateConfig
from finrl_pod_app.report.columns import CHAMPION

VERSION: Literal[1] = 1
REPORT_FILE = "report.json"
# Bars of a report by their split, in headings and at the end of sentences; None: chosen dates.
PERIODS = {
    "train": ("training", "on the training period"),
    "validation": ("validation", "on the validation period"),
    "test": ("test", "on the test period"),
    "all": ("all bars", "on all bars"),
    None: ("chosen dates", "on the chosen dates"),
}
_US_TICKER = re.compile(r"[A-Z]+(?:-[A-Z])?")  # of Yahoo: other markets have a suffix such as .DE


class Table(Part):
    """A table of features. sha256: of its file. start, end: dates on which its first and last values became known."""

    name: str
    sha256: str
    columns: tuple[str, ...]
    rows: int
    start: str
    end: str


class Data(Part):
    """The panel of prices and tables of other values. start, end: dates of its first and last bar.

    chosen: when and how the symbols were chosen, in the words of the user.
    """

    name: str
    sha256: str
    symbols: tuple[str, ...]
    start: str
    end: str
    bars: int
    columns: tuple[str, ...]
    adjusted: bool
    source: str
    flaws: tuple[str, ...]
    price_only_index: bool = False
    chosen: str = ""
    tables: tuple[Table, ...] = ()

    @property
    def currency(self) -> str:
        """The currency of the prices, "dollars" of US stocks; empty if it is unknown, as of files."""
        is_us = self.name in BUILT_IN_SPLITS or self.source == "alpaca"
        is_us |= self.source == "yfinance" and all(map(_US_TICKER.fullmatch, self.symbols))
        return "dollars" if is_us else ""


NO_DATA = Data(
    name="", sha256="", symbols=(), start="", end="", bars=0, columns=(), adjusted=False, source="", flaws=()
)


class SplitDates(Part):
    """First and last date of each split. embargo: bars dropped from the end of train and validation."""

    train: tuple[str, str] | None = None
    validation: tuple[str, str] | None = None
    test: tuple[str, str]
    embargo: int = 0

    def spans(self) -> dict[str, tuple[str, str]]:
        """The dates of each split that exists, by name."""
        dates = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: span for name, span in dates.items() if span is not None}


class Champion(Part):
    """The ensemble under test.

    roots: first ancestor of each member. mean_correlation: mean correlation of the active returns of the members on
    validation, None for a single member. selection: procedure that selected the members. lineage: ancestors of each
    member, parent first.
    """

    id: str
    algorithm: str
    members: tuple[str, ...]
    shares: tuple[float, ...]
    roots: tuple[str, ...]
    mean_correlation: Number
    selection: str
    lineage: Mapping[str, tuple[str, ...]]


class LeaderboardRow(Part):
    """One agent of the leaderboard, see `finrl_pod.types.Score`."""

    id: str
    parent: str | None
    generation: int
    assignment: int
    slot: int
    samples: int
    score: Number
    hyperparameters: Mapping[str, int | float | None]
    metrics: Metrics
    root: str


class Timing(Part):
    """Environment steps and wall-clock seconds of a run.

    training_seconds: without validation scores, which samples_per_second leaves out too. The other parts add up to
    total_seconds.
    """

    samples: int
    samples_per_second: float
    preparation_seconds: float
    training_seconds: float
    scoring_seconds: float
    backtests_seconds: float
    audit_seconds: float
    report_seconds: float
    total_seconds: float


class CostPoint(Part):
    """Metrics of the same decisions at another proportional cost."""

    cost_bps: float
    cumulative_return: Number
    annual_return: Number
    sharpe: Number
    max_drawdown: Number
    costs_paid: Number


class Drawdown(Part):
    """A fall from a peak. bars: number of bars from the peak to the recovery or the end."""

    peak: str
    trough: str
    recovered: str | None
    depth: float
    bars: int


class RollingSharpe(Part):
    """Last, lowest and highest rolling Sharpe ratio; None if no window is complete."""

    window: int
    last: Number
    low: Number
    high: Number


class Costs(Part):
    """Costs by kind in currency, mean annual share of equity, interest less fees, and dividends."""

    parts: Metrics
    drag: Number
    carry: Number
    dividends: Number


class Tearsheet(Part):
    """Figures of all strategies. of: the strategy whose drawdowns and monthly returns are listed."""

    of: str
    drawdowns: tuple[Drawdown, ...]
    longest_drawdown: Mapping[str, int]
    monthly: Mapping[str, Mapping[str, float]]
    rolling_sharpe: Mapping[str, RollingSharpe]
    distribution: Mapping[str, Metrics]
    costs: Mapping[str, Costs]


NO_TEARSHEET = Tearsheet(
    of="", drawdowns=(), longest_drawdown={}, monthly={}, rolling_sharpe={}, distribution={}, costs={}
)


class Band(Part):
    """Bootstrap band of an equity curve. places: bars. low, high: multiples of the first mark. level: coverage."""

    level: float
    places: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


class TestResults(Part):
    """Results on the tested bars: metrics and yearly returns by strategy."""

    __test__ = False  # not a class of tests

    strategies: Mapping[str, Metrics] = {}
    benchmark: str | None = None
    yearly: Mapping[str, Metrics] = {}
    tearsheet: Tearsheet = NO_TEARSHEET
    cost_curve: tuple[CostPoint, ...] | None = None
    cost_bps: float = 0.0
    band: Band | None = None


class ValidationResults(Part):
    """Metrics on validation by strategy."""

    strategies: Mapping[str, Metrics]


class YearProfit(Part):
    """Profit before costs of one year, its costs, interest less fees, and return on the equity that it began with."""

    year: int
    profit: Number
    costs: Number
    carry: Number
    year_return: Number = Field(alias="return")


class Attribution(Part):
    """Profit by asset, the largest first, and by year."""

    by_asset: Metrics
    by_year: tuple[YearProfit, ...]


class CapacityPoint(Part):
    """Annual active growth of an account of one size, its interval, and its costs."""

    account: float
    active_growth: Number
    low: Number
    high: Number
    cost: Number


class Capacity(Part):
    """Active growth over a base by account size. half, zero: size at which it is half, or gone; None if infinite."""

    base: str
    adv: Number
    impact: float
    participation: float
    level: float
    curve: tuple[CapacityPoint, ...]
    half: PartialEstimate
    zero: PartialEstimate


class ActiveReturn(Part):
    """Mean return of a strategy over a base per year. level: coverage of its interval."""

    base: str
    level: float
    active_return: Estimate | None = None


class Comparison(ActiveReturn):
    """A strategy against a baseline on this period alone. p_value: p-value of no edge."""

    of: str
    p_value: float


class SharpePair(Part):
    """Sharpe ratios of the champion and of its base."""

    champion: Number
    base: Number


class Added(ActiveReturn):
    """Statistics of a champion against its base. value, low, high: difference of the Sharpe ratios."""

    value: Number
    low: Number
    high: Number
    sharpe: SharpePair
    information_ratio: PartialEstimate
    alpha: PartialEstimate
    beta: PartialEstimate
    tracking_error: Number
    years_to_show: Number


class ActiveAttribution(Part):
    """Active return over a base per year by part: factors, residual and costs, whose sum is the total.

    level: coverage of residual_interval. condition_number: median for the exposures, see `evaluate.active_attribution`.
    """

    base: str
    level: float
    parts: Mapping[str, float]
    total: float
    residual_interval: Estimate
    condition_number: Number


class ActiveWeights(Part):
    """Mean weight of each asset over the tested bars less its mean weight in the base."""

    base: str
    by_asset: Mapping[str, float]


class ScoredFeature(Part):
    """A feature in the scores of a champion. share: part of the active weights, by_date at each decision.

    "everything else" is what is no feature, such as holdings: it prefers None.
    """

    name: str
    share: float
    prefers: Literal["high", "low"] | None
    by_date: tuple[Number, ...]


class ScoredAsset(Part):
    """The score of an asset, and its contributions in the order of the features, whose sum it is."""

    symbol: str
    score: float
    contributions: tuple[float, ...]


class ScoreAttribution(Part):
    """What the scores of a champion come from, see `evaluation.score_attribution`.

    of: what the shares are parts of. dates: first decision of each month. features: largest share first; shares add up
    to 1. assets: scores at last_date, the last decision, highest score first.
    """

    of: Literal["active weights", "scores"]
    dates: tuple[str, ...]
    features: tuple[ScoredFeature, ...]
    last_date: str
    assets: tuple[ScoredAsset, ...]


class MandateUsage(Part):
    """How much of a mandate was used in a period, relative to the mandate at tilt 0 with the same trading."""

    mean_absolute_tilt: Number = None
    active_share: Number = None
    effective_holdings: Number = None
    effective_holdings_low: Number = None
    turnover: Number = None
    turnover_at_tilt_zero: Number = None
    tracking_error: Number = None
    transfer_coefficient: Number = None


class DetectableDifference(Part):
    """What the next look at an unseen test period can show with a probability of 80%.

    look: its number. start, end: dates of the test. ratio: smallest information ratio per year. difference: smallest
    return over the base per year, at the tracking error on validation; None for a champion that equals its base.
    """

    look: int
    start: str
    end: str
    years: float
    ratio: float
    difference: Number


class YearDifference(Part):
    """A calendar year and its return over the base on the account of the examples, in dollars."""

    year: str
    dollars: float


class PracticallyBase(Part):
    """Whether a champion hardly differs from its base, and why; see `services.mandate_report.practically_base`."""

    flag: bool
    active_share: float
    allowed: float
    desired_share: Number
    tracking_error: float
    cause: Literal["small_weights", "tilt_bound", "slow_trading"]
    best_year: YearDifference
    worst_year: YearDifference
    base_return: Number


class StopRule(Part):
    """Lower edge of the active return after each number of bars. level: probability below it."""

    level: float
    lower: tuple[float, ...]


class RungPeriod(Part):
    """A rung of the ladder on one period, per year and relative to the base; the turnover is not relative."""

    active_return: Number
    alpha: Number
    tracking_error: Number
    sharpe_difference: Number
    turnover: Number


class Rung(Part):
    """One step of the ladder. deployed: True if it is the champion."""

    rung: str
    deployed: bool
    validation: RungPeriod
    test: RungPeriod


class MandateBaseline(Part):
    """Sharpe ratios of a simple rule under the mandate, costs and speed of the champion. test_sharpe: None untested."""

    name: str
    validation_sharpe: Number
    test_sharpe: Number


class StartFold(Part):
    """Choice of the number of updates of the start policy by one cohort."""

    cohort: int
    start: Number
    shares: tuple[float, ...]
    ratios: tuple[Number, ...]
    chosen: float


class Start(Part):
    """The trained ensemble against the policy that it started from, on validation. level: largest p-value to deploy."""

    active_return: Number
    p_value: float
    level: float
    folds: tuple[StartFold, ...] = ()
    samples_per_generation: tuple[int, ...] = ()


class RunReport(Part):
    """The report of a run or a backtest.

    split: name of the tested split, None for dates of choice. period, bars, in_sample: sentences. base_score:
    validation Sharpe ratio of the base. search: scope of the hyperparameter search. orders: number of orders by
    strategy. damage: parts of a file that do not fit the schema, each with the reason; not written.
    """

    version: Literal[1] = 1
    data: Data = NO_DATA
    splits: SplitDates = SplitDates(test=("", ""))
    rules: tuple[str, ...] = ()
    champion: Champion | None = None
    leaderboard: tuple[LeaderboardRow, ...] = ()
    test: TestResults = TestResults()
    verdict: Verdict | None = None
    timing: Timing | None = None
    seed: int | None = None
    versions: Mapping[str, str] = {}
    config_sha256: str = ""
    validation: ValidationResults | None = None
    attribution: Attribution | None = None
    capacity: Capacity | None = None
    comparison: Comparison | None = None
    mandate: MandateConfig | None = None
    added: Added | None = None
    active_attribution: ActiveAttribution | None = None
    active_weights: ActiveWeights | None = None
    score_attribution: ScoreAttribution | None = None
    mandate_usage: Mapping[str, MandateUsage] | None = None
    practically_base: PracticallyBase | None = None
    stop_rule: StopRule | None = None
    ladder: tuple[Rung, ...] = ()
    mandate_baselines: tuple[MandateBaseline, ...] = ()
    start: Start | None = None
    base_score: Number = None
    search: str = "off"
    looks: int | None = None
    looks_so_far: int = 0
    detectable: DetectableDifference | None = None
    split: Literal["train", "validation", "test", "all"] | None = "test"
    period: str = ""
    bars: str = ""
    in_sample: str = ""
    execution: Literal["weights", "paper"] = "weights"
    orders: Mapping[str, int] = {}
    damage: tuple[str, ...] = Field(default=(), exclude=True)

    @property
    def base(self) -> str:
        """The strategy that the subject is compared with; empty if there is none."""
        active = self.added or self.comparison
        return active.base if active else self.test.benchmark or ""

    @property
    def period_words(self) -> tuple[str, str]:
        """The tested bars in headings, and as the end of a sentence: ("test", "on the test period")."""
        return ("in sample", "in sample") if self.in_sample else PERIODS[self.split]

    @property
    def tested_split(self) -> str:
        """Name of the tested bars in tables: "test", "validation", "chosen dates"."""
        return PERIODS[self.split][0]

    @property
    def level(self) -> float:
        """Significance level of the test for an edge at this look."""
        verdict = self.verdict
        limits = [rule.limit for rule in verdict.rules if rule.name == "edge"] if verdict else []
        if limits and limits[0] is not None:
            return limits[0]
        return significance_per_look(GateConfig().significance_level, self.looks_at_test)

    @property
    def looks_at_test(self) -> int:
        """Number of this look at the test period; 0 if the test is not shown."""
        return (self.verdict.looks if self.verdict else 0) or self.looks or 0

    @property
    def first_level(self) -> float:
        """Significance level of the test at the first look."""
        return self.level / significance_per_look(1, self.looks_at_test)

    @property
    def next_level(self) -> float:
        """Significance level of the test at the next look."""
        looks = max(self.looks_at_test, 1)
        return significance_per_look(self.first_level, max(looks, self.looks_so_far) + 1)

    @property
    def subject(self) -> str:
        """The strategy that the report is about: the champion, else the first."""
        return CHAMPION if CHAMPION in self.test.strategies else next(iter(self.test.strategies), "")

    def with_verdict(self, verdict: Verdict) -> RunReport:
        """A copy with a verdict of the gate."""
        return self.model_copy(update={"verdict": verdict})

    def verdict_context(self) -> dict[str, object]:
        """The parts that the first paragraph of a verdict needs besides the verdict, as JSON values."""
        return dict(to_plain(self.model_dump(by_alias=True, include={"practically_base", "ladder", "looks_so_far"})))

    def to_dict(self) -> dict[str, object]:
        """The contents of report.json: the parts that were set, NaN and infinity as None."""
        return dict(to_plain(self.model_dump(by_alias=True, exclude_unset=True)))


class ReportParts(TypedDict, total=False):
    """Parts of a report that are computed separately, as records or plain values; `make_report` checks them."""

    split: str | None
    champion: Champion
    timing: Timing
    validation: object
    attribution: object
    capacity: object
    comparison: Comparison | None
    mandate: object
    added: Added | None
    active_attribution: ActiveAttribution | None
    score_attribution: ScoreAttribution | None
    mandate_usage: Mapping[str, MandateUsage] | None
    practically_base: PracticallyBase | None
    stop_rule: StopRule | None
    ladder: Sequence[Rung]
    mandate_baselines: Sequence[MandateBaseline]
    start: object
    base_score: float
    search: str
    looks: int
    looks_so_far: int
    period: str
    rules: Sequence[str]
    bars: str
    in_sample: str
    execution: str
    orders: Mapping[str, int]


def make_report(values: Mapping[str, object]) -> RunReport:
    """A report from its parts, records or plain values; parts that do not fit are left out and named in `damage`."""
    return _fitting_report({"version": VERSION, **values})


def parse_report(values: Mapping[str, object]) -> RunReport:
    """The report in the contents of report.json; what does not fit the schema is left out and named in `damage`."""
    return _fitting_report(to_plain(values))


def _fitting_report(contents: dict[str, object]) -> RunReport:
    """The report of the contents that fit the schema. Other contents are removed."""
    damage: dict[str, str] = {}
    while True:
        try:
            report = RunReport.model_validate(contents)
            return report.model_copy(update={"damage": tuple(f"{name}: {reason}" for name, reason in damage.items())})
        except ValidationError as error:
            for item in error.errors(include_url=False, include_input=False):
                damage.setdefault(".".join(map(str, item["loc"])), item["msg"])
                _remove(contents, item["loc"])


def read_report(folder: Path) -> RunReport:
    """The report in a folder. Raises RunError if the file is missing or is not a JSON object."""
    return parse_report(read_json(folder / REPORT_FILE))


def report_of_run(folder: Path) -> RunReport:
    """The report in the folder of a run; without any parts if the file is missing or damaged."""
    try:
        return read_report(folder)
    except RunError:
        return RunReport()


def _remove(contents: dict[str, object], location: tuple[int | str, ...]) -> None:
    """Remove the innermost entry of a mapping at or above an error."""
    entry: object = contents
    mapping = contents
    key = str(location[0])
    for name in location:
        if not isinstance(entry, dict) or name not in entry:
            break
        mapping = entry
        key = str(name)
        entry = entry[name]
    mapping.pop(key, None)


def schema() -> str:
    """The JSON Schema of report.json as text."""
    return json.dumps(RunReport.model_json_schema(by_alias=True), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema())
