"""The sections of a tear sheet, each a pure function of the report's object; one whose record is missing is empty."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from finrl_pod.types import BacktestResult
from finrl_pod_app.report import charts, figures
from finrl_pod_app.report.columns import in_order, readable
from finrl_pod_app.report.palette import Style
from finrl_pod_app.report.tables import (
    cost_curve_table,
    costs_table,
    distribution_table,
    drawdowns_table,
    gate_table,
    key_line,
    monthly_table,
)


def chart(name: str, figure: Any, size: str = "") -> str:
    from plotly.io import to_html

    # A name of its own instead of a random one: equal runs give equal pages.
    drawn = to_html(figure, full_html=False, include_plotlyjs=False, div_id=name, config={"responsive": True})
    return f'<div class="{f"chart {size}".strip()}">{drawn}</div>'


def section(title: str, body: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>\n{body}</section>"


def fact_list(facts: Mapping[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in facts.items()) + "</dl>"


def listed(sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    items = "".join(
        f"<li{' class=warning' if sentence.startswith('Warning') else ''}>{html.escape(sentence)}</li>"
        for sentence in sentences
    )
    return f"<ul>{items}</ul>"


def gate(document: Mapping[str, Any]) -> str:
    """The rules of the verdict one by one, and how often the data was tried and the test period looked at."""
    verdict = document.get("verdict") or {}
    if not verdict.get("rules"):
        return ""
    counted = verdict.get("trials") or {}
    words = [f"{number:,} {readable(name)}" for name, number in counted.items()]
    trials = f"Trials counted on this data: {', '.join(words)}. " if words else ""
    looks = f"Looks at the test period, this one included: {verdict['looks']}." if verdict.get("looks") else ""
    note = f'<p class="note">{html.escape(trials + looks)}</p>' if trials + looks else ""
    return section("The gate, rule by rule", gate_table(verdict["rules"]) + note)


def overfitting(document: Mapping[str, Any]) -> str:
    """The histogram of the probability of backtest overfitting, where it was computed."""
    statistics = (document.get("verdict") or {}).get("statistics") or {}
    found = statistics.get("overfitting")
    if not found or "logits" not in found:
        return ""
    note = (
        f"Probability of backtest overfitting {100 * found['pbo']:.0f}%: the share of the {found['splits']:,} splits "
        "of the validation days in which the best trial of one half ranked at or below the median on the other: left "
        "of zero."
    )
    figure = charts.logits_figure(found["logits"])
    return section("Overfitting", f'<p class="note">{html.escape(note)}</p>{chart("logits", figure, "low")}')


def equity(document: Mapping[str, Any], results: Mapping[str, BacktestResult], looks: Mapping[str, Style]) -> str:
    band = document["test"].get("band")
    words = ""
    if band is not None:
        name = readable(document["test"]["tearsheet"]["of"])
        words = (
            f'<p class="note">The grey band holds {100 * band["level"]:.0f}% of what {html.escape(name)} might have '
            "come to at each day, had its days come in other blocks (stationary bootstrap).</p>"
        )
    return section("Equity", key(looks) + chart("equity", figures.equity_figure(results, band)) + words)


def drawdowns(document: Mapping[str, Any], results: Mapping[str, BacktestResult]) -> str:
    sheet = document["test"]["tearsheet"]
    name, rows = sheet["of"], sheet["drawdowns"]
    longest = sheet["longest_drawdown"][name]
    note = (
        f'<p class="note">The deepest drawdowns of {html.escape(readable(name))}; its longest time below a peak is '
        f"{longest:,} bars.</p>"
    )
    table = note + drawdowns_table(rows) if rows else ""
    return section("Drawdown", chart("drawdown", figures.drawdown_figure(results), "low") + table)


def rolling(document: Mapping[str, Any], results: Mapping[str, BacktestResult]) -> str:
    rolling = document["test"]["tearsheet"]["rolling_sharpe"]
    if all(one["last"] is None for one in rolling.values()):
        return ""
    window = next(iter(rolling.values()))["window"]
    note = f'<p class="note">Over the last {window} bars at each day, a year.</p>'
    return section("Rolling Sharpe ratio", note + chart("rolling", charts.rolling_figure(results), "low"))


def months(document: Mapping[str, Any]) -> str:
    sheet = document["test"]["tearsheet"]
    note = f'<p class="note">{html.escape(readable(sheet["of"]))}, in percent; the first and last may be parts.</p>'
    return section("Return of each month", note + monthly_table(sheet["monthly"]))


def trading(document: Mapping[str, Any], results: Mapping[str, BacktestResult], looks: Mapping[str, Style]) -> str:
    name = document["test"]["tearsheet"]["of"]
    shown = html.escape(readable(name))
    parts = [
        f'<p class="note">Turnover of {shown} in each month: half of the value traded, as a share of equity.</p>',
        chart("turnover", charts.turnover_figure(results[name], looks[name].colour), "low"),
        '<p class="note">Costs paid so far, as a share of the equity at the start.</p>',
        chart("costs", charts.costs_figure(results), "low"),
    ]
    if len(results[name].cost_parts) > 1:
        parts.append(f'<p class="note">The costs of {shown} by kind.</p>')
        parts.append(chart("parts", charts.parts_figure(results[name]), "low"))
    parts.append(costs_table(document["test"]["tearsheet"]["costs"], looks))
    return section("Turnover and costs", "".join(parts))


def distribution(document: Mapping[str, Any], results: Mapping[str, BacktestResult], looks: Mapping[str, Style]) -> str:
    note = (
        '<p class="note">Share of the bars with each return; the outermost points count all that lies beyond. Kurtosis '
        "of a normal distribution is 3.</p>"
    )
    drawn = chart("distribution", charts.distribution_figure(results), "low")
    return section(
        "Distribution of returns",
        note + drawn + distribution_table(document["test"]["tearsheet"]["distribution"], looks),
    )


def cost_curve(document: Mapping[str, Any], looks: Mapping[str, Style]) -> str:
    rows = document["test"].get("cost_curve")
    if not rows:
        return ""
    name, charged = document["test"]["tearsheet"]["of"], document["test"]["cost_bps"]
    note = (
        f'<p class="note">The same decisions of {html.escape(readable(name))} under other proportional costs; the '
        f"dotted line marks the {charged:g} basis points that were charged.</p>"
    )
    drawn = chart("sensitivity", charts.cost_curve_figure(rows, charged, looks[name].colour), "low")
    return section("What costs do to it", note + drawn + cost_curve_table(rows))


def key(looks: Mapping[str, Style]) -> str:
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-strategy="{html.escape(name)}">'
        f"{key_line(looks[name])}{html.escape(readable(name))}</button>"
        for name in in_order(looks)
    )
    return (
        '<p class="note">Multiple of the equity at the start, on a logarithmic axis. A click on a name hides or shows '
        f'its lines.</p><div class="keys">{buttons}</div>'
    )
