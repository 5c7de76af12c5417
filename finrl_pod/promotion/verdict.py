"""The verdict on a champion as a record of frozen parts: the contents of verdict.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, StrictBool, ValidationError

from finrl_pod.errors import RunError
from finrl_pod.files import other_folder, read_json, to_plain, write_json

VERDICT_FILE = "verdict.json"

Case = Literal["worse", "shown", "too_small", "too_little_data", "nothing_shown"]


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _none_if_empty(value: object) -> object:
    return value or None


Number = Annotated[float | None, BeforeValidator(_finite)]  # NaN and infinity become None, null in JSON
Metrics = Mapping[str, Number]  # metric or other statistic -> value


class Part(BaseModel):
    """A frozen part of a report."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Estimate(Part):
    """A value with the ends of its confidence interval."""

    value: float
    low: float
    high: float


class PartialEstimate(Part):
    """An estimate whose value or ends may be undefined or infinite."""

    value: Number
    low: Number
    high: Number


@dataclass(frozen=True)
class TrialCounts:
    """Counts of trials on a data set: all, distinct ones, and the runs that made them.

    Trials on different bars are always distinct.
    """

    raw: int
    clustered: int
    runs: int


class Rule(Part):
    """Outcome of one rule. value: None if it could not be computed; the rule then fails. sentence: text for readers."""

    name: str
    value: Number
    limit: Number
    passed: StrictBool  # "no" is damage, not False
    sentence: str


class AccountRisk(Part):
    """An account on test: annual Sharpe ratio in excess of cash, annual volatility, and maximum drawdown (negative)."""

    sharpe: float
    volatility: float
    drawdown: float


class CombinedTest(Part):
    """Test of one mean, active return or alpha, on test and validation together.

    p_value: one-sided, of z_score, under no edge. test, validation: z-scores of the periods, validation before and
    validation_selected after selection is accounted for; None without a validation period. expected_from_selection:
    z-score that selection alone reaches on average. effective_trials: number of independent trials whose best does so.
    """

    p_value: float
    z_score: float
    test: float
    validation: Number = None
    validation_selected: Number = None
    expected_from_selection: Number = None
    effective_trials: Number = None


class EdgeTests(Part):
    """Both tests for an edge. beta: slope of the returns of the account on the returns of the base, 1 for the base.

    validation_weight: weight of validation_selected in each z_score. selections: number of independent selections that
    validation_selected accounts for.
    """

    active: CombinedTest
    alpha: CombinedTest
    beta: float
    validation_weight: float = 0.0
    selections: float = 1.0

    @property
    def deciding(self) -> CombinedTest:
        """The test with the larger p-value."""
        return self.active if self.active.p_value >= self.alpha.p_value else self.alpha

    @property
    def p_value(self) -> float:
        """The larger of the two p-values."""
        return self.deciding.p_value


class Edge(Part):
    """The edge of an account over its reference on test, and the case that the verdict states.

    p_active, p_alpha, p_value: p-values of no edge, of the mean active return, of alpha, and the larger of the two.
    level: p-value that is needed, at this look. beta: slope of the account in a regression on the reference.
    active_return, alpha: means per year on test, with intervals of coverage `interval_level`. tracking_error: annual.
    information_ratio: active return over tracking error. detectable_ratio: information ratio that the test alone shows
    with a probability of 80%. years: length of the test. minimum: smallest active return and alpha that matter, per
    year. account, base: both accounts. tests: z-scores behind the p-values. reference: name of the strategy that
    everything is relative to. portfolio: base portfolio that the reference trades slowly; empty without a mandate.
    where: name of the test period in messages. is_demonstration: True for prices and years that were used to build
    finrl_pod.
    """

    case: Case
    p_active: float
    p_alpha: float
    p_value: float
    level: float
    beta: float
    active_return: Estimate
    alpha: Estimate
    tracking_error: float
    information_ratio: float
    detectable_ratio: float
    years: float
    minimum: float
    account: AccountRisk
    base: AccountRisk
    tests: EdgeTests
    interval_level: float
    reference: str = ""
    portfolio: str = ""
    where: str = "on test"
    is_demonstration: bool = False


class Histogram(Part):
    """Counts [B] between edges [B + 1]."""

    counts: tuple[float, ...]
    edges: tuple[float, ...]


class OverfittingStatistics(Part):
    """Probability of backtest overfitting over a number of splits, and the logits of the ranks.

    loss: probability of a loss out of sample. blocks: number of blocks of the period. trials: number of compared
    trials.
    """

    pbo: float
    splits: int
    loss: Number = None
    blocks: int = 0
    trials: int = 0
    logits: Histogram | None = None


class Statistics(Part):
    """Diagnostics of a verdict, see `gate.diagnostics`; None where they cannot be computed."""

    test_intervals: Mapping[str, PartialEstimate] | None = None
    active_sharpe: Number = None
    deflated_sharpe: Number = None
    deflated_sharpe_clustered: Number = None
    overfitting: OverfittingStatistics | None = None
    probabilistic_sharpe: Number = None
    minimum_track_record: Number = None
    audit_warnings: tuple[str, ...] = ()


class Verdict(Part):
    """Whether a champion is promoted, and why.

    reasons: sentences of the rules that failed, or of all if it is promoted. trials: counts of trials on the data.
    looks: number of looks at the test period, including this one. edge: None if the test could not be computed.
    """

    promoted: StrictBool
    reasons: tuple[str, ...]
    rules: tuple[Rule, ...] = ()
    trials: Annotated[TrialCounts | None, BeforeValidator(_none_if_empty)] = None
    looks: int = 0
    edge: Annotated[Edge | None, BeforeValidator(_none_if_empty)] = None
    statistics: Statistics = Statistics()

    def to_dict(self) -> dict[str, object]:
        """The contents of verdict.json, NaN and infinity as None."""
        contents = self.model_dump()
        statistics = self.statistics.model_dump(exclude_unset=True)
        parts = {"trials": contents["trials"] or {}, "edge": contents["edge"] or {}, "statistics": statistics}
        return dict(to_plain(contents | parts))

    @classmethod
    def from_dict(cls, contents: Mapping[str, object]) -> Verdict:
        """Read the contents of verdict.json. Raises RunError for missing fields and for rules that contradict them."""
        try:
            verdict = cls.model_validate(contents)
        except ValidationError:
            verdict = None
        if verdict is None or verdict.trials is None or not set(contents) >= set(cls.model_fields):
            raise RunError("the saved verdict is damaged: a field is missing; start a new run")
        rules = verdict.rules
        if verdict.promoted is not (bool(rules) and all(rule.passed for rule in rules)):
            raise RunError("the saved verdict contradicts its own rules: the file was changed; start a new run")
        return verdict


def write_verdict(folder: Path, verdict: Verdict) -> Path:
    """Write verdict.json into the folder of a run."""
    return write_json(folder / VERDICT_FILE, verdict.to_dict())


def read_verdict(folder: Path) -> Verdict:
    """Read the verdict of a finished run. Raises RunError if there is none yet or it is damaged."""
    if not (folder / VERDICT_FILE).exists():
        if not folder.exists():
            raise RunError(f"there is no folder {folder}; name the one that the run was written into")
        hint = (
            f"{folder} holds no verdict: it was not tested, or not finished; repeat its command with --resume --out "
            f"{folder} and without --no-test (in Python with resume=True and test=True)"
        )
        raise RunError(other_folder(folder) or hint)
    return Verdict.from_dict(read_json(folder / VERDICT_FILE))


def significance_per_look(significance: float, looks: int) -> float:
    """Significance level of look n at the test period: 2 significance / (n (n + 1)), in all below 2 significance."""
    return 2 * significance / (max(looks, 1) * (max(looks, 1) + 1))
