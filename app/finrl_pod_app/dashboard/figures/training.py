"""Figures of a training: learning curves, validation scores, lineage, and drift of hyperparameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd

from finrl_pod_app.dashboard import theme
from finrl_pod_app.report import charts
from finrl_pod_app.report.palette import Style

FEW_POINTS = 30  # of a line; fewer points are marked
_MAIN = theme.COLOURS[1]
_BAND = "rgba(20, 138, 205, 0.18)"
_BEST = theme.COLOURS[0]
_BASE = Style(theme.NEUTRAL, "dash", 2.0)
_GREY = "rgba(128, 128, 128, 0.5)"


def learning_curve(frame: pd.DataFrame, name: str) -> Any:
    """Median over the pods with the 10-90% band. frame: samples, median, low, high."""
    figure = band_figure(frame["samples"], frame)
    figure.update_xaxes(title="samples per pod")
    figure.update_yaxes(title=theme.escape_html(name.replace("_", " ")), exponentformat="none")  # 0.0006, not 600µ
    return figure


def overlaid_curves(frames: Mapping[str, pd.DataFrame], name: str, styles: Mapping[str, Style]) -> Any:
    """The learning curves of several runs: medians over their pods, in the style of each run."""
    figure = charts.empty_figure()
    for run, frame in frames.items():
        _add_line(figure, run, frame["samples"], frame["median"], styles[run])
    figure.update_xaxes(title="samples per pod")
    figure.update_yaxes(title=f"{theme.escape_html(name.replace('_', ' '))}, median", exponentformat="none")
    return figure


def overlaid_scores(
    best_scores: Mapping[str, pd.Series[float]], styles: Mapping[str, Style], bases: Mapping[str, float]
) -> Any:
    """The best validation score so far of several runs by generation, and the score of their bases as lines.

    best_scores: result of `training.best_scores`, by run. bases: score by label.
    """
    figure = charts.empty_figure()
    for run, best in best_scores.items():
        _add_line(figure, run, best.index, best, styles[run])
    figure.update_traces(line_shape="hv")
    generations = pd.Series([generation for best in best_scores.values() for generation in best.index], dtype=int)
    for label, score in bases.items():
        _add_line(figure, label, [generations.min(), generations.max()], [score, score], _BASE)
    figure.update_traces(hovertemplate="%{y:.2f}")
    figure.update_xaxes(title="generation", dtick=_tick(generations))
    figure.update_yaxes(title="best validation Sharpe ratio")
    return figure


def grey_out(figure: Any, names: Collection[str]) -> Any:
    """Draw the lines of the runs with these names thin, grey, behind the others and without a legend entry."""
    names = set(map(theme.escape_html, names))
    for trace in figure.data:
        if trace.name in names:
            trace.update(line={"color": _GREY, "width": 1, "dash": "solid"}, marker={"size": 4}, showlegend=False)
    figure.data = sorted(figure.data, key=lambda trace: trace.name not in names)
    return figure


def _add_line(figure: Any, name: str, x: Any, y: Any, style: Style) -> None:
    line = {"color": style.colour, "dash": style.dash, "width": style.width}
    mode = "lines+markers" if len(x) < FEW_POINTS else "lines"
    figure.add_scatter(x=x, y=y, name=theme.escape_html(name), mode=mode, line=line, hovertemplate="%{y:.4g}")


def hyperparameter_drift(frame: pd.DataFrame, name: str) -> Any:
    """A hyperparameter by generation: median and 10-90% band over the pods, and the value of the best agent."""
    figure = band_figure(frame["generation"] + 1, frame)
    figure.add_scatter(
        x=frame["generation"] + 1,
        y=frame["best"],
        name="best agent of the generation",
        mode="markers",
        marker={"color": _BEST, "size": 9, "symbol": "diamond"},
        hovertemplate="%{y:.4g}",
    )
    figure.update_xaxes(title="generation", dtick=_tick(frame["generation"]))
    figure.update_yaxes(title=theme.escape_html(name.replace("_", " ")))
    return figure


def scores(agents: pd.DataFrame, base: str = "", base_score: float | None = None) -> Any:
    """Validation score of every agent by generation, the best so far, and the base portfolio if known."""
    agents_with_score = agents[np.isfinite(agents["score"])]
    best = agents_with_score.groupby("generation")["score"].max().cummax()
    figure = charts.empty_figure()
    figure.add_scatter(
        x=agents_with_score["generation"] + 1,
        y=agents_with_score["score"],
        name="agent",
        mode="markers",
        marker={"color": _MAIN, "size": 8, "opacity": 0.6},
        text=[theme.escape_html(agent) for agent in agents_with_score["id"]],
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
    if base_score is not None:
        figure.add_scatter(
            x=[best.index.min() + 1, best.index.max() + 1] if len(best) else [1, 1],
            y=[base_score, base_score],
            name=theme.escape_html(base),
            mode="lines+markers",
            line={"color": theme.NEUTRAL, "dash": "dash", "width": 2},
            marker={"size": 5},
            hovertemplate="%{y:.2f}",
        )
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(title="generation", dtick=_tick(agents["generation"]))
    figure.update_yaxes(title="validation Sharpe ratio")
    return figure


def lineage(agents: pd.DataFrame, champions: Collection[str], ancestors: Collection[str]) -> Any:
    """Lineage of the agents by generation (x) and slot (y), with a line from each parent to its child.

    champions: members of the champion, marked by rings. ancestors: ancestors of the champion; their lines are
    emphasised.
    """
    columns = (agents[name].tolist() for name in ("id", "generation", "slot"))
    positions = {str(agent): (int(generation) + 1, int(slot)) for agent, generation, slot in zip(*columns, strict=True)}
    figure = charts.empty_figure()
    for highlighted in (False, True):
        x, y = _edges(agents, positions, ancestors, highlighted=highlighted)
        colour, width = (_BEST, 2.4) if highlighted else ("rgba(128, 128, 128, 0.45)", 1.0)
        name = "lineage of the champion" if highlighted else "lineage"
        figure.add_scatter(x=x, y=y, mode="lines", line={"color": colour, "width": width}, name=name, hoverinfo="skip")
    is_champion = [agent in champions for agent in agents["id"]]
    figure.add_scatter(
        x=agents["generation"] + 1,
        y=agents["slot"],
        mode="markers",
        name="agent, coloured by score",
        marker={
            "size": np.where(is_champion, 17, 11),
            "color": agents["score"],
            "colorscale": "Cividis",
            "colorbar": {"title": "score", "thickness": 12, "outlinewidth": 0},
            # The thin ring separates the darkest and the lightest from the page.
            "line": {"width": np.where(is_champion, 3, 1), "color": np.where(is_champion, _BEST, theme.NEUTRAL)},
        },
        text=[theme.escape_html(agent) for agent in agents["id"]],
        customdata=agents[["score", "samples"]],
        hovertemplate="%{text}<br>score %{customdata[0]:.2f}, %{customdata[1]:,} samples<extra></extra>",
    )
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(title="generation", dtick=_tick(agents["generation"]))
    figure.update_yaxes(title="slot", autorange="reversed", dtick=_tick(agents["slot"]), showgrid=False)
    return figure


def band_figure(x: Any, frame: pd.DataFrame) -> Any:
    """The median over the pods as a line on the band between low and high."""
    figure = charts.empty_figure()
    charts.add_range(figure, x, frame["low"], frame["high"], _BAND, name="10-90% of the pods")
    _add_line(figure, "median of the pods", x, frame["median"], Style(_MAIN, width=2.4))
    return figure


def _edges(
    agents: pd.DataFrame, positions: dict[str, tuple[int, int]], ancestors: Collection[str], *, highlighted: bool
) -> tuple[list[float | None], list[float | None]]:
    """All edges as one line, separated by None."""
    x: list[float | None] = []
    y: list[float | None] = []
    for agent, parent in zip(agents["id"].tolist(), agents["parent"].tolist(), strict=True):
        if parent in positions and (agent in ancestors) == highlighted:
            (x0, y0) = positions[parent]
            (x1, y1) = positions[agent]
            x += [x0, x1, None]
            y += [y0, y1, None]
    return x, y


def _tick(values: pd.Series[Any]) -> int:
    """A whole tick distance that gives at most about ten ticks."""
    span = int(values.max() - values.min()) if len(values) else 0
    return max(1, -(-span // 10))
