"""Figures of a comparison: equity, drawdown, rolling Sharpe ratio, monthly returns, weights, turnover and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from finrl_pod.display import dates, decimated
from finrl_pod.evaluate.metrics import bars_per_year, drawdown
from finrl_pod.evaluate.tearsheet import ROLLING_BARS, compound_return, monthly_returns, rolling_sharpe
from finrl_pod.types import BacktestResult, Floats, Times
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.queries.comparison import Curve
from finrl_pod_app.report.charts import (
    PERCENT_TICKS,
    add_band,
    growth,
    logit_bars,
    monthly_turnover,
    set_log_axis,
    stacked_weights,
)
from finrl_pod_app.report.columns import display_name, percent
from finrl_pod_app.report.palette import Style
from finrl_pod_app.report.records import Band, Histogram
from finrl_pod_app.report.tables import MONTHS

MAX_YEARS_ACROSS = 7  # as columns; more do not fit on a phone
# Half transparent at both ends, so that the text stays readable on every cell, in light and in dark.
DIVERGING = [[0.0, "rgba(213,94,0,0.55)"], [0.5, "rgba(128,128,128,0.05)"], [1.0, "rgba(20,138,205,0.55)"]]

Styles = Mapping[str, Style]


def equity(curves: Mapping[str, Curve], styles: Styles, band: Band | None = None) -> Any:
    """Growth of 1 on a log axis. band: of the first strategy, as `bootstrap_band` gives it."""
    multiples = {name: growth(curve.equity) for name, curve in curves.items()}
    figure = _lines(curves, multiples, styles, "%{y:.3f}×")
    set_log_axis(figure, multiples)
    if band is not None:
        first = next(iter(curves))
        name = f"{100 * band.level:.0f}% bootstrap band of {theme.escape_html(display_name(first))}"
        add_band(figure, curves[first].times, band, name=name)
    figure.update_yaxes(title="growth of 1, log scale")
    return figure


def drawdowns(curves: Mapping[str, Curve], styles: Styles) -> Any:
    """Decline from the running peak."""
    figure = _lines(curves, {name: drawdown(curve.equity) for name, curve in curves.items()}, styles, "%{y:.1%}")
    figure.update_yaxes(tickformatstops=PERCENT_TICKS, rangemode="tozero")
    return figure


def rolling_sharpe_ratios(curves: Mapping[str, Curve], styles: Styles) -> Any:
    """Rolling annualised Sharpe ratio over half a year of bars."""
    values = {
        name: rolling_sharpe(curve.equity, curve.risk_free, periods=bars_per_year(curve.times))
        for name, curve in curves.items()
    }
    figure = _lines(curves, values, styles, "%{y:.2f}")
    figure.update_yaxes(zeroline=True, title=f"Sharpe ratio over {ROLLING_BARS} bars")
    return figure


def monthly_returns_heatmap(times: Times, equity: Floats) -> Any:
    """Returns by month and year in percent. Years are columns, or rows if there are too many for a narrow page."""
    import plotly.graph_objects as go

    table = monthly_returns(times, equity)
    years, parts = list(table), [*MONTHS, "year"]
    values = np.full((len(years), len(parts)), np.nan)
    for row, year in enumerate(years):
        for month, value in table[year].items():
            values[row, int(month) - 1] = value
        values[row, -1] = compound_return(table[year])
    text = np.array([["" if np.isnan(value) else percent(value) for value in row] for row in values])
    limit = max(float(np.nanmax(np.abs(values[:, :-1]))), 1e-4)  # larger yearly returns have the deepest colour
    across = len(years) <= MAX_YEARS_ACROSS
    figure = go.Figure(
        go.Heatmap(
            z=np.clip(values.T if across else values, -limit, limit),
            x=years if across else parts,
            y=parts if across else years,
            text=text.T if across else text,
            texttemplate="%{text}",
            colorscale=DIVERGING,
            zmin=-limit,
            zmax=limit,
            showscale=False,
            xgap=2,
            ygap=2,
            hovertemplate="%{y} %{x}: %{text}%<extra></extra>",
        )
    )
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(side="top", type="category")
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    return figure


def weights(result: BacktestResult) -> Any:
    """Portfolio weights over time, stacked: the largest by mean, the others together, then cash."""
    figure = stacked_weights(result)
    figure.update_yaxes(tickformatstops=PERCENT_TICKS, title="share of equity")
    return figure


def turnover(results: Sequence[BacktestResult], styles: Styles) -> Any:
    """One-sided turnover of each month as a share of equity."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for result in results:
        months, sums = monthly_turnover(result)
        figure.add_bar(
            x=months,
            y=sums,
            name=theme.escape_html(display_name(result.name)),
            marker_color=styles[result.name].colour,
            hovertemplate="%{y:.1%}",
        )
    figure.update_layout(barmode="group")
    figure.update_yaxes(tickformatstops=PERCENT_TICKS, rangemode="tozero", title="monthly turnover")
    return figure


def costs(results: Sequence[BacktestResult], styles: Styles) -> Any:
    """Cumulative costs as a share of initial equity."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for result in results:
        add_line(figure, result.name, result.times, result.costs.cumsum() / result.equity[0], styles, "%{y:.3%}")
    figure.update_yaxes(tickformatstops=PERCENT_TICKS, rangemode="tozero", title="cumulative costs")
    return figure


def pbo_logits(histogram: Histogram) -> Any:
    """Histogram of PBO logits. Left of zero the in-sample best ranks below the out-of-sample median."""
    import plotly.graph_objects as go

    figure = go.Figure(logit_bars(histogram))
    figure.update_xaxes(title="logit of the rank out of sample")
    figure.update_yaxes(title="splits")
    return figure


def _lines(curves: Mapping[str, Curve], values: Mapping[str, Floats], styles: Styles, hover: str) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    for name in reversed(list(curves)):  # the first is drawn last, on top
        add_line(figure, name, curves[name].times, values[name], styles, hover)
    figure.update_layout(legend={"traceorder": "reversed"})
    return figure


def add_line(
    figure: Any, name: str, times: Times, values: Floats, styles: Styles, hover: str, **attributes: Any
) -> None:
    """Add a strategy's line in its style. attributes: further ones of Plotly, and row and col of a subplot."""
    style = styles[name]
    figure.add_scatter(
        x=dates(times),
        y=decimated(values),
        name=theme.escape_html(display_name(name)),
        mode="lines",
        line={"color": style.colour, "dash": style.dash, "width": style.width},
        hovertemplate=hover,
        **attributes,
    )
