"""The sections of the report's page as HTML, each a pure function of the report's object.

A section returns "" if its part of the object is missing.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from finrl_pod.types import BacktestResult
from finrl_pod_app.report import charts
from finrl_pod_app.report.columns import CHAMPION, champion_first, display_name
from finrl_pod_app.report.headline import key_figures
from finrl_pod_app.report.mandate_text import ADDED, USAGE, YEARS, mandate_settings
from finrl_pod_app.report.palette import Style
from finrl_pod_app.report.tables import (
    added_table,
    cost_curve_table,
    costs_table,
    distribution_table,
    drawdowns_table,
    gate_table,
    key_line,
    mandate_usage_table,
    monthly_table,
)
from finrl_pod_app.report.verdict_text import looks_sentence, overfitting_sentence, trials_text


def chart(name: str, figure: Any, size: str = "") -> str:
    """A figure in its frame, which the page's script draws. name: the element's id. size: "low", "tall" or empty."""
    drawn = figure.to_json().replace("<", "\\u003c")  # no text of a figure may end the element
    return (
        f'<div class="{f"chart {size}".strip()}" id="chart-{name}"></div>'
        f'<script type="application/json" data-chart="{name}">{drawn}</script>'
    )


def anchor(title: str) -> str:
    """The id of a section: "Market rules" -> "market-rules"."""
    return "-".join("".join(sign if sign.isalnum() else " " for sign in title.lower()).split())


def section(title: str, body: str) -> str:
    """A section of HTML under an escaped heading, to which the contents link."""
    return f'<section id="{anchor(title)}"><h2>{html.escape(title)}</h2>\n{body}</section>'


def headline(document: Mapping[str, Any]) -> str:
    """The strip of key figures."""
    cells = "".join(
        f'<div title="{html.escape(figure.note)}"><dt>{html.escape(figure.label)}</dt><dd>{html.escape(figure.text)}'
        f"<small>{html.escape(figure.against)}</small></dd></div>"
        for figure in key_figures(document)
    )
    return f'<dl class="headline">{cells}</dl>'


def contents(parts: Sequence[str]) -> str:
    """Links to the sections among the parts of a page."""
    found = re.findall(r'<section id="([^"]+)"><h2>([^<]+)</h2>', "".join(parts))
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in found)
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>' if links else ""


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


def gate(document: Mapping[str, Any]) -> str:
    """The promotion rules one by one, the trial count and the number of looks at the test period."""
    verdict = document.get("verdict") or {}
    if not verdict.get("rules"):
        return ""
    counted = verdict.get("trials") or {}
    trials = f"{trials_text(counted)}. " if counted else ""
    notes = [_note(words)] if (words := trials + looks_sentence(document)) else []
    if warnings := (verdict.get("statistics") or {}).get("audit_warnings"):
        notes += ["<p>Warnings of the audit:</p>", bullet_list(warnings)]
    return section("Promotion rules", "".join([gate_table(verdict["rules"], verdict["reasons"]), *notes]))


def mandate(document: Mapping[str, Any]) -> str:
    """The mandate's settings, how much of it was used, and what the champion added to its base."""
    settings = document.get("mandate")
    if not settings:
        return ""
    parts = []
    if comparisons := [document[name] for name in ("added", "added_to_tilt_zero") if document.get(name)]:
        note = f"What the champion added on the period {' to '.join(document['splits']['test'])}."
        meanings = "; ".join(f"{measure.label}: {measure.note}" for measure in (*ADDED, YEARS))
        parts += [_note(note), added_table(comparisons), _note(f"{meanings}.")]
    if usage := document.get("mandate_usage"):
        note = "How much of the mandate was used, against the mandate at tilt 0 with the same trading."
        notes = "; ".join(f"{measure.label}: {measure.note}" for measure in USAGE)
        parts += [_note(note), mandate_usage_table(usage), _note(f"{notes}.")]
    return section("Mandate", "".join([*parts, fact_list(mandate_settings(settings))]))


def overfitting(document: Mapping[str, Any]) -> str:
    """Histogram of the probability of backtest overfitting (PBO)."""
    statistics = (document.get("verdict") or {}).get("statistics") or {}
    found = statistics.get("overfitting")
    if not found or "logits" not in found:
        return ""
    figure = charts.logits_figure(found["logits"])
    return section("Backtest overfitting", _note(overfitting_sentence(found)) + chart("logits", figure, "low"))


def equity(document: Mapping[str, Any], results: Mapping[str, BacktestResult], styles: Mapping[str, Style]) -> str:
    """Equity curves above their drawdowns, with their key, and the bootstrap band if there is one."""
    band = document["test"].get("band")
    words = ""
    if band is not None:
        name = display_name(document["test"]["tearsheet"]["of"])
        words = (
            f'<p class="note">Grey band: {100 * band["level"]:.0f}% of the stationary bootstrap resamples of '
            f"{html.escape(name)} at each bar.</p>"
        )
    return section("Equity", key(styles) + chart("equity", charts.equity_figure(results, band), "tall") + words)


def drawdowns(document: Mapping[str, Any]) -> str:
    """The deepest drawdowns; empty without one."""
    sheet = document["test"]["tearsheet"]
    name, rows = sheet["of"], sheet["drawdowns"]
    if not rows:
        return ""
    longest = sheet["longest_drawdown"][name]
    note = f"The deepest drawdowns of {display_name(name)}; its longest drawdown lasts {longest:,} bars."
    return section("Drawdowns", _note(note) + drawdowns_table(rows))


def rolling(document: Mapping[str, Any], results: Mapping[str, BacktestResult]) -> str:
    """Rolling Sharpe ratio; empty if the period is shorter than the window."""
    rolling = document["test"]["tearsheet"]["rolling_sharpe"]
    if all(one["last"] is None for one in rolling.values()):
        return ""
    window = next(iter(rolling.values()))["window"]
    note = f'<p class="note">Annualised, over a rolling window of {window} bars.</p>'
    return section("Rolling Sharpe ratio", note + chart("rolling", charts.rolling_sharpe_figure(results), "low"))


def months(document: Mapping[str, Any]) -> str:
    """Monthly returns of the strategy that the report is about."""
    sheet = document["test"]["tearsheet"]
    note = f'<p class="note">{html.escape(display_name(sheet["of"]))}, in percent; end months may be partial.</p>'
    return section("Monthly returns", note + monthly_table(sheet["monthly"]))


def trading(document: Mapping[str, Any], results: Mapping[str, BacktestResult], styles: Mapping[str, Style]) -> str:
    """Turnover and costs over time, and costs by kind."""
    name = document["test"]["tearsheet"]["of"]
    shown = html.escape(display_name(name))
    parts = [
        f'<p class="note">Monthly one-sided turnover of {shown}: half of the value traded, as a share of equity.</p>',
        chart("turnover", charts.turnover_figure(results[name], styles[name].colour), "low"),
        '<p class="note">Cumulative costs as a share of initial equity.</p>',
        chart("costs", charts.costs_figure(results), "low"),
    ]
    if len(results[name].cost_parts) > 1:
        parts.append(f'<p class="note">Cumulative costs of {shown} by kind.</p>')
        parts.append(chart("parts", charts.cost_breakdown_figure(results[name]), "low"))
    parts.append(costs_table(document["test"]["tearsheet"]["costs"], styles))
    return section("Turnover and costs", "".join(parts))


def distribution(
    document: Mapping[str, Any], results: Mapping[str, BacktestResult], styles: Mapping[str, Style]
) -> str:
    """Histogram and moments of the returns per bar."""
    note = (
        '<p class="note">Share of bars by return; the outermost points include all returns beyond them. A normal '
        "distribution has a kurtosis of 3.</p>"
    )
    drawn = chart("distribution", charts.distribution_figure(results), "low")
    return section(
        "Distribution of returns",
        note + drawn + distribution_table(document["test"]["tearsheet"]["distribution"], styles),
    )


def cost_curve(document: Mapping[str, Any], styles: Mapping[str, Style]) -> str:
    """Annual return by proportional cost, for the same decisions."""
    rows = document["test"].get("cost_curve")
    if not rows:
        return ""
    name, charged = document["test"]["tearsheet"]["of"], document["test"]["cost_bps"]
    note = (
        f'<p class="note">The decisions of {html.escape(display_name(name))} under other proportional costs; the '
        f"dotted line marks the {charged:g} basis points of this backtest.</p>"
    )
    drawn = chart("sensitivity", charts.cost_curve_figure(rows, charged, styles[name].colour), "low")
    return section("Sensitivity to costs", note + drawn + cost_curve_table(rows))


def _note(text: str) -> str:
    return f'<p class="note">{html.escape(text)}</p>'


def key(styles: Mapping[str, Style]) -> str:
    """The legend of the line charts, whose buttons show and hide strategies."""
    shown = {CHAMPION, *charts.reference_names(styles)} if CHAMPION in styles else set(styles)
    buttons = "".join(
        f'<button type="button" aria-pressed="{str(name in shown).lower()}" data-strategy="{html.escape(name)}">'
        f"{key_line(styles[name])}{html.escape(display_name(name))}</button>"
        for name in champion_first(styles)
    )
    return (
        '<p class="note">Growth of 1 on a logarithmic axis. Click a name to show or hide its lines.</p>'
        f'<div class="keys">{buttons}</div>'
    )
