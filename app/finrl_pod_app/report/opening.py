"""The opening of a report: at most three plain sentences for readers who read nothing else."""

from __future__ import annotations

from finrl_pod.errors import count_text
from finrl_pod.evaluate.metrics import METRIC_BY_NAME
from finrl_pod_app.report.columns import (
    MISSING,
    display_name,
    in_sentence,
    metric_text,
    number,
    percent,
    return_interval,
)
from finrl_pod_app.report.mandate_text import return_sentence
from finrl_pod_app.report.records import DetectableDifference, RunReport
from finrl_pod_app.report.verdict_text import (
    ACCOUNT,
    DEMONSTRATION,
    account_sentence,
    money,
    practically_base_claim,
    verdict_sentence,
)

GROWTH = METRIC_BY_NAME["cumulative_return"]
ANNUAL_RETURN = METRIC_BY_NAME["annual_return"]
DRAWDOWN = METRIC_BY_NAME["max_drawdown"]

SHORT_YEARS = 0.2  # of a test, below which its length is told in days
DAYS_PER_YEAR = 365.25


def opening(report: RunReport) -> tuple[str, ...]:
    """The sentences with which a report opens.

    With a verdict: the demonstration line, if there is one, the verdict, and that the champion is practically its base
    or what its active return is in money. Of a run before its test: that the test is unseen, the return on
    validation, and what the test can show. Of a backtest: what was tested, its return, and an account.
    """
    verdict = report.verdict
    if verdict is None:
        return (tested_sentence(report), _return(report), _last_sentence(report))
    edge = verdict.edge
    sentences = [DEMONSTRATION] if edge and edge.is_demonstration else []
    sentences.append(verdict_sentence(verdict))
    if report.practically_base and report.practically_base.flag:
        sentences.append(practically_base_claim(report.practically_base))
    elif edge is not None:
        sentences.append(account_sentence(report, edge))
    return tuple(sentences)


def tested_sentence(report: RunReport) -> str:
    """What was tested on which prices and dates, or that a test is still unseen."""
    if report.detectable is not None:
        power = report.detectable
        return f"Not tested yet: the test period, {power.start} to {power.end}, is unseen, so this is no verdict."
    subject = in_sentence(report.subject)
    first, last = report.splits.test
    return f"{subject[:1].upper()}{subject[1:]} traded {assets_text(report)} from {first} to {last}."


def assets_text(report: RunReport) -> str:
    """The traded symbols in running text, such as "6 symbols of the data set prices"."""
    count = len(report.data.symbols)
    symbols = f"{count_text(count, 'symbol')} of " if count else ""
    return f"{symbols}the data set {report.data.name}"


def power_sentence(power: DetectableDifference) -> str:
    """The difference that a test can show at all."""
    is_short = power.years < SHORT_YEARS
    length = f"{power.years * DAYS_PER_YEAR:.0f} days" if is_short else f"{number(power.years, 1)} years"
    years = f"The test has {length}"
    if power.difference is None:
        return f"{years}, but the champion holds its base: there is no difference to show."
    return (
        f"{years}: look {power.look} shows a difference with a probability of 80% only if the champion earns at least "
        f"{percent(power.difference, unit='%')} per year more than its base."
    )


def _return(report: RunReport) -> str:
    """The return over the base with its interval, or the return alone."""
    active = report.added.active_return if report.added else None
    if report.detectable is not None and report.added is not None and active is not None:
        side = "below" if active.value < 0 else "above"
        return (
            f"On validation, {' to '.join(report.splits.test)}, where it was selected, the champion earned "
            f"{percent(abs(active.value), unit='%')} per year {side} its base after costs "
            f"({100 * report.added.level:.0f}% interval {return_interval(active.low, active.high)})."
        )
    if sentence := return_sentence(report):
        return sentence
    metrics = report.test.strategies.get(report.subject, {})
    base_metrics = report.test.strategies.get(report.base, {})
    text = f"After costs it returned {metric_text(ANNUAL_RETURN, metrics.get(ANNUAL_RETURN.name))} per year"
    base_text = metric_text(ANNUAL_RETURN, base_metrics.get(ANNUAL_RETURN.name))
    if report.base in ("", report.subject) or base_text == MISSING:
        return f"{text}."
    return f"{text}, {display_name(report.base)} {base_text}."


def _last_sentence(report: RunReport) -> str:
    if report.detectable is not None:
        return power_sentence(report.detectable)
    metrics = report.test.strategies.get(report.subject, {})
    growth = metrics.get(GROWTH.name)
    drawdown = metric_text(DRAWDOWN, metrics.get(DRAWDOWN.name))
    value = MISSING if growth is None else f"{ACCOUNT * (1 + growth):,.0f}"
    return f"An account of {money(f'{ACCOUNT:,}', report)} became {value}; its maximum drawdown was {drawdown}."
