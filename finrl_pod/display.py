"""How objects show themselves in notebooks: HTML tables, and the colours and layout of Plotly figures.

Plotly is imported when a figure is drawn.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# The Okabe-Ito palette, safe for colour blindness, without yellow; darkened or lightened to a contrast of at least 3:1
# on the white and the dark page. Dashes are a second cue.
COLOURS = ("#d55e00", "#148acd", "#00a05a", "#b8629b", "#b87a00", "#5b74d6", "#7f7f7f")
DASHES = ("solid", "dash", "dot", "dashdot")
DIGITS = 4  # of numbers in tables
MAX_POINTS = 4_000  # approximate limit of points per line; more are not visible
MAX_PANEL_POINTS = 120_000
MIN_POINTS = 250  # of all lines of a panel, and of each
TICKS = (1, 2, 5, 3, 1.5, 4, 7, 1.2, 1.75, 2.5, 6, 8, 1.1, 1.3, 9)  # per decade, the roundest first
MIN_TICK_GAP = 0.09  # as a share of the axis
NARROW = 2.0  # a log axis up to this ratio of its ends has evenly spaced ticks, about `NARROW_TICKS`
NARROW_TICKS = 6
HEIGHT = 460
LEGEND_LINE = 20  # pixels
MAX_UNIFIED = 30  # lines whose values are shown together; of more, the one under the pointer
LEGEND_ROWS = 4  # longer legends stand beside the figure, not above it
SHORT_LEGEND = 60  # characters of all names in a legend above the figure


def table_html(title: str, rows: Sequence[Sequence[object]], head: Sequence[str] = (), note: str = "") -> str:
    """A small HTML table. Texts are escaped; None, NaN and infinity are a dash, floats have four digits."""

    def cells(row: Sequence[object], tag: str) -> str:
        return "".join(f"<{tag}>{html.escape(cell_text(cell))}</{tag}>" for cell in row)

    header = f"<thead><tr>{cells(head, 'th')}</tr></thead>" if head else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    footer = f"<p>{html.escape(note)}</p>" if note else ""
    return f"<div><b>{html.escape(title)}</b><table>{header}<tbody>{body}</tbody></table>{footer}</div>"


def cell_text(cell: object) -> str:
    """Text of a cell of a table."""
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return "–"
    return f"{cell:,.{DIGITS}g}" if isinstance(cell, float) else str(cell)


def growth_figure(times: NDArray[np.datetime64], lines: Mapping[str, NDArray[np.float64]], title: str) -> Figure:
    """Lines as multiples of their first known value on a log axis; a Plotly figure.

    times: [T]. lines: [T] each by name, NaN where unknown (a gap); lines without any value are left out.
    The legend has the order in which the lines end.
    """
    import plotly.graph_objects as go

    value_indices = {name: np.flatnonzero(values > 0) for name, values in lines.items()}
    multiples = {name: lines[name] / lines[name][indices[0]] for name, indices in value_indices.items() if len(indices)}
    names_by_end = sorted(multiples, key=lambda name: -multiples[name][value_indices[name][-1]])
    points = min(MAX_POINTS, max(MAX_PANEL_POINTS // max(len(lines), 1), MIN_POINTS))
    times_shown = dates(times, decimated(np.arange(len(times)), points))
    figure = go.Figure()
    for index, (name, values) in enumerate(multiples.items()):
        colour = COLOURS[index % len(COLOURS)]
        dash = DASHES[index // len(COLOURS) % len(DASHES)]
        figure.add_scatter(
            x=times_shown,
            y=decimated(np.where(values > 0, values, np.nan), points),
            name=html.escape(name),
            legendrank=names_by_end.index(name) + 1,
            mode="lines",
            line={"color": colour, "dash": dash, "width": 1.4},
            hovertemplate="%{y:.2f}×",
        )
    ends = [end(values[values > 0]) for values in multiples.values() for end in (np.min, np.max)]
    ticks = log_ticks(float(min(ends)), float(max(ends))) if ends else []
    figure.update_yaxes(type="log", tickvals=ticks, ticktext=[f"{tick:,g}×" for tick in ticks])
    figure.update_yaxes(title="growth of 1, log scale")
    set_layout(figure, title, height=min(max(HEIGHT, 130 + LEGEND_LINE * len(multiples)), 2 * HEIGHT))
    if len(multiples) > MAX_UNIFIED:
        figure.update_layout(hovermode="closest")
    return figure


def log_ticks(low: float, high: float) -> list[float]:
    """Round, sorted tick values for a log axis from `low` to `high` > 0, spaced widely enough for their labels."""
    if low < high < NARROW * low:
        return _even_ticks(low, high)
    decades = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    gap = MIN_TICK_GAP * math.log10(high / low)
    ticks: list[float] = []
    for tick in (round(tick * 10.0**decade, 12) for tick in TICKS for decade in decades):
        if low <= tick <= high and all(abs(math.log10(tick / earlier_tick)) >= gap for earlier_tick in ticks):
            ticks.append(tick)
    return sorted(ticks)


def _even_ticks(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from `low` to `high`, at most about `NARROW_TICKS`."""
    exact = (high - low) / NARROW_TICKS
    power = math.floor(math.log10(exact))
    step = next(round(digit * 10.0**power, 12) for digit in (1, 2, 5, 10) if digit * 10.0**power >= exact * (1 - 1e-9))
    return [round(i * step, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def dates(times: NDArray[np.datetime64], indices: NDArray[np.intp] | None = None) -> list[str]:
    """ISO text of the thinned times, or of those at `indices`: dates if all times are at midnight, else minutes."""
    days = times.astype("datetime64[D]")
    times_shown = days if (days == times).all() else times.astype("datetime64[m]")
    return [str(time) for time in (decimated(times_shown) if indices is None else times_shown[indices])]


def decimated(values: NDArray[Any], points: int = MAX_POINTS) -> NDArray[Any]:
    """Every k-th value and the last, at most about `points`."""
    step = math.ceil(len(values) / points)
    values_shown: NDArray[Any] = values[np.unique(np.append(np.arange(0, len(values), step), len(values) - 1))]
    return values_shown


def set_layout(figure: Any, title: str, height: int = HEIGHT) -> None:
    """Set the layout of a figure in a notebook: white page, light grid, a legend above the figure or beside it."""
    names = [trace.name or "" for trace in figure.data if getattr(trace, "showlegend", False) is not False]
    legend_fits = len(names) <= LEGEND_ROWS and sum(map(len, names)) <= SHORT_LEGEND
    side_legend = {"x": 1.01, "xanchor": "left", "y": 1, "yanchor": "top"}
    figure.update_layout(
        template="plotly_white",
        title={"text": html.escape(title), "x": 0, "xref": "paper", "font": {"size": 16}},
        height=height,
        colorway=list(COLOURS),
        hovermode="x unified",
        margin={"l": 64, "r": 16, "t": 64, "b": 48},
        showlegend=len(names) > 1,
        legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1.01, "yanchor": "bottom"}
        if legend_fits
        else side_legend,
    )
    figure.update_xaxes(showgrid=False)
    figure.update_yaxes(automargin=True, zeroline=False)
