"""Plotly figures of the results of the Python API, in the colours and under the names of the report."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from finrl_pod.display import decimated, set_layout
from finrl_pod.types import BacktestResult
from finrl_pod_app.report import charts, palette
from finrl_pod_app.report.columns import CHAMPION

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

AVERAGED = 20  # parts of a learning curve, over each of which its moving average goes
_AGENT, _BEST, _NEUTRAL = "#148acd", "#d55e00", "#7f7f7f"


def learning_figure(rewards: pd.Series, title: str) -> Figure:
    """Mean reward of each iteration over samples, and its moving average over a twentieth of the training.

    rewards: mean reward indexed by samples.
    """
    iterations = max(len(rewards) // AVERAGED, 1)
    average = rewards.rolling(iterations, min_periods=1).mean()
    figure: Figure = charts.empty_figure()
    for name, values, line in (
        ("iteration", rewards, {"color": _NEUTRAL, "width": 1}),
        (f"mean of {iterations} iterations", average, {"color": _AGENT, "width": 2.4}),
    ):
        figure.add_scatter(
            x=decimated(values.index.to_numpy()),
            y=decimated(values.to_numpy()),
            name=name,
            mode="lines",
            line=line,
            opacity=0.5 if values is rewards else 1.0,
            hovertemplate="%{y:.4g}",
        )
    figure.update_xaxes(title=str(rewards.index.name or ""))
    figure.update_yaxes(title="mean reward", exponentformat="none")
    set_layout(figure, title)
    return figure


def backtest_figure(results: Mapping[str, BacktestResult], title: str, base: str = "") -> Figure:
    """Growth of 1 on a log axis above the drawdown and the growth over the base, with the styles of the report.

    results: the tested strategy first. base: one of them; empty for none.
    """
    figure = charts.equity_figure(results, base=base)
    set_layout(figure, title, height=720 if base else 520)
    figure.update_yaxes(title="growth of 1, log scale", row=1, col=1)
    return figure


def tournament_figure(results: Mapping[str, BacktestResult], title: str, base: str) -> Figure:
    """`backtest_figure` of the champion and the baselines; those that a report hides are a click away."""
    figure = backtest_figure(results, title, base)
    visible = {CHAMPION, *charts.reference_names(results)}
    for trace in figure.data:
        trace.visible = True if trace.meta in visible else "legendonly"
    return figure


def scores_figure(scores: pd.DataFrame, base: tuple[str, float] | None, title: str, measure: str) -> Figure:
    """Score of each agent, and the best and the median of each generation.

    scores: columns id, generation (from 1), score. base: name and score of the base portfolio, if known. measure: what
    a score is.
    """
    figure: Figure = charts.empty_figure()
    figure.add_scatter(
        x=scores["generation"],
        y=scores["score"],
        name="agent",
        mode="markers",
        marker={"color": _AGENT, "size": 7, "opacity": 0.5},
        text=[html.escape(str(agent)) for agent in scores["id"]],
        hovertemplate="%{text}: %{y:.2f}<extra></extra>",
    )
    by_generation = scores.groupby("generation")["score"]
    lines = [
        ("median", by_generation.median(), {"color": _AGENT, "width": 2}),
        ("best", by_generation.max(), {"color": _BEST, "width": 2.4}),
    ]
    if base is not None:
        base_line = pd.Series(base[1], sorted({scores["generation"].min(), scores["generation"].max()}))
        lines.append((base[0], base_line, {"color": _NEUTRAL, "dash": "dash", "width": 1.6}))
    for name, values, line in lines:
        figure.add_scatter(
            x=values.index, y=values, name=name, mode="lines+markers", line=line, hovertemplate="%{y:.2f}"
        )
    set_layout(figure, title)
    figure.update_xaxes(title="generation", dtick=max(1, -(-int(scores["generation"].max()) // 10)))
    figure.update_yaxes(title=measure)
    return figure


def walkforward_figure(runs: pd.DataFrame, folds: Sequence[Mapping[str, Any]]) -> Figure:
    """Sharpe ratio out of sample by fold: one marker for each seed, their mean, and equal weight.

    runs: columns fold, seed, sharpe. folds: fold, test (first and last date), and equal_weight_sharpe of each.
    """
    figure: Figure = charts.empty_figure()
    figure.add_scatter(
        x=runs["fold"],
        y=runs["sharpe"],
        name="seed",
        mode="markers",
        marker={"color": _AGENT, "size": 8, "opacity": 0.6},
        text=[f"seed {seed}" for seed in runs["seed"]],
        hovertemplate="%{text}: %{y:.2f}<extra></extra>",
    )
    mean = runs.groupby("fold")["sharpe"].mean()
    equal_weight = pd.Series([fold["equal_weight_sharpe"] for fold in folds], [fold["fold"] for fold in folds])
    style = palette.line_styles(["equal_weight"])["equal_weight"]
    for name, values, line in (
        ("mean of the seeds", mean, {"color": _BEST, "width": 2.4}),
        ("equal weight", equal_weight, {"color": style.colour, "dash": style.dash, "width": style.width}),
    ):
        figure.add_scatter(
            x=values.index, y=values, name=name, mode="lines+markers", line=line, hovertemplate="%{y:.2f}"
        )
    ticks = [f"{fold['fold']}<br>{fold['test'][0][:10]}<br>to {fold['test'][1][:10]}" for fold in folds]
    axis = {"tickvals": equal_weight.index, "ticktext": ticks, "automargin": True}
    figure.update_xaxes(title="fold and its test period", **axis)
    figure.update_yaxes(title="Sharpe ratio out of sample")
    set_layout(figure, "Walk-forward")
    return figure
