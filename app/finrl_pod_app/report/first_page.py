"""The first page of a report, for readers who know neither this project nor the run: question, answer, difference."""

from __future__ import annotations

import html
from collections.abc import Mapping

from finrl_pod.errors import count_text
from finrl_pod.types import BacktestResult
from finrl_pod_app.report import charts
from finrl_pod_app.report.columns import SLOW_BASE, display_name, in_sentence
from finrl_pod_app.report.headline import key_figures, tracking_error_figure
from finrl_pod_app.report.mandate_text import deployed_sentence, tax_sentence
from finrl_pod_app.report.opening import assets_text, opening
from finrl_pod_app.report.palette import Style
from finrl_pod_app.report.records import RunReport
from finrl_pod_app.report.score_attribution import score_sentence
from finrl_pod_app.report.sections import bullet_list, chart, note, section
from finrl_pod_app.report.terms import NOTE_PLACE
from finrl_pod_app.report.verdict_text import (
    baselines_sentence,
    best_of_looks,
    extreme_years_sentence,
    looks_sentence,
    luck_sentence,
    verdict_sentence,
)

WEIGHT_TOLERANCE = 1e-3  # rounding of weights
EXAMPLES = 3  # symbols named in running text


def parts(report: RunReport, results: Mapping[str, BacktestResult], styles: Mapping[str, Style]) -> list[str]:
    """The opening beside the growth over the base, what was tested, and key figures with remarks and active weights.

    Each is an element.
    """
    first = _pair(opening_box(report), growth_over_base(report, results, styles))
    tested_html = f"<p>{html.escape(tested(report, results[report.subject]))}</p>"
    figures = key_figure_cards(report) + _pair(looks_note(report) + remarks(report), active_weights(report))
    return [f"<div>{element}</div>" for element in (first, tested_html, figures)]


def _pair(left: str, right: str) -> str:
    """Two elements side by side, if there are two, with the terms of both below the left one."""
    return f'<div class="pair"><div>{left}{NOTE_PLACE}</div>{right}</div>' if right else left


def head(report: RunReport, name: str, period: str, report_date: str) -> str:
    """The heading with name, period and date."""
    subject = in_sentence(report.subject)
    heading = f"Test of a trading strategy: {name or period}"
    if report.verdict is None:
        heading = f"Backtest of {subject}: {period}"
    facts = [f"data set {period}" if report.verdict else name, "software finrl_pod"]
    if report_date:
        facts.append(f"report of {report_date}")
    return (
        f'<header><button type="button" class="save" hidden>Save as PDF</button><h1>{html.escape(heading)}</h1>'
        f'<p class="soft">{html.escape(", ".join(filter(None, facts)))}</p></header>'
    )


def opening_box(report: RunReport) -> str:
    """The sentences of the opening, the decision in large type, and whether the difference is more than luck."""
    verdict = report.verdict
    decision = verdict_sentence(verdict) if verdict else ""
    is_success = verdict is not None and verdict.promoted and not (verdict.edge and verdict.edge.is_demonstration)
    style = "verdict promoted" if is_success else "verdict" if verdict else "opening"
    sentences = [*opening(report), *filter(None, [luck_sentence(verdict) if verdict else ""])]
    paragraphs = "".join(f"<p>{_decision(x) if x == decision else html.escape(x)}</p>" for x in sentences)
    # The table of promotion rules has the reasons, unless there is none.
    reasons = bullet_list(verdict.reasons) if verdict and not verdict.rules else ""
    return f'<div class="{style}">{paragraphs}{reasons}</div>'


def _decision(sentence: str) -> str:
    """A verdict as HTML, its first words emphasised."""
    words, dot, rest = sentence.partition(". ")
    return f"<strong>{html.escape(words + dot.strip())}</strong> {html.escape(rest)}"


def tested(report: RunReport, result: BacktestResult) -> str:
    """What was tested on which data and years, at what costs, and what it is compared with."""
    subject = in_sentence(report.subject)
    assets = assets_text(report)
    spans = report.splits.spans()
    period = " to ".join(report.splits.test)
    if (champion := report.champion) is not None and {"train", "validation"} < set(spans) and not report.in_sample:
        count = len(champion.members)
        agents = f"an ensemble of {count} trained agents" if count > 1 else "a trained agent"
        if champion.algorithm == "closed_form":
            agents = "a formula solved from past prices"
        learned = "It was solved on" if champion.algorithm == "closed_form" else "It learned from"
        sentence = (
            f"The champion is {agents}. It trades {assets}{_examples(report)}. {learned} "
            f"{' to '.join(spans['train'])}, was selected on {' to '.join(spans['validation'])}, and "
        )
        sentence += (
            "was then tested on years that neither its training nor its selection had seen."
            if report.split == "test"
            else f"traded {period}."
        )
    else:
        sentence = (
            f"{subject[:1].upper()}{subject[1:]} traded {assets} from {period}. {deployed_sentence(report)}".strip()
        )
    if report.data.chosen:
        sentence += f" When and how the symbols were chosen: {report.data.chosen}."
    sentence += f" {_terms_of_trade(report, result)}"
    mandate = report.mandate
    if report.base != SLOW_BASE or mandate is None or mandate.trade_speed == 1:
        return sentence
    return (
        f"{sentence} At each decision {subject} and its base trade {100 * mandate.trade_speed:g}% of the gap to the "
        f"weights that they want; the base always wants {display_name(str(mandate.base))}."
    )


def _terms_of_trade(report: RunReport, result: BacktestResult) -> str:
    """Costs of trades, and whether short positions or borrowed money were held."""
    costs = report.test.tearsheet.costs.get(result.name)
    others = [display_name(name) for name in costs.parts if name != "commission"] if costs else []
    parts = [f"{report.test.cost_bps / 100:g}% of the value of each trade", *others]
    shorts = "something" if (result.weights < -WEIGHT_TOLERANCE).any() else "nothing"
    money = "money" if (result.weights.sum(1) > 1 + WEIGHT_TOLERANCE).any() else "nothing"
    return f"Costs: {' and '.join(parts)}. It sold {shorts} short and borrowed {money}."


def _examples(report: RunReport) -> str:
    """A clause with the first symbols; empty for a few symbols."""
    first, *others = report.data.symbols[:EXAMPLES] or ("",)
    return f", such as {', '.join([first, *others][:-1])} and {others[-1]}" if len(others) == EXAMPLES - 1 else ""


def looks_note(report: RunReport) -> str:
    """Of how many looks at the test period the key figures are the best."""
    looks = best_of_looks(report)
    if not looks:
        return ""
    return note(
        f"Figures on test: {looks} at these years. Each look is another chance to be lucky: the p-value that is needed "
        "falls with every look; the interval does not change."
    )


def remarks(report: RunReport) -> str:
    """Extreme years or the looks, what the strategy trades on, its taxes, and baselines that did better."""
    about_test = looks_sentence if report.verdict is None else _extreme_years
    texts = (about_test, score_sentence, tax_sentence, baselines_sentence)
    words = " ".join(sentence for text in texts if (sentence := text(report)))
    return f"<p>{html.escape(words)}</p>" if words else ""


def _extreme_years(report: RunReport) -> str:
    """What the difference to the base was in money, where the opening says that it is practically the base."""
    part = report.practically_base
    return extreme_years_sentence(report) if part and part.flag else ""


def key_figure_cards(report: RunReport) -> str:
    """The strip of key figures; the tracking error, where the opening has the active return."""
    figures = key_figures(report)
    if report.verdict and (edge := report.verdict.edge):
        error = tracking_error_figure(edge)
        figures = [error if figure.key == "active_return" else figure for figure in figures]
    cells = "".join(
        f'<div title="{html.escape(figure.note)}"><dt>{html.escape(figure.label)}</dt><dd>{html.escape(figure.text)}'
        f"<small>{html.escape(figure.below)}</small></dd></div>"
        for figure in figures
    )
    return f'<dl class="headline">{cells}</dl>'


def growth_over_base(report: RunReport, results: Mapping[str, BacktestResult], styles: Mapping[str, Style]) -> str:
    """Growth relative to the base on an axis of its own; empty without a base on the same bars."""
    subject = report.subject
    base = results.get(report.base)
    if base is None or report.base == subject or len(base.times) != len(results[subject].times):
        return ""
    figure = charts.active_growth_figure({subject: results[subject], report.base: base}, report.base, styles)
    words = note(
        f"The value of {in_sentence(subject)} over the value of its base, both started with the same money, minus one: "
        f"above 0, {in_sentence(subject)} is ahead; where the line rises, it earns more than its base."
    )
    end = charts.label_end(figure)
    label = f"Growth of {in_sentence(subject)} relative to {in_sentence(report.base)}, minus one: {end} at the end"
    return section("Growth over the base", "", lead=words + chart("active", figure, label, "low"))


def active_weights(report: RunReport) -> str:
    """Over- and underweights as bars; empty if the base holds other assets."""
    weights = report.active_weights
    if weights is None:
        return ""
    subject = in_sentence(report.subject)
    base = "its base" if weights.base == report.base else in_sentence(weights.base)
    figure = charts.active_weights_figure(weights)
    hidden_count = sum(map(bool, weights.by_asset.values())) - len(figure.data[0].x)
    hidden = f"; not shown: {count_text(hidden_count, 'asset')} between them" if hidden_count else ""
    words = note(
        f"What {subject} held more of (blue) and less of (orange) than {base}: mean weight over the period less the "
        f"mean weight there, in percent of the account{hidden}."
    )
    label = f"Mean weight of each asset in {subject} less its mean weight in {base}"
    return section("Over- and underweights", "", lead=words + chart("active-weights", figure, label))
