"""Figures of a training: learning curves with their band, scores, the tree of descent, the drift of a setting."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd

from finrl_pod_app.dashboard import theme

_MAIN = theme.COLOURS[1]
_BAND = "rgba(20, 138, 205, 0.18)"
_BEST = theme.COLOURS[0]


def learning_curve(frame: pd.DataFrame, name: str) -> Any:
    """Median over the pods with the band in which eight of ten lie; samples, middle, low, high."""
    figure = banded(frame["samples"], frame, "median of the pods")
    figure.update_xaxes(title="samples of each pod")
    figure.update_yaxes(title=theme.safe(name.replace("_", " ")), exponentformat="none")  # 0.0006, not 600µ
    return figure


def drift(frame: pd.DataFrame, name: str) -> Any:
    """A setting over the generations, with its band over the pods and that of the best agent."""
    figure = banded(frame["generation"] + 1, frame, "median of the pods")
    figure.add_scatter(
        x=frame["generation"] + 1,
        y=frame["best"],
        name="best agent of the generation",
        mode="markers",
        marker={"color": _BEST, "size": 9, "symbol": "diamond"},
        hovertemplate="%{y:.4g}",
    )
    figure.update_xaxes(title="generation", dtick=_tick(frame["generation"]))
    figure.update_yaxes(title=theme.safe(name.replace("_", " ")))
    return figure


def scores(known: pd.DataFrame) -> Any:
    """Every agent's validation score by its generation, and the best so far."""
    import plotly.graph_objects as go

    scored = known[np.isfinite(known["score"])]
    best = scored.groupby("generation")["score"].max().cummax()
    figure = go.Figure()
    figure.add_scatter(
        x=scored["generation"] + 1,
        y=scored["score"],
        name="an agent",
        mode="markers",
        marker={"color": _MAIN, "size": 8, "opacity": 0.6},
        text=[theme.safe(agent) for agent in scored["id"]],
        hovertemplate="%{text}: %{y:.2f}<extra></extra>",
    )
    figure.add_scatter(
        x=best.index + 1,
        y=best,
        name="best so far",
        mode="lines",
        line={"color": _BEST, "width": 2.4, "shape": "hv"},
        hovertemplate="%{y:.2f}",
    )
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(title="generation", dtick=_tick(known["generation"]))
    figure.update_yaxes(title="Sharpe ratio on validation")
    return figure


def lineage(known: pd.DataFrame, champions: Collection[str], line: Collection[str]) -> Any:
    """The tree of descent: an agent by its generation (across) and slot (down), a line from each parent to its child.

    champions: the members of the champion, ringed. line: the agents that they descend from, whose lines are strong.
    """
    import plotly.graph_objects as go

    columns = (known[name].tolist() for name in ("id", "generation", "slot"))
    places = {str(agent): (int(born) + 1, int(slot)) for agent, born, slot in zip(*columns, strict=True)}
    figure = go.Figure()
    for strong in (False, True):
        x, y = _edges(known, places, line, strong=strong)
        colour, width = (_BEST, 2.4) if strong else ("rgba(128, 128, 128, 0.45)", 1.0)
        name = "descent of the champion" if strong else "descent"
        figure.add_scatter(x=x, y=y, mode="lines", line={"color": colour, "width": width}, name=name, hoverinfo="skip")
    crowned = [agent in champions for agent in known["id"]]
    figure.add_scatter(
        x=known["generation"] + 1,
        y=known["slot"],
        mode="markers",
        name="agent, coloured by its score",
        marker={
            "size": np.where(crowned, 17, 11),
            "color": known["score"],
            "colorscale": "Cividis",
            "colorbar": {"title": "score", "thickness": 12, "outlinewidth": 0},
            # The thin ring keeps the darkest and the lightest apart from the page.
            "line": {"width": np.where(crowned, 3, 1), "color": np.where(crowned, _BEST, theme.NEUTRAL)},
        },
        text=[theme.safe(agent) for agent in known["id"]],
        customdata=known[["score", "samples"]],
        hovertemplate="%{text}<br>score %{customdata[0]:.2f}, %{customdata[1]:,} samples<extra></extra>",
    )
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(title="generation", dtick=_tick(known["generation"]))
    figure.update_yaxes(title="slot", autorange="reversed", dtick=_tick(known["slot"]), showgrid=False)
    return figure


def banded(x: Any, frame: pd.DataFrame, name: str) -> Any:
    """A line (middle) over the band between low and high."""
    import plotly.graph_objects as go

    figure = go.Figure()
    hidden = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    figure.add_scatter(x=x, y=frame["low"], showlegend=False, **hidden)
    figure.add_scatter(x=x, y=frame["high"], fill="tonexty", fillcolor=_BAND, name="eight of ten pods", **hidden)
    line = {"color": _MAIN, "width": 2.4}
    mode = "lines+markers" if len(frame) < 30 else "lines"
    figure.add_scatter(x=x, y=frame["middle"], name=name, mode=mode, line=line, hovertemplate="%{y:.4g}")
    return figure


def _edges(
    known: pd.DataFrame, places: dict[str, tuple[int, int]], line: Collection[str], *, strong: bool
) -> tuple[list[float | None], list[float | None]]:
    """One broken line through all edges: a None ends each."""
    x: list[float | None] = []
    y: list[float | None] = []
    for agent, parent in zip(known["id"].tolist(), known["parent"].tolist(), strict=True):
        if parent in places and (agent in line) == strong:
            (x0, y0), (x1, y1) = places[parent], places[agent]
            x += [x0, x1, None]
            y += [y0, y1, None]
    return x, y


def _tick(values: pd.Series[Any]) -> int:
    """A whole distance between ticks, so that there are at most about ten."""
    span = int(values.max() - values.min()) if len(values) else 0
    return max(1, -(-span // 10))
