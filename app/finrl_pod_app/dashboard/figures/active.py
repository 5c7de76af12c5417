"""Figures against a benchmark: growth of active returns, rolling alpha and beta, and weights as a heat map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from finrl_pod.types import BacktestResult
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.figures.comparison import Styles, add_line
from finrl_pod_app.dashboard.queries.benchmark import active_growth, comparable, rolling_alpha_beta
from finrl_pod_app.dashboard.queries.comparison import Curve
from finrl_pod_app.report.charts import PERCENT_TICKS

MAX_COLUMNS = 250  # of a heat map of weights; more are not visible


def active_growth_figure(curves: Mapping[str, Curve], benchmark: str, styles: Styles) -> Any:
    """Growth of each strategy over that of the benchmark, minus one."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for name, curve in comparable(curves, benchmark).items():
        add_line(figure, name, curve.times, active_growth(curve, curves[benchmark]), styles, "%{y:.2%}")
    figure.add_hline(y=0, line={"color": theme.NEUTRAL, "width": 1, "dash": "dot"})
    figure.update_yaxes(tickformatstops=PERCENT_TICKS, title="growth over the benchmark")
    return figure


def rolling_alpha_beta_figure(curves: Mapping[str, Curve], benchmark: str, styles: Styles) -> Any:
    """Rolling alpha above rolling beta."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=2, shared_xaxes=True, vertical_spacing=0.08)
    for name, curve in comparable(curves, benchmark).items():
        alpha, beta = rolling_alpha_beta(curve, curves[benchmark])
        add_line(figure, name, curve.times, alpha, styles, "%{y:.1%}", row=1, col=1, legendgroup=name)
        add_line(figure, name, curve.times, beta, styles, "%{y:.2f}", row=2, col=1, legendgroup=name, showlegend=False)
    figure.update_yaxes(tickformatstops=PERCENT_TICKS, title="alpha, a year", row=1, col=1)
    figure.update_yaxes(title="beta", row=2, col=1)
    return figure


def weights_heatmap(result: BacktestResult) -> Any:
    """Weights by asset and time, the largest by mean on top."""
    import plotly.graph_objects as go

    mean = np.abs(result.weights).mean(0)
    order = [int(i) for i in np.argsort(-mean, kind="stable") if mean[i] > 0]
    places = np.unique(np.linspace(0, len(result.times) - 1, min(MAX_COLUMNS, len(result.times))).astype(int))
    figure = go.Figure(
        go.Heatmap(
            z=result.weights[places][:, order].T,
            x=[str(day) for day in result.times[places].astype("datetime64[D]")],
            y=[theme.escape_html(result.symbols[i]) for i in order],
            colorscale="Cividis",
            colorbar={"thickness": 12, "outlinewidth": 0, "tickformat": ".0%"},
            hovertemplate="%{y} on %{x}: %{z:.1%}<extra></extra>",
        )
    )
    figure.update_layout(hovermode="closest")
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    return figure
