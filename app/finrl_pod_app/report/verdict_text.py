"""The verdict in words: its first paragraph, its rules with their units, looks and trials, and what comes next."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

from finrl_pod.errors import count_text
from finrl_pod.evaluate.metrics import METRIC_BY_NAME
from finrl_pod.evaluate.significance import upper_tail
from finrl_pod_app.report import mandate_text
from finrl_pod_app.report.columns import (
    CHAMPION,
    MISSING,
    display_name,
    metric_text,
    number,
    percent,
    return_interval,
)

if TYPE_CHECKING:
    from finrl_pod.promotion.verdict import Case, Edge, Metrics, OverfittingStatistics, Rule, Verdict
    from finrl_pod_app.report.records import PracticallyBase, RunReport

# What a rule measures, and the side of its limit on which it passes.
RULE_LABELS = {
    "edge": ("edge: p-value", "≤"),
    "drawdown": ("maximum drawdown", "≤"),
    "break_even": ("break-even cost", "≥"),
    "audit": ("audit failures", "≤"),
}

CREDIBLE_RATIO = 2.0  # annual Sharpe ratio over a reference that a test should be able to show
INTERVAL_METRICS = tuple(METRIC_BY_NAME[name] for name in ("sharpe", "annual_return", "max_drawdown"))
ACCOUNT = 100_000  # account of the examples, in the currency of the prices
DEMONSTRATION = (
    "Demonstration: the makers of finrl_pod saw these years while they built it, and the stocks were chosen because "
    "they survived: the figures are no evidence."
)
FIXED_TILTS = ("momentum", "reversal", "low_volatility")  # rungs of the ladder
_CAUSES = {
    "small_weights": "the agent asks for small tilts",
    "tilt_bound": "the bound on tilts and other limits of the mandate leave little room",
    "slow_trading": "the agent changes its mind faster than the mandate trades",
}


def verdict_paragraph(report: RunReport) -> list[str]:
    """Lines of the first paragraph: a line for demonstrations, the verdict, and whether it is practically its base.

    Empty without a verdict.
    """
    if report.verdict is None:
        return []
    edge = report.verdict.edge
    lines = [DEMONSTRATION] if edge and edge.is_demonstration else []
    lines.append(_verdict_line(report, report.verdict))
    if report.practically_base and report.practically_base.flag:
        lines.append(f"{practically_base_claim(report.practically_base)} {extreme_years_sentence(report)}")
    return lines


def _verdict_line(report: RunReport, verdict: Verdict) -> str:
    return " ".join(filter(None, (verdict_sentence(verdict), case_text(report, verdict))))


def verdict_sentence(verdict: Verdict) -> str:
    """Whether the champion is promoted, and its active return with the interval."""
    start = "Promoted." if verdict.promoted else "Not promoted."
    edge = verdict.edge
    if edge is None:
        return f"{start} The test for an edge cannot be computed." if verdict.rules else start
    active = edge.active_return
    reference = f"{display_name(str(edge.reference))} (rebalanced monthly)"
    if edge.portfolio:
        reference = f"its base ({display_name(str(edge.portfolio))}, under the same trading rules)"
    includes_zero = ", which includes 0" if active.low <= 0 <= active.high else ""
    return (
        f"{start} Mean active return {edge.where} after costs: {_rate(active.value, sign=True)} per year over "
        f"{reference}, {100 * edge.interval_level:.0f}% interval {return_interval(active.low, active.high)}"
        f"{includes_zero}."
    )


def luck_sentence(verdict: Verdict) -> str:
    """Whether the active return is more than luck, with the p-value and what was needed; empty without a test.

    If it is, also the other rules that refuse the champion.
    """
    edge = verdict.edge
    if edge is None:
        return ""
    passed = "Yes, on years that were used before" if edge.is_demonstration else "Yes"
    answers: dict[Case, str] = {
        "worse": "No",
        "nothing_shown": "Not shown",
        "too_little_data": "Not shown, in too few years",
        "too_small": f"{passed}, but too small to matter",
        "shown": passed,
    }
    low_sharpe = _low_sharpe(edge) if answers[edge.case].startswith("Not") else ""
    refusals = _other_refusals(verdict) if edge.case == "shown" else ""
    periods = " of validation and test together" if edge.tests.validation_weight else ""
    return (
        f"Is it more than luck? {answers[edge.case]}: p-value {edge.p_value:.2g}{periods}, needed: at most "
        f"{edge.level:.3g} at look {verdict.looks:,}{low_sharpe}. {refusals}"
    ).strip()


def case_text(report: RunReport, verdict: Verdict) -> str:
    """What the test for an edge says about the active return; empty if it cannot be computed."""
    edge = verdict.edge
    if edge is None:
        return ""
    match edge.case:
        case "worse":
            return "The champion is worse: the whole interval lies below 0."
        case "shown":
            return _shown(report, verdict, edge)
        case "too_small":
            smaller = min(edge.active_return.value, edge.alpha.value)
            return (
                f"{_passed(edge)}, but it is too small to matter: the smaller of active return and alpha is "
                f"{percent(smaller, 2, unit='%')} per year, less than {percent(edge.minimum, 2, unit='%')}."
            )
        case "too_little_data":
            return _too_little_data(edge)
        case _:
            return _nothing_shown(report, edge)


def _shown(report: RunReport, verdict: Verdict, edge: Edge) -> str:
    alpha = edge.alpha.value
    sentences = [
        f"{_passed(edge)}: {_rate(alpha)} per year after costs and market risk, "
        f"{money(f'{alpha * ACCOUNT:,.0f}', report)} per year on an account of {ACCOUNT:,}; p-value "
        f"{edge.p_value:.2g}, needed: at most {edge.level:.3g}.",
        _fixed_tilt(report),
        f"Volatility {_rate(edge.account.volatility)} (base {_rate(edge.base.volatility)}), maximum "
        f"drawdown {_rate(-edge.account.drawdown)} (base {_rate(-edge.base.drawdown)}).",
    ]
    sentences.append(_other_refusals(verdict))
    return " ".join(sentence for sentence in sentences if sentence)


def _other_refusals(verdict: Verdict) -> str:
    """The rules that refuse a champion whose edge is shown; empty for none."""
    failed_rules = [display_name(rule.name) for rule in verdict.rules if not rule.passed]
    return f"It is refused by other rules: {', '.join(failed_rules)}." if failed_rules else ""


def _passed(edge: Edge) -> str:
    return "The test passes, on years that were used before" if edge.is_demonstration else "An edge is shown"


def _fixed_tilt(report: RunReport) -> str:
    """How much of the edge the fixed tilt earns that is best on validation; empty without a ladder."""
    tilts = [row for row in report.ladder if row.rung in FIXED_TILTS]
    if not tilts:
        return ""
    best = max(tilts, key=lambda row: row.validation.alpha or 0.0)
    alpha = _rate(best.test.alpha, sign=True)
    return f"The fixed tilt that was best on validation, {display_name(best.rung)}, earns {alpha} of it."


def _too_little_data(edge: Edge) -> str:
    sentence = (
        f"Too little data: {number(edge.years, 1)} years show an edge with a probability of 80% only if its "
        f"information ratio is at least {number(edge.detectable_ratio, 1)}; the measured one is "
        f"{number(edge.information_ratio, 1)}{_low_sharpe(edge)}."
    )
    if (edge.information_ratio or 0.0) < edge.detectable_ratio:
        return sentence
    # A ratio that should show, of a return that alpha does not confirm.
    return f"{sentence} The p-value is {edge.p_value:.2g}, needed: at most {edge.level:.3g}. {_market_risk(edge)}"


def _nothing_shown(report: RunReport, edge: Edge) -> str:
    sentences = [f"Nothing is shown: p-value {edge.p_value:.2g}, needed: at most {edge.level:.3g}"]
    sentences[0] += f"{_low_sharpe(edge)}."
    if edge.tracking_error:
        effect = edge.detectable_ratio * edge.tracking_error
        sentences.append(f"An edge below {_rate(effect)} per year would be missed with a probability above 20%.")
    if edge.active_return.value > 0:
        sentences.append(_market_risk(edge))
    sentences.append(f"A further look needs a p-value of at most {report.next_level:.3g}.")
    return " ".join(sentences)


def _market_risk(edge: Edge) -> str:
    """How much of a higher return beta explains."""
    market = edge.active_return.value - edge.alpha.value
    share = _rate(market) if market > 0 else "nothing"
    return f"Of the higher return, {share} was market risk (beta {number(edge.beta)})."


def _low_sharpe(edge: Edge) -> str:
    """A clause for accounts that pass both tests at a lower Sharpe ratio than the base."""
    if edge.p_value > edge.level:
        return ""
    champion = edge.account.sharpe
    base = edge.base.sharpe
    return f"; the tests pass, but its Sharpe ratio {number(champion, 3)} is below {number(base, 3)} of the base"


def _rate(value: float | None, *, sign: bool = False) -> str:
    return percent(value, sign=sign, unit="%")


def practically_base_claim(part: PracticallyBase) -> str:
    """Why a champion hardly differs from its base."""
    return (
        f"Practically its base: the mean active share on test is {_rate(part.active_share)} where the mandate allows "
        f"{_rate(part.allowed)}, tracking error {percent(part.tracking_error, 2, unit='%')} per year; "
        f"{_CAUSES[part.cause]}."
    )


def extreme_years_sentence(report: RunReport) -> str:
    """The best and the worst year of a champion that is practically its base, and the return of the base."""
    part = report.practically_base
    assert part is not None
    years = (part.best_year, part.worst_year)
    best, worst = (f"{year.year} ({money(f'{year.dollars:+,.0f}', report)})" for year in years)
    return (
        f"On an account of {ACCOUNT:,} its best year over the base was {best}, its worst "
        f"{worst}; the base alone, without training, returned {_rate(part.base_return, sign=True)} per year."
    )


def account_sentence(report: RunReport, edge: Edge) -> str:
    """The active return of a champion with its interval on the account of the examples."""
    active = edge.active_return
    value, low, high = (f"{ACCOUNT * x:+,.0f}" for x in (active.value, active.low, active.high))
    return (
        f"On an account of {money(f'{ACCOUNT:,}', report)} that is {money(value, report)} per year over the base "
        f"({100 * edge.interval_level:.0f}% interval {low} to {money(high, report)})."
    )


def money(amount: str, report: RunReport) -> str:
    """An amount with the currency of the prices, if it is known."""
    return f"{amount} {report.data.currency}".rstrip()


def verdict_lines(report: RunReport) -> list[str]:
    """The first paragraph, and each rule in words; rules that fail come first. Empty without a verdict."""
    lines = verdict_paragraph(report)
    verdict = report.verdict
    if verdict is None:
        return []
    if not verdict.rules:
        return [*lines, *(f"- {reason}" for reason in verdict.reasons)]
    lines.append(f"{sum(rule.passed for rule in verdict.rules)} of {len(verdict.rules)} rules pass:")
    for rule in sorted(verdict.rules, key=lambda rule: rule.passed):
        lines.append(f"- {'pass' if rule.passed else 'FAIL'}: {rule.sentence.rstrip('. ')}")
    return lines


def rule_cells(rule: Rule) -> tuple[str, str]:
    """Value and limit of a rule with their units; a dash for a value that could not be computed."""
    above_all = rule.value is None and rule.name == "break_even" and rule.passed  # costs that were tried
    return "∞" if above_all else _with_unit(rule.name, rule.value), _with_unit(rule.name, rule.limit)


def _with_unit(name: str, value: float | None) -> str:
    if value is None:
        return MISSING
    if name == "drawdown":
        return percent(value, unit="%")
    if name == "break_even":
        return f"{value:.4g} bp"
    return f"{value:.4g}"


def baselines_sentence(report: RunReport) -> str:
    """The baselines with a higher Sharpe ratio than the champion on test, also those under its mandate.

    Empty without a champion.
    """
    strategies = report.test.strategies
    if report.verdict is None or CHAMPION not in strategies:
        return ""
    ratios = {display_name(name): _sharpe(metrics) for name, metrics in strategies.items()}
    for row in report.mandate_baselines:
        if row.test_sharpe is not None:
            ratios[f"{mandate_text.LABELS[row.name]} under the mandate"] = row.test_sharpe
    higher = {name: ratio for name, ratio in ratios.items() if ratio > _sharpe(strategies[CHAMPION])}
    if not higher:
        return "No baseline had a higher Sharpe ratio on test."
    ranking = sorted(higher, key=lambda name: -higher[name])
    baselines_text = ", ".join(f"{name} {number(higher[name])}" for name in ranking)
    return f"Baselines with a higher Sharpe ratio on test, by luck or not: {baselines_text}."


def next_sentence(report: RunReport, out: Path | None = None) -> str:
    """What to do after a verdict. out: folder of the run; None for the Python API."""
    if report.verdict and report.verdict.promoted:
        audit = "fp.audit(result)" if out is None else f"finrl-pod audit {shlex.quote(str(out))}"
        return f"Next: {audit}, then trade a paper account with it, see finrl-pod paper --help."
    command = "fp.run_tournament(..., test=False)" if out is None else "finrl-pod tournament --no-test"
    look = max(report.looks_at_test, 1, report.looks_so_far) + 1
    return (
        f"Next: compare other settings on validation, with {command}. A further champion is look {look} at bars that "
        f"overlap this test period and needs a p-value of at most {report.next_level:.3g}."
    )


def overfitting_sentence(overfitting: OverfittingStatistics) -> str:
    """The probability of backtest overfitting in words."""
    caution = (
        " Above that, ranking trials on validation says nothing good about other bars." if overfitting.pbo > 0.5 else ""
    )
    low_note = (
        " A low value says that the trials rank consistently within validation; it says nothing about beating the base."
    )
    return (
        f"Probability of backtest overfitting {100 * overfitting.pbo:.0f}%: how often, over {overfitting.splits:,} "
        "splits of the validation period, the best trial of one half is no better than the median trial on the other "
        f"half (left of 0, where the logit of its rank is negative). Trials of equal skill give 50%."
        f"{caution or low_note}"
    )


def trials_text(verdict: Verdict) -> str:
    """The trials of a verdict in words: all, the distinct ones, and the effective ones that its p-value allows for.

    Empty if the trials were not counted.
    """
    trials = verdict.trials
    if trials is None:
        return ""
    effective = verdict.edge.tests.deciding.effective_trials if verdict.edge else None
    selection = "" if effective is None else f"; the p-value allows for {effective:.1f} effective trials"
    runs = f" by {count_text(trials.runs, 'run')}"
    distinct = f", {trials.clustered:,} of them distinct"
    trial_count = f"{count_text(trials.raw, 'trial')} (trained agents and champions)"
    return f"{trial_count} on this data{runs}{distinct}{selection}"


def edge_sentence(verdict: Verdict) -> str:
    """How the p-value of the test for an edge follows from test and validation; empty if it is not recorded."""
    if verdict.edge is None:
        return ""
    tests = verdict.edge.tests
    deciding = tests.deciding
    name = "alpha" if deciding is tests.alpha else "the mean active return"
    total = f"The p-value {deciding.p_value:.4g} of {name} is the larger of two, with a z-score of"
    if deciding.validation_selected is None:
        return f"{total} {deciding.z_score:.2f}, from the test period alone."
    weight = tests.validation_weight
    reason = " (the choice among procedures and other runs on this data count as further selections)"
    note = f", taken as the best of {tests.selections:.1f}{reason}" if tests.selections > 1 else ""
    tail = upper_tail(deciding.validation_selected)
    return (
        f"{total} {deciding.z_score:.2f}: {math.sqrt(1 - weight**2):.2f} × {deciding.test:.2f} on test + {weight:.2f} "
        f"× {deciding.validation_selected:.2f} on validation. The champion's own z-score on validation is "
        f"{deciding.validation:.2f}, but it was selected there: of simulated selections without any edge{note}, "
        f"{100 * tail:.1f}% reach at least that; they reach {deciding.expected_from_selection:.2f} on average, as "
        f"the best of {deciding.effective_trials:.1f} independent (effective) trials does. So "
        f"{deciding.validation:.2f} counts as {deciding.validation_selected:.2f}."
    )


def statistic_rows(report: RunReport) -> list[tuple[str, str, str]]:
    """Statistics of a verdict that no rule uses, and the stop rule: label, value, and interval or explanation."""
    rows: list[tuple[str, str, str]] = []
    statistics = report.verdict.statistics if report.verdict else None
    if statistics is not None:
        for metric in INTERVAL_METRICS:
            if estimate := (statistics.test_intervals or {}).get(metric.name):
                ends = f"{metric_text(metric, estimate.low)} to {metric_text(metric, estimate.high)}"
                rows.append((f"{metric.label} on test", metric_text(metric, estimate.value), f"90% interval {ends}"))
        psr = "of the active returns on test"
        rows.append(("Probabilistic Sharpe ratio", percent(statistics.probabilistic_sharpe, unit="%"), psr))
        trials = report.verdict.trials if report.verdict else None
        for count, value in (
            (trials.raw if trials else None, statistics.deflated_sharpe),
            (trials.clustered if trials else None, statistics.deflated_sharpe_clustered),
        ):
            if count is not None and value is not None:
                words = f"of the active returns on validation, against {count_text(count, 'trial')}"
                rows.append(("Deflated Sharpe ratio", percent(value, unit="%"), words))
        bars = statistics.minimum_track_record
        rows.append(("Minimum track record", number(bars, 0), "bars with active returns as on test"))
    if report.stop_rule and report.stop_rule.lower:
        lower = math.expm1(report.stop_rule.lower[-1])
        words = f"over the base after {len(report.stop_rule.lower)} bars; paper trading alerts below"
        rows.append(("Stop rule", percent(lower, sign=True, unit="%"), words))
    return [row for row in rows if row[1] != MISSING]


def looks_sentence(report: RunReport) -> str:
    """The number of looks at the test period, and what they cost: the level of the test for an edge.

    Empty for reports of training and validation, and of baselines.
    """
    looks = report.looks_at_test
    if not looks:
        return ""
    first, last = report.splits.test
    return (
        f"Look {looks:,} of {max(looks, report.looks_so_far):,} so far at bars that overlap {first[:10]} to "
        f"{last[:10]}. Look n needs a p-value of at most {2 * report.first_level:.3g} / (n (n + 1)) for an edge: "
        f"{report.level:.3g} at this one, {report.next_level:.3g} at the next."
    )


def best_of_looks(report: RunReport) -> str:
    """How many looks at the test period its figures may be the best of; empty if they are not of the test period."""
    looks = max(report.looks_at_test, report.looks_so_far)
    return f"best of {count_text(looks, 'look')}" if report.looks_at_test and report.split == "test" else ""


def few_bars_sentence(bars: int, bars_per_year: float, level: float) -> str:
    """What a short test can show at all; empty if that is an edge that strategies have.

    bars: number of bars of the test split. level: significance level of its test for an edge.
    """
    from finrl_pod.evaluate.significance import detectable_ratio

    returns = bars - 1
    if returns < 2 or (smallest := detectable_ratio(returns, bars_per_year, level)) <= CREDIBLE_RATIO:
        return ""
    years = (NormalDist().inv_cdf(1 - level) / CREDIBLE_RATIO) ** 2
    return (
        f"the test has only {bars:,} bars ({bars / bars_per_year:.2g} years): alone it can show an edge at the level "
        f"{level:.3g} only if its annual Sharpe ratio over the reference is {smallest:.1f} or more; for "
        f"{CREDIBLE_RATIO:g}, which is rare, it needs {years:.1f} years"
    )


def _sharpe(metrics: Metrics) -> float:
    """A Sharpe ratio; minus infinity if it is undefined."""
    ratio = metrics.get("sharpe")
    return -math.inf if ratio is None else ratio
