"""The first paragraph of a verdict: what was tested, against what, and what follows.

The same text appears in the terminal, the report, the dashboard and notebooks. It follows from the verdict, and from
`practically_base`, `ladder` and `looks_so_far` of the report if they are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from finrl_pod_app.report.columns import display_name, number, percent, return_interval

if TYPE_CHECKING:
    from finrl_pod.promotion.verdict import Edge, Verdict
    from finrl_pod_app.report.records import PracticallyBase, RunReport, YearDifference

ACCOUNT = 100_000  # account of the examples, in dollars
DEMONSTRATION = (
    "Demonstration: these years were used to build finrl_pod, and the stocks were chosen because they survived."
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
        lines.append(practically_base_sentence(report.practically_base))
    return lines


def _verdict_line(report: RunReport, verdict: Verdict) -> str:
    start = "Promoted." if verdict.promoted else "Not promoted."
    edge = verdict.edge
    if edge is None:
        return f"{start} The test for an edge cannot be computed." if verdict.rules else start
    active = edge.active_return
    reference = f"{display_name(str(edge.reference))} (rebalanced monthly)"
    if edge.portfolio:
        reference = f"its base ({display_name(str(edge.portfolio))}, traded as slowly as the agents trade)"
    return (
        f"{start} Mean active return {edge.where} after costs: {_rate(active.value, sign=True)} per year over "
        f"{reference}, {100 * edge.interval_level:.0f}% interval {return_interval(active.low, active.high)}. "
        f"{_case_text(report, verdict, edge)}"
    )


def _case_text(report: RunReport, verdict: Verdict, edge: Edge) -> str:
    match edge.case:
        case "worse":
            return "The champion is worse: the whole interval lies below 0."
        case "shown":
            return _shown(report, verdict, edge)
        case "too_small":
            return _too_small(edge)
        case "too_little_data":
            return _too_little_data(edge)
        case _:
            return _nothing_shown(report, edge)


def _shown(report: RunReport, verdict: Verdict, edge: Edge) -> str:
    alpha = edge.alpha.value
    sentences = [
        f"{_passed(edge)}: {_rate(alpha)} per year after costs and market risk, {alpha * ACCOUNT:,.0f} dollars per "
        f"year on an account of {ACCOUNT:,}; p-value {edge.p_value:.2g}, needed: at most {edge.level:.3g}.",
        _fixed_tilt(report),
        f"Volatility {_rate(edge.account.volatility)} (base {_rate(edge.base.volatility)}), maximum "
        f"drawdown {_rate(-edge.account.drawdown)} (base {_rate(-edge.base.drawdown)}).",
    ]
    failed_rules = [display_name(rule.name) for rule in verdict.rules if not rule.passed]
    if failed_rules:
        sentences.append(f"It is refused by other rules: {', '.join(failed_rules)}.")
    return " ".join(sentence for sentence in sentences if sentence)


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


def _too_small(edge: Edge) -> str:
    smaller = min(edge.active_return.value, edge.alpha.value)
    return (
        f"{_passed(edge)}, but it is too small to matter: the smaller of active return and alpha is "
        f"{percent(smaller, 2, unit='%')} per year, less than {percent(edge.minimum, 2, unit='%')}."
    )


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


def practically_base_sentence(part: PracticallyBase) -> str:
    """Why a champion hardly differs from its base."""
    return (
        f"Practically its base: the mean active share on test is {_rate(part.active_share)} where the mandate allows "
        f"{_rate(part.allowed)}, tracking error {percent(part.tracking_error, 2, unit='%')} per year; "
        f"{_CAUSES[part.cause]}. On an account of {ACCOUNT:,} its best year over the base was {_year(part.best_year)}, "
        f"its worst {_year(part.worst_year)}; the base alone, without training, returned "
        f"{_rate(part.base_return, sign=True)} per year."
    )


def _year(difference: YearDifference) -> str:
    return f"{difference.year} ({difference.dollars:+,.0f} dollars)"
