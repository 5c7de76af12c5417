"""Text and table rows on mandate and ladder: return over the base, use of the mandate, deployed step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from finrl_pod.errors import count_text
from finrl_pod.evaluate.metrics import AFTER_TAX
from finrl_pod_app.report.columns import MISSING, display_name, in_sentence, number, percent, return_interval

if TYPE_CHECKING:
    from finrl_pod.promotion.verdict import Estimate
    from finrl_pod.settings.run import MandateConfig
    from finrl_pod_app.report.records import ActiveReturn, Added, Comparison, MandateUsage, RungPeriod, RunReport

PERIODS = ("validation", "test")
OFF_AT_ZERO = ("max_turnover", "volatility_target", "max_holdings", "min_position")


@dataclass(frozen=True)
class Measure:
    """One row of a table. key: attribute of the record. note: definition."""

    key: str
    label: str
    kind: Literal["ratio", "difference", "slope", "percent", "active", "number", "times"]
    note: str


USAGE = (
    Measure("mean_absolute_tilt", "Mean tilt", "ratio", "mean absolute log ratio of held weights to those at tilt 0"),
    Measure("active_share", "Active share", "percent", "half the sum of absolute differences to the weights at tilt 0"),
    Measure("effective_holdings", "Effective holdings", "number", "(sum of weights)² over the sum of squared weights"),
    Measure("effective_holdings_low", "Effective holdings, 5%", "number", "exceeded on 95% of the bars"),
    Measure("turnover", "Turnover", "times", "one-sided, a year: half of the value traded, as a multiple of equity"),
    Measure("turnover_at_tilt_zero", "Turnover at tilt 0", "times", "of the base with the same trading"),
    Measure("tracking_error", "Tracking error", "percent", "annualised deviation of returns from those at tilt 0"),
    Measure(
        "transfer_coefficient",
        "Transfer coefficient",
        "ratio",
        "correlation of desired active weights, before limits and slow trading, with those held",
    ),
)
ADDED = (
    Measure("active_return", "Active return", "active", "mean return above the heading, per year"),
    Measure("alpha", "Alpha", "active", "intercept of the regression on the excess returns of the heading, per year"),
    Measure("beta", "Beta", "slope", "slope of the same regression"),
    Measure("information_ratio", "Information ratio", "ratio", "active return over tracking error, annualised"),
    Measure("sharpe", "Sharpe ratio, difference", "difference", "of the champion minus the heading"),
)
YEARS = Measure(
    "years_to_show",
    "Years to show",
    "number",
    "of returns in which a one-sided test at 2.5% shows an information ratio of this size with a power of 80%, "
    "((1.96 + 0.84) / ratio)²; never if it is not above 0",
)
METHODS = (
    "The test for an edge gives the intervals of active return and alpha; the others are percentiles of the "
    "stationary bootstrap of the bars of both accounts together. Alpha is the active return less what a "
    "beta other than 1 explains. Years to significance have no interval: they follow from the measured information "
    "ratio."
)


def return_sentence(report: RunReport) -> str:
    """The mean return of the champion against its base, and of any strategy against a baseline; empty without both."""
    sentences = [comparison_sentence(report.comparison)] if report.comparison else []
    if report.added and report.added.active_return:
        clause = _mean_return("the champion", report.added, report.added.active_return)
        sentences.insert(0, f"{report.period_words[1].capitalize()}, after costs {clause}.")
    return " ".join(sentences)


def comparison_sentence(comparison: Comparison) -> str:
    """The mean return of a strategy against a baseline, with the interval and the p-value of no edge."""
    if comparison.active_return is None:
        return ""
    clause = _mean_return(in_sentence(comparison.of), comparison, comparison.active_return)
    return f"After costs {clause}; p-value of no edge {comparison.p_value:.2g}, for this backtest alone."


def tax_sentence(report: RunReport) -> str:
    """The return after tax and its difference to the base after tax; empty without a tax."""
    strategies = report.test.strategies
    after_tax, base = (strategies.get(name, {}).get(AFTER_TAX.name) for name in (report.subject, report.base))
    if after_tax is None:
        return ""
    text = f"After tax {in_sentence(report.subject)} returned {percent(after_tax, unit='%')} in all"
    if base is None or report.base == report.subject:
        return f"{text}."
    difference = f"{percent(abs(after_tax - base))} percentage points {'less' if after_tax < base else 'more'}"
    return f"{text}, {difference} than {in_sentence(report.base)}."


def _mean_return(strategy: str, comparison: ActiveReturn, active: Estimate) -> str:
    """An active return with its interval as a clause."""
    value = active.value
    return (
        f"the mean return of {strategy} was {abs(100 * value):.1f}% per year {'below' if value < 0 else 'above'} "
        f"{in_sentence(comparison.base)} ({100 * comparison.level:.0f}% interval "
        f"{return_interval(active.low, active.high)})"
    )


def mandate_settings(mandate: MandateConfig) -> dict[str, str]:
    """Settings of a mandate by display name; disabled limits are "off"."""
    if mandate.base == "none":
        return {"base": "none: weights are unconstrained"}
    settings = {field.name: getattr(mandate, field.name) for field in dataclasses.fields(mandate)}
    settings |= {name: "off" for name in OFF_AT_ZERO if settings[name] == 0}
    if isinstance(every := mandate.decide_every, int):
        settings["decide_every"] = count_text(every, "bar")
    settings["group_neutral"] = "yes" if mandate.group_neutral else "no"
    settings["groups"] = "; ".join(f"{g.name}: {', '.join(g.symbols)}" for g in mandate.groups) or "none"
    return {display_name(name): display_name(str(value)) for name, value in settings.items()}


def usage_periods(usage: Mapping[str, MandateUsage]) -> list[str]:
    """The periods in which a mandate was used, in order; keys of a saved report are sorted."""
    return [name for name in PERIODS if name in usage]


def usage_rows(usage: Mapping[str, MandateUsage]) -> list[tuple[Measure, list[str]]]:
    """Each measure of use with its value in every period."""
    periods = [usage[name] for name in usage_periods(usage)]
    return [
        (measure, [format_measure(measure, getattr(period, measure.key)) for period in periods]) for measure in USAGE
    ]


def added_rows(comparison: Added) -> list[tuple[Measure, str, str]]:
    """Each statistic against a base with its value and interval, and the years until it would be significant."""
    rows = []
    for measure in ADDED:
        estimate = comparison if measure.key == "sharpe" else getattr(comparison, measure.key)
        if estimate is None:
            continue
        ends = (estimate.low, estimate.high)
        is_return = measure.kind == "active"
        interval = return_interval(*ends) if is_return else " to ".join(format_measure(measure, end) for end in ends)
        rows.append((measure, format_measure(measure, estimate.value), interval))
    years = comparison.years_to_show
    years_text = "never" if years is None else number(years, 0) if years >= 1 else "below 1"
    rows.append((YEARS, years_text, MISSING))
    return rows


def format_measure(measure: Measure, value: float | None) -> str:
    """A value in the unit of its row; a dash for None, NaN or infinity."""
    if measure.kind in ("percent", "active"):
        active = measure.kind == "active"
        return percent(value, 2 if active else 1, sign=active, unit="%")
    if measure.kind == "difference":
        return number(value, 3, sign=True)  # an interval that ends just below zero is seen to do so
    text = number(value, {"number": 1, "slope": 3}.get(measure.kind, 2))
    return f"{text}×" if measure.kind == "times" and text != MISSING else text


LABELS = {
    "base": "base, traded as slowly",
    "momentum": "12-1 momentum (fixed)",
    "reversal": "5-day reversal (fixed)",
    "low_volatility": "low volatility (fixed)",
    "ridge": "ridge regression",
    "closed_form": "solved linear policy",
    "rl": "reinforcement learning",
}
COLUMNS = (  # heading, unit, definition; all per year
    ("active", "%", "mean return minus the base"),
    ("alpha", "%", "active return less beta times the base"),
    ("TE", "%", "standard deviation of active returns"),
    ("turnover", "×", "one-sided"),
)
NOTE = (
    "Every step trades through the same mandate, at the same costs and speed, and is compared with the base traded as "
    "slowly. Base and fixed tilts are never deployed. Nothing is chosen by the columns of the test."
)


def ladder_cells(report: RunReport) -> list[tuple[str, bool, list[str]]]:
    """Rows of the table: label, whether it is deployed, and cells for validation and then for test."""
    rows = []
    for row in report.ladder:
        cells = []
        for period in (row.validation, row.test):
            cells += [percent(period.active_return, 2, sign=True), percent(period.alpha, 2, sign=True)]
            cells += [percent(period.tracking_error, 2), number(period.turnover)]
        rows.append((LABELS[row.rung], row.deployed, cells))
    return rows


def ladder_sentence(report: RunReport) -> str:
    """What training added to the solved policy, and which one is deployed; empty for a run without one."""
    rungs = {row.rung: row for row in report.ladder}
    linear = rungs.get("closed_form")
    rl = rungs.get("rl")
    if linear is None:
        return deployed_sentence(report)
    if report.start is None or rl is None:
        return "Deployed: the solved linear policy. Nothing was trained from it."
    policy = "the trained ensemble" if rl.deployed else "the solved linear policy that it started from"
    return (
        f"Reinforcement learning added {_gain(rl.validation, linear.validation)}% per year to the solved policy "
        f"on validation (p-value {report.start.p_value:.2g}, at most {report.start.level:g} is needed to deploy it) "
        f"and {_gain(rl.test, linear.test)}% on test. Deployed: {policy}."
    )


def deployed_sentence(report: RunReport) -> str:
    """That the solved policy is deployed, of a champion that is no agent of the leaderboard; else empty."""
    champion = report.champion
    if champion is None or not report.leaderboard or {row.id for row in report.leaderboard} & set(champion.members):
        return ""
    return (
        "Deployed: the solved linear policy that training started from, as no trained ensemble is shown to add to it "
        "on validation."
    )


def _gain(trained_period: RungPeriod, solved_period: RungPeriod) -> str:
    if trained_period.active_return is None or solved_period.active_return is None:
        return MISSING
    return percent(trained_period.active_return - solved_period.active_return, 2, sign=True)
