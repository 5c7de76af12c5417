"""The charts of a report, as Plotly figures that take their text and grid colours from the page's style sheet."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finrl_pod.evaluate.metrics import drawdown
from finrl_pod.types import BacktestResult, Floats, Times
from finrl_pod_app.report.columns import in_order, readable
from finrl_pod_app.report.palette import ramp, styles

POINTS = 4_000  # a line is thinned to at most about this many: more cannot be seen
ASSETS = 9  # shown by name in the stacked area; the rest is one band
TICKS = (1, 2, 5, 3, 1.5, 4, 7, 1.2, 1.75, 2.5, 6, 8, 1.1, 1.3, 9)  # of a decade, the roundest first
TICK_GAP = 0.09  # of the axis, at the least


def equity_figure(results: Mapping[str, BacktestResult], band: Mapping[str, Any] | None = None) -> Any:
    """Equity as a multiple of its first mark, on a log axis; `band` (places, low, high) lies behind the lines."""
    grown = {name: growth(result.equity) for name, result in results.items()}
    figure = lines(results, grown, "%{y:.2f}×")
    log_axis(figure, grown, band)
    if band is not None:
        add_band(figure, next(iter(results.values())).times, band, meta="band")
    return figure


def growth(equity: Floats) -> Floats:
    """Equity [T] as multiples of its first mark. A log axis has no place for ruin: from there on it is NaN."""
    multiples = equity / equity[0]
    return np.where(multiples > 0, multiples, np.nan)


def log_axis(figure: Any, grown: Mapping[str, Floats], band: Mapping[str, Any] | None = None) -> None:
    """A log axis of multiples with round ticks, wide enough for all curves and the band."""
    ends = [float(end(values)) for values in grown.values() for end in (np.nanmin, np.nanmax)]
    if band is not None:
        ends += [min(band["low"]), max(band["high"])]
    ticks = log_ticks(min(ends), max(ends))
    figure.update_yaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}×" for tick in ticks])


def add_band(figure: Any, times: Times, band: Mapping[str, Any], **named: Any) -> None:
    """Two invisible lines with a fill between them, moved behind the others; `named` goes to both."""
    x = dates(times, np.asarray(band["places"]))
    hidden = {"x": x, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    figure.add_scatter(y=band["low"], **hidden, **{**named, "showlegend": False})
    figure.add_scatter(y=band["high"], fill="tonexty", fillcolor="rgba(128, 128, 128, 0.2)", **hidden, **named)
    figure.data = (*figure.data[-2:], *figure.data[:-2])


def drawdown_figure(results: Mapping[str, BacktestResult]) -> Any:
    """Distance from the last peak, in percent."""
    figure = lines(results, {name: drawdown(result.equity) for name, result in results.items()}, "%{y:.1%}")
    figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    return figure


def weights_figure(result: BacktestResult) -> Any:
    """What a strategy held over time, stacked: its largest assets by mean weight, the rest, and cash."""
    figure = stacked_weights(result)
    layout(figure)
    figure.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.12, "yanchor": "top", "x": 0})
    figure.update_yaxes(tickformat=".0%")
    return figure


def stacked_weights(result: BacktestResult) -> Any:
    """The same without a layout: long holdings above zero, short ones below."""
    import plotly.graph_objects as go

    figure = go.Figure()
    times, bands = dates(result.times), _bands(result)
    for (name, values), colour in zip(bands, _band_colours(len(bands) - 1), strict=True):
        for part, group in ((np.clip(values, 0, None), "long"), (np.clip(values, None, 0), "short")):
            if group == "short" and not part.any():
                continue
            figure.add_scatter(
                x=times,
                y=thin(part),
                name=html.escape(name),
                legendgroup=name,
                showlegend=group == "long",
                stackgroup=group,
                mode="lines",
                line={"width": 0.5, "color": "rgba(255, 255, 255, 0.4)"},
                fillcolor=colour,
                hovertemplate="%{y:.1%}",
            )
    return figure


def log_ticks(low: float, high: float) -> list[float]:
    """Round values for a log axis from `low` to `high` > 0, in order, far enough apart for their labels."""
    decades = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    gap = TICK_GAP * math.log10(high / low)
    ticks: list[float] = []
    for tick in (round(tick * 10.0**decade, 12) for tick in TICKS for decade in decades):
        if low <= tick <= high and all(abs(math.log10(tick / other)) >= gap for other in ticks):
            ticks.append(tick)
    return sorted(ticks)


def lines(results: Mapping[str, BacktestResult], values: Mapping[str, Floats], hover: str) -> Any:
    """A line for each strategy in its own style; values: [T] each."""
    import plotly.graph_objects as go

    figure, looks = go.Figure(), styles(results)
    # The champion comes last, so that its line lies on top.
    for name in reversed(in_order(results)):
        look, times = looks[name], results[name].times
        figure.add_scatter(
            x=dates(times),
            y=thin(values[name]),
            name=html.escape(readable(name)),
            meta=name,
            mode="lines",
            line={"color": look.colour, "dash": look.dash, "width": look.width},
            hovertemplate=hover,
        )
    layout(figure)
    return figure


def layout(figure: Any) -> None:
    """What all charts share: no background, no legend, room for the labels alone."""
    figure.update_layout(
        template="none",
        showlegend=False,
        hovermode="x unified",
        margin={"l": 48, "r": 8, "t": 8, "b": 32},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13},
        hoverlabel={"bgcolor": "#ffffff", "font": {"color": "#1b1f24", "size": 12}},
    )
    figure.update_xaxes(showgrid=False, zeroline=False)
    figure.update_yaxes(gridcolor="#d0d4d9", zeroline=False)


def _bands(result: BacktestResult) -> list[tuple[str, Floats]]:
    """Names and weights [T], largest first, then the others together, then cash."""
    mean = np.abs(result.weights).mean(0)
    order = [int(i) for i in np.argsort(-mean, kind="stable") if mean[i] > 0]
    bands = [(result.symbols[i], result.weights[:, i]) for i in order[:ASSETS]]
    if len(order) > ASSETS:
        bands.append((f"{len(order) - ASSETS} others", result.weights[:, order[ASSETS:]].sum(1)))
    return [*bands, ("cash", 1 - result.weights.sum(1))]


def _band_colours(holdings: int) -> list[str]:
    """A ramp for the named assets, greys for the others and for cash."""
    others = ["#9aa0a6"] if holdings > ASSETS else []
    return [*ramp(holdings - len(others)), *others, "rgba(128, 128, 128, 0.25)"]


def dates(times: Times, places: NDArray[np.intp] | None = None) -> list[str]:
    """ISO text of the thinned times, or of those at `places`: days alone where all stand at midnight, else to the
    minute."""
    days = times.astype("datetime64[D]")
    shown = days if (days == times).all() else times.astype("datetime64[m]")
    return [str(time) for time in shown[_places(len(times)) if places is None else places]]


def thin(values: Floats) -> Floats:
    """Every k-th value, so that at most about `POINTS` are left."""
    return values[_places(len(values))]


def _places(length: int) -> NDArray[np.intp]:
    """Every k-th place and always the last, so that at most about `POINTS` are left."""
    step = math.ceil(length / POINTS)
    return np.unique(np.append(np.arange(0, length, step), length - 1))
