"""Plotly figures of the results of the Python API, in the colours and under the names of the report."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from finrl_pod.display import decimated, set_layout
from finrl_pod.promotion.verdict import Rule
from finrl_pod.types import BacktestResult
from finrl_pod_app.report import charts
from finrl_pod_app.report.columns import CHAMPION, champion_first, display_name
from finrl_pod_app.report.palette import styles
from finrl_pod_app.report.verdict_text import rule_cells

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

STATUS_COLOURS = {"fail": "#d55e00", "warn": "#b87a00", "pass": "#078b4d"}  # worst first
TABLE_LINE, MAX_TABLE_HEIGHT = 24, 900  # pixels; longer tables scroll
LINE_WIDTH = 116  # characters of a line of a table in a notebook of the usual width
AVERAGED = 20  # parts of a learning curve, over each of which its moving average goes
_INK = "#1b1f24"
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


def backtest_figure(results: Mapping[str, BacktestResult], title: str) -> Figure:
    """Growth of 1 on a log axis above the drawdown, with the styles of the report.

    results: the tested strategy first.
    """
    figure = charts.equity_figure(results)
    set_layout(figure, title, height=520)
    figure.update_yaxes(title="growth of 1, log scale", row=1, col=1)
    return figure


def active_figure(result: BacktestResult, base: BacktestResult, title: str) -> Figure:
    """Growth of a strategy relative to a baseline, minus one."""
    figure: Figure = charts.active_growth_figure(result, {base.name: base})
    set_layout(figure, title)
    figure.update_yaxes(title="growth over the baseline")
    return figure


def splits_figure(figure: Figure, spans: Mapping[str, Sequence[str]]) -> Figure:
    """Shade the splits of a figure over time. spans: first and last date of each as ISO text."""
    for (name, (first, last)), colour in zip(spans.items(), (_NEUTRAL, _AGENT, _BEST), strict=True):
        figure.add_vrect(
            x0=first,
            x1=last,
            fillcolor=colour,
            opacity=0.12,
            line_width=0,
            layer="below",
            annotation_text=name,
            annotation_position="top left",
            annotation_yanchor="bottom",  # above the lines
        )
    return figure


def tournament_figure(
    results: Mapping[str, BacktestResult],
    scores: pd.DataFrame,
    base: tuple[str, float] | None,
    title: str,
    measure: str,
) -> Figure:
    """Test equity of the champion and the baselines, and below it the scores of the agents by generation.

    results: results on the test split; without any, the scores stand alone. scores: columns id, generation (from 1),
    score. base: name and score of the base portfolio, if known. measure: what a score is.
    """
    figure: Figure = charts.empty_figure()
    row = {"row": 2, "col": 1} if results else {}
    if results:
        figure.set_subplots(rows=2, cols=1, row_heights=[0.6, 0.4], vertical_spacing=0.12)
        _add_equity(figure, results)
    _add_scores(figure, scores, base, row)
    set_layout(figure, title, height=680 if results else 420)
    legend = {"orientation": "v", "x": 1.01, "xanchor": "left", "yanchor": "top"}
    figure.update_layout(showlegend=True, legend={**legend, "y": 1})
    figure.update_xaxes(title="generation", dtick=max(1, -(-int(scores["generation"].max()) // 10)), **row)
    figure.update_yaxes(title=measure, **row)
    if results:
        figure.update_layout(legend2={**legend, "y": figure.layout.yaxis2.domain[1]})
        figure.update_traces(legend="legend2", **row)
    return figure


def _add_equity(figure: Figure, results: Mapping[str, BacktestResult]) -> None:
    """Growth of 1 of each result; baselines that the report hides at first are a click away."""
    style_by_name = styles(results)
    visible = {CHAMPION, *charts.reference_names(results)}
    multiples = {name: charts.growth(result.equity) for name, result in results.items()}
    sorted_names = champion_first(results)
    for name in reversed(sorted_names):  # the champion comes last: its line is on top
        charts.add_line(
            figure,
            name,
            results[name].times,
            multiples[name],
            style_by_name[name],
            "%{y:.2f}×",
            visible=True if name in visible else "legendonly",
            legendrank=sorted_names.index(name) + 1,
            row=1,
            col=1,
        )
    charts.set_log_axis(figure, {name: values for name, values in multiples.items() if name in visible}, row=1, col=1)
    figure.update_yaxes(title="growth of 1, log scale", row=1, col=1)


def _add_scores(figure: Figure, scores: pd.DataFrame, base: tuple[str, float] | None, row: Mapping[str, int]) -> None:
    """Score of each agent, and the best and the median of each generation."""
    figure.add_scatter(
        x=scores["generation"],
        y=scores["score"],
        name="agent",
        mode="markers",
        marker={"color": _AGENT, "size": 7, "opacity": 0.5},
        text=[html.escape(str(agent)) for agent in scores["id"]],
        hovertemplate="%{text}: %{y:.2f}<extra></extra>",
        **row,
    )
    by_generation = scores.groupby("generation")["score"]
    for name, values, line in (
        ("median", by_generation.median(), {"color": _AGENT, "width": 2}),
        ("best", by_generation.max(), {"color": _BEST, "width": 2.4}),
    ):
        figure.add_scatter(
            x=values.index, y=values, name=name, mode="lines+markers", line=line, hovertemplate="%{y:.2f}", **row
        )
    if base is not None:
        ends = [scores["generation"].min(), scores["generation"].max()]
        line = {"color": _NEUTRAL, "dash": "dash", "width": 1.6}
        name, score = base
        figure.add_scatter(
            x=ends, y=[score, score], name=name, mode="lines", line=line, hovertemplate="%{y:.2f}", **row
        )


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
    numbers = [fold["fold"] for fold in folds]
    style = styles(["equal_weight"])["equal_weight"]
    equal = {"color": style.colour, "dash": style.dash, "width": style.width}
    lines = {
        "mean of the seeds": (list(mean.index), list(mean), {"color": _BEST, "width": 2.4}),
        "equal weight": (numbers, [fold["equal_weight_sharpe"] for fold in folds], equal),
    }
    for name, (x, y, line) in lines.items():
        figure.add_scatter(x=x, y=y, name=name, mode="lines+markers", line=line, hovertemplate="%{y:.2f}")
    ticks = [f"{fold['fold']}<br>{fold['test'][0][:10]}<br>to {fold['test'][1][:10]}" for fold in folds]
    figure.update_xaxes(title="fold and its test period", tickvals=numbers, ticktext=ticks, automargin=True)
    figure.update_yaxes(title="Sharpe ratio out of sample")
    set_layout(figure, "Walk-forward")
    return figure


def verdict_figure(rules: Sequence[Rule], title: str) -> Figure:
    """A table of the promotion rules with value and limit, in the colour of the outcome."""
    rows = []
    for rule in rules:
        value, limit = rule_cells(rule)
        outcome = "pass" if rule.passed else "fail"
        name = display_name(rule.name)
        rows.append({"outcome": outcome, "rule": name, "value": value, "limit": limit, "sentence": rule.sentence})
    return _table_figure(rows, {"outcome": 1.6, "rule": 2.3, "value": 1.6, "limit": 1.6, "sentence": 8}, title)


def audit_figure(findings: Sequence[Mapping[str, str]], title: str) -> Figure:
    """A table of findings in the given order, with the colour of the status."""
    return _table_figure(findings, {"status": 1.6, "check": 2.3, "part": 3, "message": 9}, title)


def _table_figure(rows: Sequence[Mapping[str, str]], columns: Mapping[str, float], title: str) -> Figure:
    """A table of texts. columns: name -> relative width; the first has the outcomes, by whose colour it is filled."""
    outcome = next(iter(columns))
    figure: Figure = charts.empty_figure()
    figure.add_table(
        columnwidth=list(columns.values()),
        header={
            "values": [f"<b>{name}</b>" for name in columns],
            "align": "left",
            "fill": {"color": "#e9ecef"},
            "font": {"size": 13, "color": _INK},
        },
        cells={
            "values": [[html.escape(row[name]) for row in rows] for name in columns],
            "align": "left",
            "height": TABLE_LINE,
            "fill": {"color": [[STATUS_COLOURS[row[outcome]] for row in rows], *["#ffffff"] * (len(columns) - 1)]},
            "line": {"color": "#d0d4d9"},
            "font": {"size": 13, "color": ["#ffffff", *[_INK] * (len(columns) - 1)]},
        },
    )
    per_width = LINE_WIDTH / sum(columns.values())  # characters in a column of width 1
    lines = sum(max(math.ceil(len(row[name]) / (per_width * width)) for name, width in columns.items()) for row in rows)
    set_layout(figure, title, height=min(120 + TABLE_LINE * lines, MAX_TABLE_HEIGHT))
    figure.update_layout(margin={"l": 8, "r": 8, "b": 8})
    return figure
