"""The first paragraph of a verdict: what was tested, against what, and what follows.

The same text stands in the terminal, the report, the dashboard and notebooks. Reads plain values: a verdict, and of the
report's object `practically_base`, `ladder` and `looks_so_far` where they are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finrl_pod_app.report.columns import display_name, number, percent, return_interval

ACCOUNT = 100_000  # account of the examples, in dollars
DEMONSTRATION = (
    "Demonstration: these years were used to build finrl_pod, and the stocks were chosen because they survived."
)
PARAGRAPH_PARTS = ("practically_base", "ladder", "looks_so_far")  # of a report's object, besides the verdict
FIXED_TILTS = ("momentum", "reversal", "low_volatility")  # rungs of the ladder
_CAUSES = {
    "small_weights": "the agent asks for small tilts",
    "tilt_bound": "the bound on tilts and other limits of the mandate leave little room",
    "slow_trading": "the agent changes its mind faster than the mandate trades",
}


def verdict_paragraph(document: Mapping[str, Any]) -> list[str]:
    """Lines of the first paragraph: a line for demonstrations, the verdict, and whether it is practically its base.

    document: the report's object, or a mapping with the verdict alone.
    """
    verdict = document["verdict"]
    edge = verdict.get("edge") or {}
    lines = [DEMONSTRATION] if edge.get("is_demonstration") else []
    lines.append(_verdict_line(document, verdict, edge))
    if sentence := practically_base_sentence(document.get("practically_base") or {}):
        lines.append(sentence)
    return lines


def _verdict_line(document: Mapping[str, Any], verdict: Mapping[str, Any], edge: Mapping[str, Any]) -> str:
    start = "Promoted." if verdict["promoted"] else "Not promoted."
    if not edge:
        return f"{start} The test for an edge cannot be computed." if verdict.get("rules") else start
    return f"{start} {return_sentence_of(edge)} {_case_text(document, edge)}"


def _case_text(document: Mapping[str, Any], edge: Mapping[str, Any]) -> str:
    match edge["case"]:
        case "worse":
            return "The champion is worse: the whole interval lies below 0."
        case "shown":
            return _shown(document, edge)
        case "too_small":
            return _too_small(edge)
        case "too_little_data":
            return _too_little_data(edge)
        case _:
            return _nothing_shown(document, edge)


def return_sentence_of(edge: Mapping[str, Any]) -> str:
    """The mean active return with its interval and its reference."""
    active = edge["active_return"]
    return (
        f"Mean active return {edge['where']} after costs: {_rate(active['value'], sign=True)} per year over "
        f"{reference_words(edge)}, {100 * edge['interval_level']:.0f}% interval "
        f"{return_interval(active['low'], active['high'])}."
    )


def reference_words(edge: Mapping[str, Any]) -> str:
    """The reference in words. edge: of a verdict."""
    if edge["portfolio"]:
        return f"its base ({display_name(str(edge['portfolio']))}, traded as slowly as the agents trade)"
    return f"{display_name(str(edge['reference']))} (rebalanced monthly)"


# ---------------------------------------------------------------------- cases


def _shown(document: Mapping[str, Any], edge: Mapping[str, Any]) -> str:
    alpha = edge["alpha"]["value"]
    sentences = [
        f"{_passed(edge)}: {_rate(alpha)} per year after costs and market risk, {alpha * ACCOUNT:,.0f} dollars per "
        f"year on an account of {ACCOUNT:,}; p-value {edge['p_value']:.2g}, needed: at most {edge['level']:.3g}.",
        _fixed_tilt(document),
        f"Volatility {_rate(edge['account']['volatility'])} (base {_rate(edge['base']['volatility'])}), maximum "
        f"drawdown {_rate(-edge['account']['drawdown'])} (base {_rate(-edge['base']['drawdown'])}).",
    ]
    verdict = document["verdict"]
    failed = [display_name(rule["name"]) for rule in verdict.get("rules") or () if not rule["passed"]]
    if failed:
        sentences.append(f"It is refused by other rules: {', '.join(failed)}.")
    return " ".join(sentence for sentence in sentences if sentence)


def _passed(edge: Mapping[str, Any]) -> str:
    return "The test passes, on years that were used before" if edge["is_demonstration"] else "An edge is shown"


def _fixed_tilt(document: Mapping[str, Any]) -> str:
    """How much of the edge the fixed tilt earns that is best on validation; empty without a ladder."""
    rungs = {row["rung"]: row for row in document.get("ladder") or ()}
    tilts = [rungs[name] for name in FIXED_TILTS if name in rungs]
    if not tilts:
        return ""
    best = max(tilts, key=lambda row: _figure(row["validation"], "alpha"))
    earned = _figure(best["test"], "alpha")
    name = display_name(str(best["rung"]))
    return f"The fixed tilt that was best on validation, {name}, earns {_rate(earned, sign=True)} of it."


def _figure(row: Mapping[str, Any], name: str) -> float:
    """A figure of a rung, a number or a mapping with its value."""
    value = row[name]
    return float(value["value"] if isinstance(value, Mapping) else value)


def _too_small(edge: Mapping[str, Any]) -> str:
    smaller = min(edge["active_return"]["value"], edge["alpha"]["value"])
    return (
        f"{_passed(edge)}, but it is too small to matter: the smaller of active return and alpha is "
        f"{percent(smaller, 2, unit='%')} per year, less than {percent(edge['minimum'], 2, unit='%')}."
    )


def _too_little_data(edge: Mapping[str, Any]) -> str:
    sentence = (
        f"Too little data: {number(edge['years'], 1)} years show an edge with a probability of 80% only if its "
        f"information ratio is at least {number(edge['detectable_ratio'], 1)}; the measured one is "
        f"{number(edge['information_ratio'], 1)}{_low_sharpe(edge)}."
    )
    if edge["information_ratio"] < edge["detectable_ratio"]:
        return sentence
    # A ratio that should show, of a return that alpha does not confirm.
    return f"{sentence} The p-value is {edge['p_value']:.2g}, needed: at most {edge['level']:.3g}. {_market_risk(edge)}"


def _nothing_shown(document: Mapping[str, Any], edge: Mapping[str, Any]) -> str:
    verdict = document["verdict"]
    sentences = [f"Nothing is shown: p-value {edge['p_value']:.2g}, needed: at most {edge['level']:.3g}"]
    sentences[0] += f"{_low_sharpe(edge)}."
    if edge["tracking_error"]:
        missed = edge["detectable_ratio"] * edge["tracking_error"]
        sentences.append(f"An edge below {_rate(missed)} per year would be missed with a probability above 20%.")
    if edge["active_return"]["value"] > 0:
        sentences.append(_market_risk(edge))
    sentences.append(f"A further look needs a p-value of at most {next_level(document, verdict, edge['level']):.3g}.")
    return " ".join(sentences)


def _market_risk(edge: Mapping[str, Any]) -> str:
    """How much of a higher return beta explains."""
    market = edge["active_return"]["value"] - edge["alpha"]["value"]
    share = _rate(market) if market > 0 else "nothing"
    return f"Of the higher return, {share} was market risk (beta {number(edge['beta'])})."


def _low_sharpe(edge: Mapping[str, Any]) -> str:
    """A clause for accounts that pass both tests at a lower Sharpe ratio than the base's."""
    if edge["p_value"] > edge["level"]:
        return ""
    own, base = edge["account"]["sharpe"], edge["base"]["sharpe"]
    return f"; the tests pass, but its Sharpe ratio {number(own, 3)} is below {number(base, 3)} of the base"


def next_level(document: Mapping[str, Any], verdict: Mapping[str, Any], level: float) -> float:
    """Level of the test at the next look. level: at this one."""
    looks = max(int(verdict["looks"]), 1)
    so_far = max(looks, int(document.get("looks_so_far") or 0))
    return level * looks / (so_far + 1)


def _rate(value: float, *, sign: bool = False) -> str:
    return percent(value, sign=sign, unit="%")


# ---------------------------------------------------------------------- practically its base


def practically_base_sentence(found: Mapping[str, Any]) -> str:
    """That a champion hardly differs from its base, and why; empty where it does differ."""
    if not found or not found["flag"]:
        return ""
    share, allowed = (_rate(found[name]) for name in ("active_share", "allowed"))

    return (
        f"Practically its base: the mean active share on test is {share} where the mandate allows {allowed}, tracking "
        f"error {percent(found['tracking_error'], 2, unit='%')} per year; {_CAUSES[found['cause']]}. On an account of "
        f"{ACCOUNT:,} its best year over the base was {_year(found['best_year'])}, its worst "
        f"{_year(found['worst_year'])}; the base alone, without training, returned "
        f"{_rate(found['base_return'], sign=True)} per year."
    )


def _year(found: Mapping[str, Any]) -> str:
    return f"{found['year']} ({found['dollars']:+,.0f} dollars)"
