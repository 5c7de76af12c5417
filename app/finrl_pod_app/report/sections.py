"""The sections of a report as HTML, pure functions of the report; "" if their part of it is missing."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from finrl_pod.errors import count_text
from finrl_pod.types import BacktestResult
from finrl_pod_app.report import charts, mandate_text, tables
from finrl_pod_app.report.columns import CHAMPION, champion_first, display_name, in_sentence, number
from finrl_pod_app.report.palette import Style
from finrl_pod_app.report.records import RunReport
from finrl_pod_app.report.terms import definition_texts
from finrl_pod_app.report.verdict_text import (
    case_text,
    edge_sentence,
    looks_sentence,
    overfitting_sentence,
    statistic_rows,
    trials_text,
)


def chart(name: str, figure: Any, label: str, size: str = "", *, side_legend: bool = False) -> str:
    """A figure with the template of reports in its frame; the script of the page draws it.

    name: suffix of the element id. label: description for screen readers. size: "low", "tall" or empty. side_legend:
    with a legend in the order of a stack.
    """
    figure.update_layout(template=charts.REPORT_TEMPLATE)
    if side_legend:
        figure.update_layout(showlegend=True, legend=charts.SIDE_LEGEND)
    json_text = figure.to_json().replace("<", "\\u003c")  # no text of a figure may end the element
    style = f"chart {size}".strip()
    return (
        f'<div class="{style}" id="chart-{name}" role="figure" aria-label="{html.escape(label)}"></div>'
        f'<script type="application/json" data-chart="{name}">{json_text}</script>'
    )


def section(title: str, body: str, *, lead: str = "") -> str:
    """A section of HTML under an escaped heading, to which the contents link.

    lead: what comes first and is printed on one page with the heading: the first chart with its text and legend.
    """
    anchor = re.sub(r"\W+", "-", title.lower()).strip("-")
    heading = f"<h2>{html.escape(title)}</h2>\n"
    return f'<section id="{anchor}">{block(heading + lead) if lead else heading}{body}</section>'


def block(*elements: str) -> str:
    """Elements that are printed on one page, such as a chart with its text and legend."""
    return f'<div class="block">{"".join(elements)}</div>'


def contents(sections: Sequence[str]) -> str:
    """Links to the sections among the parts of a page."""
    headings = re.findall(r'<section id="([^"]+)">(?:<div class="block">)?<h2>([^<]+)</h2>', "".join(sections))
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in headings)
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>' if links else ""


def definitions(meanings: Mapping[str, str]) -> str:
    """A note that defines the columns of a table. meanings: meaning of each label."""
    return f'<p class="note">{definition_texts(meanings)}.</p>'


def note(text: str) -> str:
    """A short explanation, escaped."""
    return f'<p class="note">{html.escape(text)}</p>'


def fact_list(facts: Mapping[str, str]) -> str:
    """A definition list of escaped names and values."""
    return "<dl>" + "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in facts.items()) + "</dl>"


def bullet_list(sentences: Sequence[str]) -> str:
    """A list of escaped sentences; those beginning "Warning" are highlighted. Empty for none."""
    if not sentences:
        return ""
    items = "".join(
        f"<li{' class=warning' if sentence.startswith('Warning') else ''}>{html.escape(sentence)}</li>"
        for sentence in sentences
    )
    return f"<ul>{items}</ul>"


def gate(report: RunReport) -> str:
    """The promotion rules one by one, the trial count and the number of looks at the test period."""
    verdict = report.verdict
    if verdict is None or not verdict.rules:
        return ""
    trials = f"{trials_text(verdict)}. " if verdict.trials else ""
    notes = [note(case)] if (case := case_text(report, verdict)) else []
    notes += [note(edge)] if (edge := edge_sentence(verdict)) else []
    notes += [note(words)] if (words := trials + looks_sentence(report)) else []
    warnings = verdict.statistics.audit_warnings
    if issues := [warning for warning in warnings if warning in report.data.flaws]:
        notes.append(
            note(f"Known data issues, see Data and splits: {count_text(len(issues), 'warning')} of the audit.")
        )
    if other_warnings := [warning for warning in warnings if warning not in issues]:
        notes += ["<p>Warnings of the audit:</p>", bullet_list(other_warnings)]
    rows = statistic_rows(report)
    statistics = [note("Statistics without a rule:"), tables.statistics_table(rows)] if rows else []
    return section("Promotion rules", "".join([tables.gate_table(verdict.rules), *notes, *statistics]))


def active_return(report: RunReport) -> str:
    """Statistics of what the champion added to its base, traded as slowly."""
    comparison = report.added
    if comparison is None:
        return ""
    slow = " The mandate at tilt zero is the base under the same trading rules."
    period = f"The champion on the period {' to '.join(report.splits.test)}."
    words = note(f"{period}{slow if report.mandate_usage else ''}")
    meanings = {measure.label: measure.note for measure in (*mandate_text.ADDED, mandate_text.YEARS)}
    return section(
        "Active return",
        "".join([words, tables.added_table(comparison), note(mandate_text.METHODS), definitions(meanings)]),
    )


def ladder(report: RunReport) -> str:
    """The ladder as a section of the report; empty for a run without one."""
    rows = mandate_text.ladder_cells(report)
    if not rows:
        return ""
    heads = "".join(
        f'<th scope="col">{label}, {period}<small>{unit}</small></th>'
        for period in ("validation", "test")
        for label, unit, _ in mandate_text.COLUMNS
    )
    body = [
        tables.table_row(f"{html.escape(label)}{' (deployed)' if is_deployed else ''}", cells, is_marked=is_deployed)
        for label, is_deployed, cells in rows
    ]
    meanings = definitions({label: meaning for label, _, meaning in mandate_text.COLUMNS})
    words = note(mandate_text.ladder_sentence(report)) + note(mandate_text.NOTE)
    return section(
        "Steps from the base to the champion",
        words + tables.table(f'<th scope="col">step</th>{heads}', body) + meanings,
    )


def mandate_baselines(report: RunReport) -> str:
    """Simple rules under the mandate of the champion; empty for a run without them."""
    if not report.mandate_baselines:
        return ""
    words = (
        "Under the mandate, costs and speed of the champion, ranked on validation before the test. The ridge "
        "regression uses the features of the agents. None may be chosen by its test: trading one is another look."
    )
    heads = "".join(f'<th scope="col">Sharpe ratio, {period}</th>' for period in mandate_text.PERIODS)
    body = [
        tables.table_row(mandate_text.LABELS[row.name], [number(row.validation_sharpe), number(row.test_sharpe)])
        for row in report.mandate_baselines
    ]
    return section("Baselines under the mandate", note(words) + tables.table(f'<th scope="col">rule</th>{heads}', body))


def mandate(report: RunReport) -> str:
    """The settings of the mandate, and how much of it was used."""
    if not report.mandate:
        return ""
    elements = []
    if usage := report.mandate_usage:
        elements += [
            note("How much of the mandate was used, against the mandate at tilt 0 with the same trading."),
            tables.mandate_usage_table(usage, report.tested_split),
            definitions({measure.label: measure.note for measure in mandate_text.USAGE}),
        ]
    return section("Mandate", "".join([*elements, fact_list(mandate_text.mandate_settings(report.mandate))]))


def overfitting(report: RunReport) -> str:
    """Histogram of the probability of backtest overfitting (PBO)."""
    statistic = report.verdict.statistics.overfitting if report.verdict else None
    if statistic is None or statistic.logits is None:
        return ""
    figure = charts.logits_figure(statistic.logits)
    label = "Out-of-sample rank of the best trial of one half: bars left of zero are below the median"
    lead = note(overfitting_sentence(statistic)) + chart("logits", figure, label, "low")
    return section("Backtest overfitting", "", lead=lead)


def equity(report: RunReport, results: Mapping[str, BacktestResult], styles: Mapping[str, Style]) -> str:
    """Equity curves above their drawdowns, with their key, and the bootstrap band if there is one."""
    band = report.test.band
    words = label = ""
    if band is not None:
        name = in_sentence(report.subject)
        level = f"{100 * band.level:.0f}%"
        label = f"{level} bootstrap band of {name}"
        words = note(
            f"The band holds {level} of the stationary bootstrap resamples of {name} at each bar; the chart cuts it "
            "off beyond the curves."
        )
    alt = "Growth of 1 of each strategy on a logarithmic axis, and below it the decline from the running peak"
    figure = chart("equity", charts.equity_figure(results, band), alt, "tall")
    first = (
        '<p class="note">Growth of 1 on a logarithmic axis, after costs, and decline from the running peak below.'
        '<span class="screen"> Click a name to show or hide its lines in all charts.</span></p>'
    )
    return section("Equity", words, lead=first + key(styles, label) + figure)


def drawdowns(report: RunReport) -> str:
    """The deepest drawdowns; empty without one."""
    sheet = report.test.tearsheet
    if not sheet.drawdowns:
        return ""
    name = in_sentence(sheet.of)
    words = (
        f"The deepest drawdowns of {name}. Bars are those from the peak to the recovery, or to the end; "
        f"the longest drawdown lasts {count_text(sheet.longest_drawdown[sheet.of], 'bar')}."
    )
    return section("Drawdowns", note(words) + tables.drawdowns_table(sheet.drawdowns))


def rolling(report: RunReport, results: Mapping[str, BacktestResult], styles: Mapping[str, Style]) -> str:
    """Rolling Sharpe ratio, volatility and beta to the base; empty if the period is shorter than the window."""
    ratios = [ratio for ratio in report.test.tearsheet.rolling_sharpe.values() if ratio.last is not None]
    if not ratios:
        return ""
    lead = (
        note(f"Annualised Sharpe ratio over a rolling window of {ratios[0].window} bars.")
        + key(styles)
        + chart("rolling", charts.rolling_sharpe_figure(results), "Rolling Sharpe ratio of each strategy", "low")
    )
    volatility = charts.rolling_volatility_figure(results)
    further_charts = block(
        note("Annualised volatility over the same window."),
        chart("rolling-volatility", volatility, "Rolling volatility of each strategy", "low"),
    )
    if report.base in results and len(results) > 1:
        base = in_sentence(report.base)
        beta = charts.rolling_beta_figure(results, report.base)
        further_charts += block(
            note(f"Beta to {base} over the same window."),
            chart("rolling-beta", beta, f"Rolling beta of each strategy to {base}", "low"),
        )
    return section("Rolling Sharpe ratio, volatility and beta", further_charts, lead=lead)


def months(report: RunReport) -> str:
    """Monthly returns of the strategy that the report is about."""
    sheet = report.test.tearsheet
    words = f"Returns of {in_sentence(sheet.of)} in percent; the first and the last month may be partial."
    return section("Monthly returns", note(words) + tables.monthly_table(sheet.monthly))


def trading(report: RunReport, results: Mapping[str, BacktestResult], styles: Mapping[str, Style]) -> str:
    """Turnover and costs over time, and costs by kind."""
    name = report.subject
    subject = in_sentence(name)
    turnover = charts.turnover_figure(results[name], styles[name].colour)
    lead = note(
        f"One-sided turnover of {subject} by month: half of the value traded, the first purchase included, as a share "
        "of equity."
    ) + chart("turnover", turnover, f"Turnover of {subject} by month", "low")
    further_charts = block(
        note("Cumulative costs as a share of initial equity."),
        key(styles),
        chart("costs", charts.costs_figure(results), "Cumulative costs of each strategy", "low"),
    )
    if len(results[name].cost_parts) > 1:
        parts = charts.cost_breakdown_figure(results[name])
        further_charts += block(
            note(f"Cumulative costs of {subject} by kind, as a share of initial equity."),
            chart("parts", parts, f"Cumulative costs of {subject} by kind", "low", side_legend=True),
        )
    words = note("Costs over the whole period, in the currency of the prices; cost drag: mean share of equity.")
    costs = tables.costs_table(report.test.tearsheet.costs, styles)
    return section("Turnover and costs", further_charts + words + costs, lead=lead)


def distribution(report: RunReport, results: Mapping[str, BacktestResult], styles: Mapping[str, Style]) -> str:
    """Histogram and moments of the returns per bar."""
    first = note("Share of bars by their simple return; the outermost points include all returns beyond them.")
    label = "Histogram of the returns of a bar of each strategy"
    chart_html = chart("distribution", charts.distribution_figure(results), label, "low")
    meanings = {
        "5% VaR": "the return that 5% of the bars fall below",
        "5% expected shortfall": "the mean return of those bars",
        "kurtosis": "3 for a normal distribution",
        "positive": "share of the bars with a return above 0",
    }
    table_html = tables.distribution_table(report.test.tearsheet.distribution, styles)
    return section("Distribution of returns", table_html + definitions(meanings), lead=first + key(styles) + chart_html)


def cost_curve(report: RunReport, styles: Mapping[str, Style]) -> str:
    """Annual return by proportional cost, for the same decisions."""
    rows = report.test.cost_curve
    if not rows:
        return ""
    name = report.subject
    run_cost = report.test.cost_bps
    words = note(
        f"The decisions of {in_sentence(name)}, made under the {run_cost:g} basis points of this run, at other "
        "transaction costs."
    )
    figure = charts.cost_curve_figure(rows, run_cost, styles[name].colour)
    chart_html = chart("sensitivity", figure, "Annual return by transaction cost", "low")
    return section("Sensitivity to costs", tables.cost_curve_table(rows, run_cost), lead=words + chart_html)


def key(styles: Mapping[str, Style], band: str = "") -> str:
    """The legend of the line charts; its buttons show and hide strategies. band: label of the grey band, if any."""
    visible = {CHAMPION, *charts.reference_names(styles)} if CHAMPION in styles else set(styles)
    buttons = "".join(
        f'<button type="button" aria-pressed="{str(name in visible).lower()}" data-strategy="{html.escape(name)}">'
        f"{tables.key_line(styles[name])}{html.escape(display_name(name))}</button>"
        for name in champion_first(styles)
    )
    label = f'<span class="band">{html.escape(band)}</span>' if band else ""
    return f'<div class="keys">{buttons}{label}</div>'
