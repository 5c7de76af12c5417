"""The first page of a report, for readers who know neither this project nor the run: question, answer, difference."""

from __future__ import annotations

import html
from collections.abc import Mapping

from finrl_pod.types import BacktestResult
from finrl_pod_app.report import charts
from finrl_pod_app.report.columns import display_name, in_sentence
from finrl_pod_app.report.headline import key_figures
from finrl_pod_app.report.mandate_text import tax_sentence
from finrl_pod_app.report.opening import assets_text, opening
from finrl_pod_app.report.palette import Style
from finrl_pod_app.report.records import RunReport
from finrl_pod_app.report.score_attribution import score_sentence
from finrl_pod_app.report.sections import bullet_list, chart, note, section
from finrl_pod_app.report.verdict_text import (
    baselines_sentence,
    best_of_looks,
    case_text,
    extreme_years_sentence,
    looks_sentence,
)

SLOW_BASE = "mandate_at_tilt_zero"


def first_page(
    report: RunReport, results: Mapping[str, BacktestResult], styles: Mapping[str, Style], header: str
) -> str:
    """The opening beside the growth over the base, then details. header: HTML of the heading."""
    growth = growth_over_base(report, results, styles)
    start = f'<div class="pair">{opening_box(report)}{growth}</div>' if growth else opening_box(report)
    return f'<div class="first-page">{header}{start}{details(report)}{active_weights(report)}</div>'


def head(report: RunReport, name: str, period: str, report_date: str) -> str:
    """The heading with name, period and date."""
    subject = in_sentence(report.subject)
    heading = f"Backtest of {subject}: {period}" if report.verdict is None else name or f"Run: {period}"
    title = name if heading != name else ""
    facts = ", ".join(fact for fact in (title, period, f"report of {report_date}" if report_date else "") if fact)
    return (
        f'<header><button type="button" class="save" hidden>Save as PDF</button><h1>{html.escape(heading)}</h1>'
        f'<p class="soft">finrl_pod: {html.escape(facts)}</p></header>'
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


def details(report: RunReport) -> str:
    """What was tested, the verdict in detail, and key figures."""
    lines = [f"<p>{html.escape(question(report))}</p>", key_figure_cards(report)]
    about_test = looks_sentence if report.verdict is None else _verdict_details
    sentences = (text(report) for text in (about_test, score_sentence, tax_sentence, baselines_sentence))
    if looks := best_of_looks(report):
        lines.append(note(f"Figures on test: {looks} at these years. With every look, chance has another try."))
    if words := " ".join(sentence for sentence in sentences if sentence):
        lines.append(f"<p>{html.escape(words)}</p>")
    return "\n".join(lines)


def _verdict_details(report: RunReport) -> str:
    """What the opening leaves out of the paragraph of the verdict; empty without a verdict."""
    part = report.practically_base
    sentences = [case_text(report, report.verdict)] if report.verdict else []
    sentences += [extreme_years_sentence(part)] if report.verdict and part and part.flag else []
    return " ".join(filter(None, sentences))


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


def key_figure_cards(report: RunReport) -> str:
    """The strip of key figures."""
    cells = "".join(
        f'<div title="{html.escape(figure.note)}"><dt>{html.escape(figure.label)}</dt><dd>{html.escape(figure.text)}'
        f"<small>{html.escape(figure.below)}</small></dd></div>"
        for figure in key_figures(report)
    )
    return f'<dl class="headline">{cells}</dl>'


def growth_over_base(report: RunReport, results: Mapping[str, BacktestResult], styles: Mapping[str, Style]) -> str:
    """Growth relative to the base on an axis of its own; empty without a base on the same bars."""
    subject = report.subject
    base = results.get(report.base)
    if base is None or report.base == subject or len(base.times) != len(results[subject].times):
        return ""
    figure = charts.active_growth_figure(results[subject], base, styles[subject])
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
    hidden = max(len(weights.by_asset) - 2 * charts.WEIGHTS_SHOWN, 0)
    words = note(
        f"What {subject} held more of (blue) and less of (orange) than {base}: mean weight over the period less the "
        "mean weight there, in percent of the account"
        f"{f'; {hidden} assets between them are not shown' if hidden else ''}."
    )
    label = f"Mean weight of each asset in {subject} less its mean weight in {base}"
    figure = charts.active_weights_figure(weights)
    return section("Over- and underweights", "", lead=words + chart("active-weights", figure, label))
