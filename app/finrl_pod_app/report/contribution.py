"""Sections on what a strategy adds: against the benchmark, by asset and year, and by account size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finrl_pod.errors import count_text
from finrl_pod.evaluate.active_management import BENCHMARK_METRICS, COMPARISON_METRICS, HOLDINGS_BETA
from finrl_pod_app.report import charts
from finrl_pod_app.report.columns import display_name, in_sentence, number, percent, return_interval
from finrl_pod_app.report.palette import Style
from finrl_pod_app.report.records import Attribution, Capacity, RunReport
from finrl_pod_app.report.sections import chart, definitions, note, section
from finrl_pod_app.report.tables import column_heads, metrics_table, table, table_row

TIMED_BETA = 0.1  # smallest difference of two betas that is called timing
NAMED_ASSETS = 24  # the others are one bar


def benchmark(report: RunReport, styles: Mapping[str, Style]) -> str:
    """Every strategy against the benchmark; empty without one."""
    base = report.test.benchmark
    strategies = report.test.strategies
    rivals = {name: values for name, values in strategies.items() if name != base}
    if base is None or not any(BENCHMARK_METRICS[0].name in values for values in rivals.values()):
        return ""
    metrics = [metric for metric in COMPARISON_METRICS if any(metric.name in values for values in rivals.values())]
    meanings = definitions({metric.label: metric.explanation for metric in metrics})
    own = rivals.get(report.subject, {})
    beta, holdings = own.get("beta"), own.get(HOLDINGS_BETA.name)
    if beta is not None and holdings is not None and abs(beta - holdings) > TIMED_BETA:
        meanings += note(
            f"The returns have a beta of {number(beta)}, the holdings of {number(holdings)}: part of the difference to "
            f"{in_sentence(base)} is timing of beta, not selection of assets."
        )
    return section(f"Against {in_sentence(base)}", metrics_table(rivals, styles, metrics) + meanings)


PARTS = {
    "market_beta": "the beta of an asset over the 252 bars before, without a history 1",
    "momentum": "its return from 252 to 21 bars before",
    "reversal": "its return over 5 bars",
    "low_volatility": "its volatility over 252 bars",
    "residual": "selection of assets beyond these, trades between two closes, interest and fees",
    "costs": "costs less the costs of the base",
}


def active_parts(report: RunReport) -> str:
    """The active return by factor, residual and costs; empty without an attribution."""
    attribution = report.active_attribution
    if attribution is None:
        return ""
    residual = attribution.residual_interval
    rows = [
        table_row(
            display_name(name),
            [percent(value, 2, sign=True), return_interval(residual.low, residual.high) if name == "residual" else ""],
            title=PARTS.get(name, ""),
        )
        for name, value in attribution.parts.items()
    ]
    total = table_row("active return", [percent(attribution.total, 2, sign=True), ""], is_marked=True)
    heads = column_heads("part", "% per year", f"{100 * attribution.level:.0f}% interval")
    words = note(
        f"Mean return of {in_sentence(report.subject)} over {in_sentence(attribution.base)}, from the holdings: active "
        "weights at each close times the exposures known then, times the return of the factor in the next bar (a slope "
        "of the regression of the returns of all assets on their exposures). Factors are before costs. The interval "
        "resamples days in blocks. The exposures have a condition number of "
        f"{number(attribution.condition_number, 1)} (median over the bars); above 30, factors are hard to tell apart."
    )
    return section(
        "Active return by factor",
        words
        + table(heads, [*rows, total], is_wide=False)
        + definitions({display_name(name): meaning for name, meaning in PARTS.items()}),
    )


def profit(report: RunReport) -> str:
    """The profit of the strategy that the report is about, by asset and by year; empty without attribution."""
    attribution = report.attribution
    if attribution is None or not attribution.by_asset:
        return ""
    name = in_sentence(report.subject)
    words = note(
        f"Profit of {name} before costs, in the currency of the prices: the change of a holding's value between two "
        "closes, with its dividends, less what was paid for it."
    )
    heads = column_heads("year", *YEAR_COLUMNS.values())
    rows = [
        table_row(str(row.year), cells) for row, cells in zip(attribution.by_year, year_cells(attribution), strict=True)
    ]
    size = "tall" if len(attribution.by_asset) > NAMED_ASSETS // 2 else ""
    chart_html = chart("attribution", profit_figure(attribution), f"Profit of {name} by asset", size)
    return section("Profit by asset, and by year", table(heads, rows, is_wide=False), lead=words + chart_html)


YEAR_COLUMNS = {"profit": "profit", "costs": "costs", "carry": "interest less fees", "return": "return after costs, %"}


def year_cells(attribution: Attribution) -> list[list[str]]:
    """The cells of `YEAR_COLUMNS` for each year of the attribution."""
    return [
        [number(row.profit, 0), number(row.costs, 0), number(row.carry, 0), percent(row.year_return)]
        for row in attribution.by_year
    ]


def profit_figure(attribution: Attribution) -> Any:
    """Profit by asset as bars without a layout, the largest on top; beyond `NAMED_ASSETS`, the middle is one bar."""
    profits = sorted(((name, value or 0.0) for name, value in attribution.by_asset.items()), key=lambda item: -item[1])
    if len(profits) > NAMED_ASSETS:
        half = NAMED_ASSETS // 2
        middle = profits[half:-half]
        middle_bar = (count_text(len(middle), "other"), sum(value for _, value in middle))
        profits = [*profits[:half], middle_bar, *profits[-half:]]
    title = "profit before costs, in the currency of the prices"
    return charts.signed_bars_figure(dict(profits), title, in_percent=False)


def capacity_section(report: RunReport) -> str:
    """Active growth by account size; empty if it was not measured."""
    capacity = report.capacity
    if capacity is None:
        return ""
    figure = capacity_figure(capacity)
    chart_html = chart("capacity", figure, "Active growth by account size, with its interval", "low")
    rows = [
        table_row(
            number(row.account, 0),
            [
                percent(row.active_growth, 2, sign=True),
                f"{percent(row.low, 2, sign=True)} to {percent(row.high, 2, sign=True)}",
                percent(row.cost, 2),
            ],
        )
        for row in capacity.curve
    ]
    heads = column_heads("account", "active growth, % per year", "interval", "costs, % per year")
    words = note(
        f"{capacity_sentence(capacity)} Impact of a trade: {capacity.impact:g} times the daily volatility times the "
        "square root of its share of the average daily volume, of which at most "
        f"{100 * capacity.participation:g}% fills. Grey band: {100 * capacity.level:.0f}% interval (stationary "
        "bootstrap)."
    )
    return section("Capacity", table(heads, rows, is_wide=False), lead=words + chart_html)


def capacity_figure(capacity: Capacity) -> Any:
    """Annual active growth by account size on a log axis, with its interval, without a layout."""
    rows = capacity.curve
    sizes = [row.account for row in rows]
    figure = charts.empty_figure()
    charts.add_range(figure, sizes, [row.low for row in rows], [row.high for row in rows], showlegend=False)
    figure.add_scatter(
        x=sizes,
        y=[row.active_growth for row in rows],
        mode="lines+markers",
        line={"color": charts.GAIN, "width": 2},
        showlegend=False,
        hovertemplate="%{x:,.0f}: %{y:.2%} a year<extra></extra>",
    )
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(title="account size", type="log", tickformat="~s", dtick=1)
    figure.update_yaxes(title="active growth per year", tickformatstops=charts.PERCENT_TICKS, zeroline=True)
    return figure


def capacity_sentence(capacity: Capacity) -> str:
    """What becomes of the active growth in larger accounts."""
    smallest = capacity.curve[0]
    base = display_name(capacity.base)
    growth = percent(smallest.active_growth, 2, sign=True, unit="%")
    start = f"An account of {smallest.account:,.0f} grows {growth} per year against {base}"
    if capacity.half.value == 0:
        return f"{start}, so that no account adds anything: the capacity is 0."
    sizes = [
        f"{name} of it remains at {_account(size.value)} "
        f"({capacity.level:.0%} interval {_account(size.low)} to {_account(size.high)})"
        for name, size in (("half", capacity.half), ("nothing", capacity.zero))
    ]
    return f"{start}; with market impact {', and '.join(sizes)}."


def _account(size: float | None) -> str:
    return "beyond the largest account" if size is None else f"{size:,.0f}"
