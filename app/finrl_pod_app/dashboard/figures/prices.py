"""Figures of stored prices (growth, candles, available bars, correlations) and of the analysis of a feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from finrl_pod.display import dates, decimated, log_ticks
from finrl_pod.errors import count_text
from finrl_pod.types import Panel
from finrl_pod_app.dashboard import theme
from finrl_pod_app.report import charts

MAX_BLOCKS = 240  # columns of the map of available bars; more are not visible
PARTLY = "#e0c27a"  # between the colours of all and none


def heat_map(
    z: Any,
    x: Sequence[str],
    y: Sequence[str],
    colours: Any,
    *,
    limits: tuple[float, float] | None = None,
    **attributes: Any,
) -> Any:
    """A heat map with categories from top to bottom. z: [Y, X]. limits: ends of the colours; without a colour bar."""
    if limits is not None:
        attributes = {"zmin": limits[0], "zmax": limits[1], "showscale": "colorbar" in attributes, **attributes}
    names = [theme.escape_html(name) for name in y]
    figure = charts.empty_figure()
    figure.add_heatmap(z=z, x=x, y=names, colorscale=colours, **attributes)
    figure.update_layout(hovermode="closest")
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    return figure


def growth(frame: pd.DataFrame) -> Any:
    """Growth of 1 of each symbol on a log axis. frame: one column per symbol."""
    figure = charts.empty_figure()
    times = frame.index.to_numpy()
    for i, symbol in enumerate(frame.columns):
        colour = theme.COLOURS[i % len(theme.COLOURS)]
        dash = theme.DASHES[i // len(theme.COLOURS) % len(theme.DASHES)]
        figure.add_scatter(
            x=dates(times),
            y=decimated(frame[symbol].to_numpy()),
            name=theme.escape_html(symbol),
            mode="lines",
            line={"color": colour, "dash": dash, "width": 1.6},
            connectgaps=False,
            hovertemplate="%{y:.2f}×",
        )
    low, high = float(np.nanmin(frame.to_numpy())), float(np.nanmax(frame.to_numpy()))
    ticks = log_ticks(low, high) if low < high else [1.0]
    figure.update_yaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}×" for tick in ticks])
    return figure


def candles(panel: Panel, symbol: str, bars: int) -> Any:
    """The last bars of a symbol as candles. The panel must have opening, high and low prices."""
    column = panel.symbols.index(symbol)
    bars_of_symbol = np.flatnonzero(panel.tradable[:, column])[-bars:]
    assert panel.open is not None
    assert panel.high is not None
    assert panel.low is not None
    figure = charts.empty_figure()
    figure.add_candlestick(
        x=dates(panel.times[bars_of_symbol]),
        open=panel.open[bars_of_symbol, column],
        high=panel.high[bars_of_symbol, column],
        low=panel.low[bars_of_symbol, column],
        close=panel.close[bars_of_symbol, column],
        increasing_line_color=theme.GOOD,
        decreasing_line_color=theme.BAD,
        name=theme.escape_html(symbol),
    )
    figure.update_layout(showlegend=False, xaxis_rangeslider_visible=False)
    return figure


def available_bars(panel: Panel) -> Any:
    """Map of available bars: their fraction by ticker and block of time."""
    edges = np.unique(np.linspace(0, len(panel.times), min(MAX_BLOCKS, len(panel.times)) + 1).astype(int))
    counts = np.add.reduceat(panel.tradable.astype(np.float64), edges[:-1], axis=0)
    return heat_map(
        (counts / np.diff(edges)[:, None]).T,
        [str(day) for day in panel.times[edges[:-1]].astype("datetime64[D]")],
        panel.symbols,
        [[0, theme.BAD], [0.999, PARTLY], [1, theme.GOOD]],
        limits=(0, 1),
        ygap=1,
        hovertemplate="%{y} from %{x}: %{z:.0%} of bars<extra></extra>",
    )


def correlations(frame: pd.DataFrame) -> Any:
    """Heatmap of a correlation matrix."""
    figure = heat_map(
        frame.to_numpy(),
        [theme.escape_html(symbol) for symbol in frame.columns],
        list(frame.columns),
        [[0.0, "#b04a00"], [0.5, "#f4f4f2"], [1.0, "#0b6bcb"]],
        limits=(-1, 1),
        colorbar={"thickness": 12, "outlinewidth": 0},
        hovertemplate="%{y} and %{x}: %{z:.2f}<extra></extra>",
    )
    figure.update_xaxes(type="category")
    return figure


def information_coefficients(feature: Mapping[str, Any]) -> Any:
    """The mean rank correlation with later returns at each horizon, with its interval."""
    rows = feature["horizons"]
    figure = charts.empty_figure()
    figure.add_scatter(
        x=[_bars(row["horizon"]) for row in rows],
        y=[row["information_coefficient"] for row in rows],
        mode="markers",
        marker={"size": 10, "color": theme.COLOURS[0]},
        error_y={
            "type": "data",
            "array": [row["high"] - row["information_coefficient"] for row in rows],
            "arrayminus": [row["information_coefficient"] - row["low"] for row in rows],
            "thickness": 1.5,
            "color": theme.COLOURS[0],
        },
        hovertemplate="%{x} ahead: %{y:+.3f}<extra></extra>",
    )
    figure.update_layout(hovermode="closest", showlegend=False)
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(title="information coefficient", tickformat="+.2f", zeroline=True)
    return figure


def quantile_returns(feature: Mapping[str, Any]) -> Any:
    """Mean return of each quantile relative to all assets in basis points per bar, one colour per horizon."""
    figure = charts.empty_figure()
    for i, row in enumerate(feature["horizons"]):
        names = [f"{i + 1}" for i in range(len(row["quantiles"]))]
        names[0] = "lowest"
        names[-1] = "highest"
        figure.add_bar(
            x=names,
            y=row["quantiles"],
            name=f"{_bars(row['horizon'])} ahead",
            marker_color=theme.COLOURS[i % len(theme.COLOURS)],
            hovertemplate="%{y:+.2f} bp a bar",
        )
    figure.update_layout(barmode="group")
    figure.update_xaxes(title="quantile of the feature", type="category", showgrid=False)
    figure.update_yaxes(title="bp a bar over all assets", zeroline=True)
    return figure


def _bars(horizon: int) -> str:
    return count_text(horizon, "bar")
