"""Figures of stored prices: growth of 1, available bars, a calendar of missing ones, correlations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from finrl_pod.display import dates, decimated, log_ticks
from finrl_pod.types import Floats, Panel
from finrl_pod_app.dashboard import theme

MAX_BLOCKS = 240  # columns of the map of available bars; more are not visible
PARTLY = "#e0c27a"  # between the colours of all and none
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def growth(frame: pd.DataFrame) -> Any:
    """Growth of 1 of each symbol on a log axis. frame: one column per symbol."""
    import plotly.graph_objects as go

    figure = go.Figure()
    times = frame.index.to_numpy()
    for place, symbol in enumerate(frame.columns):
        colour = theme.COLOURS[place % len(theme.COLOURS)]
        dash = theme.DASHES[place // len(theme.COLOURS) % len(theme.DASHES)]
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
    import plotly.graph_objects as go

    column = panel.symbols.index(symbol)
    known = np.flatnonzero(panel.tradable[:, column])[-bars:]
    assert panel.open is not None
    assert panel.high is not None
    assert panel.low is not None
    figure = go.Figure(
        go.Candlestick(
            x=dates(panel.times[known]),
            open=panel.open[known, column],
            high=panel.high[known, column],
            low=panel.low[known, column],
            close=panel.close[known, column],
            increasing_line_color=theme.GOOD,
            decreasing_line_color=theme.BAD,
            name=theme.escape_html(symbol),
        )
    )
    figure.update_layout(showlegend=False, xaxis_rangeslider_visible=False)
    return figure


def monthly_returns(frame: pd.DataFrame) -> Any:
    """Heat map of returns by month and symbol. frame: closes, one column per symbol, indexed by time."""
    import plotly.graph_objects as go

    months = frame.groupby(frame.index.to_numpy().astype("datetime64[M]")).last()
    returns = months.pct_change(fill_method=None).iloc[1:]
    limit = float(np.nanquantile(np.abs(returns.to_numpy()), 0.98)) if returns.notna().to_numpy().any() else 1.0
    figure = go.Figure(
        go.Heatmap(
            z=returns.to_numpy().T,
            x=[str(month)[:7] for month in returns.index],
            y=[theme.escape_html(symbol) for symbol in returns.columns],
            zmin=-limit,
            zmax=limit,
            colorscale=[[0.0, "#d55e00"], [0.5, "#f4f4f2"], [1.0, "#0b6bcb"]],
            colorbar={"thickness": 12, "outlinewidth": 0, "tickformat": ".0%"},
            hovertemplate="%{y}, %{x}: %{z:.1%}<extra></extra>",
        )
    )
    figure.update_layout(hovermode="closest")
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    return figure


def available_bars(panel: Panel) -> Any:
    """Map of available bars: their fraction by ticker and block of time."""
    edges = np.unique(np.linspace(0, len(panel.times), min(MAX_BLOCKS, len(panel.times)) + 1).astype(int))
    counts = np.add.reduceat(panel.tradable.astype(np.float64), edges[:-1], axis=0)
    fraction = counts / np.diff(edges)[:, None]
    words = np.array([[f"{share:.0%} of bars" for share in row] for row in fraction], dtype=object)
    return _ticker_map(panel, edges[:-1], fraction, words, [[0, theme.BAD], [0.999, PARTLY], [1, theme.GOOD]])


def membership(panel: Panel) -> Any:
    """Map of memberships: whether each ticker had no bar, a bar without being a member, or was a member."""
    places = np.unique(np.linspace(0, len(panel.times) - 1, min(MAX_BLOCKS, len(panel.times))).astype(int))
    state = (panel.tradable.astype(int) + panel.investable)[places]
    words = np.array(["no bar", "not a member", "member"], dtype=object)[state]
    return _ticker_map(panel, places, state / 2, words, [[0, "rgba(128,128,128,0.15)"], [0.5, PARTLY], [1, theme.GOOD]])


def _ticker_map(panel: Panel, places: Any, values: Floats, words: Any, colours: list[list[Any]]) -> Any:
    """A heat map of tickers over time. places: bar of each column [C]. values: 0 to 1, words: their names [C, N]."""
    import plotly.graph_objects as go

    figure = go.Figure(
        go.Heatmap(
            z=values.T,
            x=[str(day) for day in panel.times[places].astype("datetime64[D]")],
            y=[theme.escape_html(symbol) for symbol in panel.symbols],
            text=words.T,
            zmin=0,
            zmax=1,
            colorscale=colours,
            showscale=False,
            ygap=1,
            hovertemplate="%{y} from %{x}: %{text}<extra></extra>",
        )
    )
    figure.update_layout(hovermode="closest")
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    return figure


def missing_calendar(table: pd.DataFrame, year: int) -> Any:
    """Calendar of a year: the share of missing bars by week and weekday; days without any bar are empty.

    table: from `missing_by_day`.
    """
    import plotly.graph_objects as go

    rows = {str(row["day"])[:10]: row for row in table.to_dict("records")}
    days = np.arange(f"{year}-01-01", f"{year + 1}-01-01", dtype="datetime64[D]")
    weekday = (days.astype(int) + 3) % 7
    week = (np.arange(len(days)) + weekday[0]) // 7
    values = np.full((7, int(week[-1]) + 1), np.nan)
    text = np.full(values.shape, "", dtype=object)
    for day, i, j in zip(days, weekday, week, strict=True):
        if (row := rows.get(str(day))) is not None:
            lacking = f" ({theme.escape_html(row['which'])})" if row["which"] else ""
            values[i, j] = row["share"]
            text[i, j] = f"{day}: {row['missing']:,} of {row['expected']:,} bars missing{lacking}"
    figure = go.Figure(
        go.Heatmap(
            z=values,
            y=list(WEEKDAYS),
            text=text,
            zmin=0,
            zmax=1,
            colorscale=[[0, theme.GOOD], [0.001, PARTLY], [1, theme.BAD]],
            showscale=False,
            xgap=2,
            ygap=2,
            hovertemplate="%{text}<extra></extra>",
            hoverongaps=False,
        )
    )
    starts = [int(week[i]) for i in range(len(days)) if str(days[i]).endswith("-01")]
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(tickvals=starts, ticktext=list(MONTHS), showgrid=False)
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    return figure


def correlations(frame: pd.DataFrame) -> Any:
    """Heatmap of a correlation matrix."""
    import plotly.graph_objects as go

    names = [theme.escape_html(symbol) for symbol in frame.columns]
    figure = go.Figure(
        go.Heatmap(
            z=frame.to_numpy(),
            x=names,
            y=names,
            zmin=-1,
            zmax=1,
            colorscale=[[0.0, "#b04a00"], [0.5, "#f4f4f2"], [1.0, "#0b6bcb"]],
            colorbar={"thickness": 12, "outlinewidth": 0},
            hovertemplate="%{y} and %{x}: %{z:.2f}<extra></extra>",
        )
    )
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(type="category")
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    return figure
