"""The first page of a report, for readers who know neither this project nor the run: question, answer, difference."""

from __future__ import annotations

import html
from collections.abc import Mapping

from finrl_pod.errors import count_text
from finrl_pod.types import BacktestResult
from finrl_pod_app.report import charts
from finrl_pod_app.report.columns import SLOW_BASE, display_name, in_sentence
from finrl_pod_app.report.headline import key_figures
from finrl_pod_app.report.mandate_text import tax_sentence
from finrl_pod_app.report.opening import assets_text, opening
from finrl_pod_app.report.palette import Style
from finrl_pod_app.report.records import RunReport
from finrl_pod_app.report.score_attribution import score_sentence
from finrl_pod_app.report.sections import bullet_list, chart, note, section
from finrl_pod_app.report.terms import NOTE_PLACE
from finrl_pod_app.report.verdict_text import (
    baselines_sentence,
    best_of_looks,
    case_text,
    extreme_years_sentence,
    looks_sentence,
)


def parts(report: RunReport, results: Mapping[str, BacktestResult], styles: Mapping[str, Style]) -> list[str]:
    """The opening beside the growth over the base, the question, key figures, and remarks beside the active weights.

    Each is an element, and a part that the report lacks is left out.
    """
    first = _pair(opening_box(report), growth_over_base(report, results, styles))
    question_html = f"<p>{html.escape(question(report))}</p>"
    elements = [first, question_html, key_figure_cards(report), _pair(remarks(report), active_weights(report))]
    return [f"<div>{element}</div>" for element in elements if element]


def _pair(left: str, right: str) -> str:
    """Two elements side by side, if there are two, with the terms of both below the left one."""
    return f'<div class="pair"><div>{left}{NOTE_PLACE}</div>{right}</div>' if left and right else left or right


def head(report: RunReport, name: str, period: str, report_date: str) -> str:
    """The heading with name, period and date."""
    subject = in_sentence(report.subject)
    heading = f"Test of a trading strategy: {name or period}"
    if report.verdict is None:
        heading = f"Backtest of {subject}: {period}"
    facts = [f"finrl_pod, software that trains and tests trading agents; data set {period}"]
    if report.verdict is None and name:
        facts = [name, *facts]
    if report_date:
        facts.append(f"report of {report_date}")
    return (
        f'<header><button type="button" class="save" hidden>Save as PDF</button><h1>{html.escape(heading)}</h1>'
        f'<p class="soft">{html.escape(", ".join(facts))}</p></header>'
    )


def opening_box(report: RunReport) -> str:
    """The sentences of the opening."""
    verdict = report.verdict
    is_success = verdict is not None and verdict.promoted and not (verdict.edge and verdict.edge.is_demonstration)
    style = "verdict promoted" if is_success else "verdict" if verdict else "opening"
    paragraphs = "".join(f"<p><strong>{html.escape(sentence)}</strong></p>" for sentence in opening(report))
    # The table of promotion rules has the reasons, unless there is none.
    reasons = bullet_list(verdict.reasons) if verdict and not verdict.rules else ""
    return f'<div class="{style}">{paragraphs}{reasons}</div>'


def question(report: RunReport) -> str:
    """What was tested on which data, what it is compared with, and the question that the report answers."""
    subject = in_sentence(report.subject)
    assets = assets_text(report)
    spans = report.splits.spans()
    period = " to ".join(report.splits.test)
    if (champion := report.champion) is not None and {"train", "validation"} < set(spans) and not report.in_sample:
        count = len(champion.members)
        agents = f"an ensemble of {count} trained agents" if count > 1 else "a trained agent"
        sentence = (
            f"The champion is {agents} that trade{'s' * (count == 1)} {assets}. It learned from "
            f"{' to '.join(spans['train'])}, was selected on {' to '.join(spans['validation'])}, and "
        )
        sentence += (
            f"was tested on {period}, years that neither used." if report.split == "test" else f"traded {period}."
        )
    else:
        sentence = f"{subject[:1].upper()}{subject[1:]} traded {assets} from {period}."
    if report.data.chosen:
        sentence += f" When and how the symbols were chosen: {report.data.chosen}."
    if not report.base or report.base == report.subject:
        return sentence
    base = display_name(report.base)
    if report.base == SLOW_BASE and report.mandate:
        base = f"{display_name(str(report.mandate.base))}, traded as slowly as the agents trade"
    return (
        f"{sentence} Its base, what it would hold without an opinion of its own, is {base}. The question: did "
        f"{subject} earn more than its base after costs, and is the difference more than luck?"
    )


def remarks(report: RunReport) -> str:
    """The verdict in detail or the looks, what the strategy trades on, its taxes, and baselines that did better."""
    about_test = looks_sentence if report.verdict is None else _verdict_details
    texts = (about_test, score_sentence, tax_sentence, baselines_sentence)
    words = " ".join(sentence for text in texts if (sentence := text(report)))
    return f"<p>{html.escape(words)}</p>" if words else ""


def _verdict_details(report: RunReport) -> str:
    """What the opening leaves out of the paragraph of the verdict; empty without a verdict."""
    part = report.practically_base
    sentences = [case_text(report, report.verdict)] if report.verdict else []
    sentences += [extreme_years_sentence(part)] if report.verdict and part and part.flag else []
    return " ".join(filter(None, sentences))


def key_figure_cards(report: RunReport) -> str:
    """The strip of key figures, and of how many looks at the test period they are the best."""
    cells = "".join(
        f'<div title="{html.escape(figure.note)}"><dt>{html.escape(figure.label)}</dt><dd>{html.escape(figure.text)}'
        f"<small>{html.escape(figure.below)}</small></dd></div>"
        for figure in key_figures(report)
    )
    looks = best_of_looks(report)
    words = note(f"Figures on test: {looks} at these years. With every look, chance has another try.") if looks else ""
    return f'<dl class="headline">{cells}</dl>{words}'


def growth_over_base(report: RunReport, results: Mapping[str, BacktestResult], styles: Mapping[str, Style]) -> str:
    """Growth relative to the base on an axis of its own; empty without a base on the same bars."""
    subject = report.subject
    base = results.get(report.base)
    if base is None or report.base == subject or len(base.times) != len(results[subject].times):
        return ""
    figure = charts.active_growth_figure({subject: results[subject], report.base: base}, report.base, styles)
    words = note(
        f"The value of {in_sentence(subject)} over the value of its base, both started with the same money, minus one: "
        f"above 0, {in_sentence(subject)} is ahead, and where the line rises it earns more."
    )
    label = f"Growth of {in_sentence(subject)} relative to {in_sentence(report.base)}, minus one"
    return section("Growth over the base", "", lead=words + chart("active", figure, label, "low"))


def active_weights(report: RunReport) -> str:
    """Over- and underweights as bars; empty if the base holds other assets."""
    weights = report.active_weights
    if weights is None:
        return ""
    subject = in_sentence(report.subject)
    base = "its base" if weights.base == report.base else in_sentence(weights.base)
    hidden_count = max(len(weights.by_asset) - 2 * charts.WEIGHTS_SHOWN, 0)
    hidden = f"; not shown: {count_text(hidden_count, 'asset')} between them" if hidden_count else ""
    words = note(
        f"What {subject} held more of (blue) and less of (orange) than {base}: mean weight over the period less the "
        f"mean weight there, in percent of the account{hidden}."
    )
    label = f"Mean weight of each asset in {subject} less its mean weight in {base}"
    figure = charts.active_weights_figure(weights)
    return section("Over- and underweights", "", lead=words + chart("active-weights", figure, label))
