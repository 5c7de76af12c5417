"""Figures of accounts that the report lacks: monthly returns, turnover of several strategies, alpha and beta.

`finrl_pod_app.report.charts` has the other figures of runs and comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from finrl_pod.evaluate.metrics import bars_per_year
from finrl_pod.evaluate.tearsheet import compound_return, monthly_returns, rolling_alpha_beta
from finrl_pod.types import BacktestResult, Floats, Times
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.figures.prices import heat_map
from finrl_pod_app.dashboard.queries.comparison import Curve, comparable
from finrl_pod_app.report import charts
from finrl_pod_app.report.columns import display_name, percent
from finrl_pod_app.report.palette import Style
from finrl_pod_app.report.tables import MONTHS

MAX_YEARS_ACROSS = 7  # as columns; more do not fit on a phone
# Half transparent at both ends: the text stays readable on every cell, in light and in dark.
DIVERGING = [[0.0, "rgba(213,94,0,0.55)"], [0.5, "rgba(128,128,128,0.05)"], [1.0, "rgba(20,138,205,0.55)"]]

Styles = Mapping[str, Style]


def monthly_returns_heatmap(times: Times, equity: Floats) -> Any:
    """Returns by month and year in percent. Years are columns, or rows if there are too many for a narrow page."""
    table = monthly_returns(times, equity)
    years = list(table)
    months = [*MONTHS, "year"]
    values = np.full((len(years), len(months)), np.nan)
    for row, year in enumerate(years):
        for month, value in table[year].items():
            values[row, int(month) - 1] = value
        values[row, -1] = compound_return(table[year])
    text = np.array([["" if np.isnan(value) else percent(value) for value in row] for row in values])
    limit = max(float(np.nanmax(np.abs(values[:, :-1]))), 1e-4)  # larger yearly returns have the deepest colour
    if has_year_columns := len(years) <= MAX_YEARS_ACROSS:
        values = values.T
        text = text.T
    figure = heat_map(
        np.clip(values, -limit, limit),
        years if has_year_columns else months,
        months if has_year_columns else years,
        DIVERGING,
        limits=(-limit, limit),
        text=text,
        texttemplate="%{text}",
        xgap=2,
        ygap=2,
        hovertemplate="%{y} %{x}: %{text}%<extra></extra>",
    )
    figure.update_xaxes(side="top", type="category")
    return figure


def turnover(results: Sequence[BacktestResult], styles: Styles) -> Any:
    """One-sided turnover of each month as a share of equity."""
    figure = charts.empty_figure()
    for result in results:
        months, sums = charts.monthly_turnover(result)
        figure.add_bar(
            x=months,
            y=sums,
            name=theme.escape_html(display_name(result.name)),
            marker_color=styles[result.name].colour,
            hovertemplate="%{y:.1%}",
        )
    figure.update_layout(barmode="group")
    figure.update_yaxes(tickformatstops=charts.PERCENT_TICKS, rangemode="tozero", title="monthly turnover")
    return figure


def rolling_alpha_beta_figure(curves: Mapping[str, Curve], benchmark: str, styles: Styles) -> Any:
    """Rolling alpha above rolling beta."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=2, shared_xaxes=True, vertical_spacing=0.08)
    for name, curve in comparable(curves, benchmark).items():
        base = curves[benchmark].equity
        alpha, beta = rolling_alpha_beta(curve.equity, base, curve.risk_free, periods=bars_per_year(curve.times))
        for row, values, hover in ((1, alpha, "%{y:.1%}"), (2, beta, "%{y:.2f}")):
            attributes = {"legendgroup": name, "showlegend": row == 1, "row": row, "col": 1}
            charts.add_line(figure, name, curve.times, values, styles[name], hover, **attributes)
    figure.update_yaxes(tickformatstops=charts.PERCENT_TICKS, title="alpha, per year", row=1, col=1)
    figure.update_yaxes(title="beta", row=2, col=1)
    return figure
