"""The further charts of a tear sheet: rolling ratios, trading, the distribution of returns, costs, overfitting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from finrl_pod.evaluate.metrics import bars_per_year, simple_returns
from finrl_pod.evaluate.tearsheet import rolling_sharpe
from finrl_pod.types import BacktestResult, Floats
from finrl_pod_app.report.columns import in_order, readable
from finrl_pod_app.report.figures import dates, layout, lines, thin
from finrl_pod_app.report.palette import ramp, styles

BINS = 61
FAR = 0.995  # quantile of the absolute returns beyond which the outermost bins stand for all the rest


def rolling_figure(results: Mapping[str, BacktestResult]) -> Any:
    """Sharpe ratio over the last half year."""
    values = {
        name: rolling_sharpe(one.equity, one.risk_free, periods=bars_per_year(one.times))
        for name, one in results.items()
    }
    figure = lines(results, values, "%{y:.2f}")
    figure.update_yaxes(zeroline=True, zerolinecolor="#8a9099", zerolinewidth=1)
    return figure


def turnover_figure(result: BacktestResult, colour: str) -> Any:
    """One-sided turnover of each month, as a share of equity."""
    import plotly.graph_objects as go

    months, sums = monthly_turnover(result)
    figure = go.Figure(go.Bar(x=months, y=sums, marker_color=colour, hovertemplate="%{y:.1%}"))
    layout(figure)
    figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    return figure


def monthly_turnover(result: BacktestResult) -> tuple[list[str], Floats]:
    """Months as 2019-01, and the one-sided turnover of each as a share of equity."""
    names, places = np.unique(result.times.astype("datetime64[M]"), return_inverse=True)
    sums = 0.5 * np.bincount(places, weights=result.turnover).astype(np.float64)
    return [str(name) for name in names], sums


def costs_figure(results: Mapping[str, BacktestResult]) -> Any:
    """Costs paid so far, as a share of the equity at the start."""
    paid = {name: one.costs.cumsum() / one.equity[0] for name, one in results.items()}
    figure = lines(results, paid, "%{y:.2%}")
    figure.update_yaxes(tickformat=".1%", rangemode="tozero")
    return figure


def parts_figure(result: BacktestResult) -> Any:
    """Costs paid so far by kind, stacked, as a share of the equity at the start."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for (name, values), colour in zip(result.cost_parts.items(), ramp(len(result.cost_parts)), strict=True):
        figure.add_scatter(
            x=dates(result.times),
            y=thin(values.cumsum() / result.equity[0]),
            name=name,
            mode="lines",
            stackgroup="costs",
            line={"width": 0.5, "color": colour},
            fillcolor=colour,
            hovertemplate="%{y:.2%}",
        )
    layout(figure)
    figure.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.15, "yanchor": "top", "x": 0})
    figure.update_yaxes(tickformat=".1%", rangemode="tozero")
    return figure


def distribution_figure(results: Mapping[str, BacktestResult]) -> Any:
    """How often each return a bar came, as the share of bars; what lies far out is counted at the edges."""
    import plotly.graph_objects as go

    returns = {name: simple_returns(one.equity) for name, one in results.items()}
    far = max(float(np.quantile(np.abs(values), FAR)) for values in returns.values()) or 1e-4
    edges = np.linspace(-far, far, BINS + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    figure, looks = go.Figure(), styles(results)
    for name in reversed(in_order(results)):
        counts, _ = np.histogram(np.clip(returns[name], -far, far), edges)
        look = looks[name]
        figure.add_scatter(
            x=middles,
            y=counts / len(returns[name]),
            name=readable(name),
            meta=name,
            mode="lines",
            line={"color": look.colour, "dash": look.dash, "width": look.width, "shape": "hvh"},
            hovertemplate="%{y:.1%}",
        )
    layout(figure)
    figure.update_xaxes(tickformat=".1%", zeroline=True, zerolinecolor="#8a9099")
    figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    return figure


def cost_curve_figure(rows: Sequence[Mapping[str, float]], charged: float, colour: str) -> Any:
    """Return a year against the cost of a trade in basis points; the marked point is what was charged."""
    import plotly.graph_objects as go

    costs, returns = [row["cost_bps"] for row in rows], [row["annual_return"] for row in rows]
    figure = go.Figure()
    figure.add_scatter(
        x=costs,
        y=returns,
        mode="lines+markers",
        line={"color": colour, "width": 2},
        hovertemplate="%{x:g} bp: %{y:.1%} a year<extra></extra>",
    )
    figure.add_vline(x=charged, line={"color": "#8a9099", "dash": "dot", "width": 1})
    layout(figure)
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(ticksuffix=" bp")
    figure.update_yaxes(tickformat=".0%", zeroline=True, zerolinecolor="#8a9099")
    return figure


def logits_figure(logits: Mapping[str, Sequence[float]]) -> Any:
    """Histogram of the logits of cross-validation: left of zero the best in sample is below the median out of it."""
    import plotly.graph_objects as go

    figure = go.Figure(logits_bars(logits))
    figure.update_traces(hovertemplate="%{y}")
    layout(figure)
    figure.update_xaxes(zeroline=True, zerolinecolor="#8a9099")
    return figure


def logits_bars(logits: Mapping[str, Sequence[float]]) -> Any:
    """Its bars without a layout, orange where choosing overfits."""
    import plotly.graph_objects as go

    edges = np.asarray(logits["edges"], dtype=np.float64)
    middles = (edges[1:] + edges[:-1]) / 2
    colours = ["#d55e00" if middle <= 0 else "#148acd" for middle in middles]
    return go.Bar(x=middles, y=list(logits["counts"]), width=np.diff(edges), marker_color=colours)
