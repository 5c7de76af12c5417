"""Figures of accounts side by side: equity, drawdown, rolling Sharpe ratio, months, holdings, turnover and costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from finrl_pod.evaluate.metrics import bars_per_year, drawdown
from finrl_pod.evaluate.tearsheet import ROLLING_BARS, compound_return, monthly_returns, rolling_sharpe
from finrl_pod.types import BacktestResult, Floats, Times
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.queries.comparison import Curve
from finrl_pod_app.report.charts import (
    add_band,
    dates,
    growth,
    logit_bars,
    monthly_turnover,
    set_log_axis,
    stacked_weights,
    thin,
)
from finrl_pod_app.report.tables import MONTHS

YEARS_ACROSS = 7  # beside each other on a telephone, with a figure in each cell
# Half transparent at both ends, so that the page's own ink is read on every cell, in light and in dark.
DIVERGING = [[0.0, "rgba(213,94,0,0.55)"], [0.5, "rgba(128,128,128,0.05)"], [1.0, "rgba(20,138,205,0.55)"]]

Looks = Mapping[str, theme.Style]


def equity(curves: Mapping[str, Curve], looks: Looks, band: Mapping[str, Any] | None = None) -> Any:
    """Equity as a multiple of the start, on a log axis. band: of the first strategy, as `equity_band` gives it."""
    grown = {name: growth(curve.equity) for name, curve in curves.items()}
    figure = _lines(curves, grown, looks, "%{y:.3f}×")
    set_log_axis(figure, grown, band)
    if band is not None:
        first = next(iter(curves))
        name = f"{100 * band['level']:.0f}% bootstrap band of {theme.safe(_words(first))}"
        add_band(figure, curves[first].times, band, name=name)
    figure.update_yaxes(title="times the start, log scale")
    return figure


def falls(curves: Mapping[str, Curve], looks: Looks) -> Any:
    """Distance from the last peak."""
    figure = _lines(curves, {name: drawdown(curve.equity) for name, curve in curves.items()}, looks, "%{y:.1%}")
    figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    return figure


def rolling(curves: Mapping[str, Curve], looks: Looks) -> Any:
    """Sharpe ratio of the last half year at each bar."""
    values = {
        name: rolling_sharpe(curve.equity, curve.risk_free, periods=bars_per_year(curve.times))
        for name, curve in curves.items()
    }
    figure = _lines(curves, values, looks, "%{y:.2f}")
    figure.update_yaxes(zeroline=True, title=f"Sharpe ratio of {ROLLING_BARS} bars")
    return figure


def months(times: Times, marks: Floats) -> Any:
    """Return of each month in percent, and of each year. Years stand across, where they are few enough for a narrow
    page, else down."""
    import plotly.graph_objects as go

    table = monthly_returns(times, marks)
    years, parts = list(table), [*MONTHS, "year"]
    values = np.full((len(years), len(parts)), np.nan)
    for row, year in enumerate(years):
        for month, value in table[year].items():
            values[row, int(month) - 1] = value
        values[row, -1] = compound_return(table[year])
    text = np.array([["" if np.isnan(value) else f"{100 * value:.1f}" for value in row] for row in values])
    far = max(float(np.nanmax(np.abs(values[:, :-1]))), 1e-4)  # a year's return is the deepest colour beyond it
    across = len(years) <= YEARS_ACROSS
    figure = go.Figure(
        go.Heatmap(
            z=np.clip(values.T if across else values, -far, far),
            x=years if across else parts,
            y=parts if across else years,
            text=text.T if across else text,
            texttemplate="%{text}",
            colorscale=DIVERGING,
            zmin=-far,
            zmax=far,
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


def holdings(result: BacktestResult) -> Any:
    """Weights over time, stacked: the largest by their mean, the others together, then cash."""
    figure = stacked_weights(result)
    figure.update_yaxes(tickformat=".0%", title="share of the equity")
    return figure


def turnover(results: Sequence[BacktestResult], looks: Looks) -> Any:
    """One-sided turnover of each month, as a share of the equity."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for result in results:
        months, sums = monthly_turnover(result)
        figure.add_bar(
            x=months,
            y=sums,
            name=theme.safe(_words(result.name)),
            marker_color=looks[result.name].colour,
            hovertemplate="%{y:.1%}",
        )
    figure.update_layout(barmode="group")
    figure.update_yaxes(tickformat=".0%", rangemode="tozero", title="turnover of a month")
    return figure


def costs(results: Sequence[BacktestResult], looks: Looks) -> Any:
    """Costs paid so far, as a share of the equity at the start."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for result in results:
        _add_line(figure, result.name, result.times, result.costs.cumsum() / result.equity[0], looks, "%{y:.2%}")
    figure.update_yaxes(tickformat=".1%", rangemode="tozero", title="costs paid so far")
    return figure


def logits(histogram: Mapping[str, Sequence[float]]) -> Any:
    """Cross-validation of choosing the best (PBO): left of zero the best in sample was below the median out of it."""
    import plotly.graph_objects as go

    figure = go.Figure(logit_bars(histogram))
    figure.update_xaxes(title="rank of the choice on other days (logit; left of 0: below the median)")
    figure.update_yaxes(title="splits of the days")
    return figure


def _lines(curves: Mapping[str, Curve], values: Mapping[str, Floats], looks: Looks, hover: str) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    for name, curve in curves.items():
        _add_line(figure, name, curve.times, values[name], looks, hover)
    return figure


def _add_line(figure: Any, name: str, times: Times, values: Floats, looks: Looks, hover: str) -> None:
    look = looks[name]
    figure.add_scatter(
        x=dates(times),
        y=thin(values),
        name=theme.safe(_words(name)),
        mode="lines",
        line={"color": look.colour, "dash": look.dash, "width": look.width},
        hovertemplate=hover,
    )


def _words(name: str) -> str:
    return name.replace("_", " ")
