"""Figures of the paper account: equity against benchmark and replayed backtest, and shortfall."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from finrl_pod_app.dashboard.queries.paper_performance import BENCHMARK
from finrl_pod_app.dashboard.theme import BAD, COLOURS, GOOD, NEUTRAL
from finrl_pod_app.report import charts

if TYPE_CHECKING:
    import pandas as pd

    from finrl_pod_app.dashboard.queries.paper_performance import BacktestDifference, Slippage

ACCOUNT, REPLAY = COLOURS[0], COLOURS[1]
DAY_MS = 24 * 3600 * 1000
MAX_DAILY_TICKS = 8  # sessions that get a tick each


def equity(difference: BacktestDifference, capital: float) -> Any:
    """Equity of account, benchmark and replayed backtest at each close, above the drawdown of the account and its
    difference to the replay in basis points."""
    from plotly.subplots import make_subplots

    curve = difference.curve
    heights = [0.56, 0.22, 0.22] if difference.is_available else [0.7, 0.3]
    rows = len(heights)
    figure = make_subplots(rows=rows, shared_xaxes=True, row_heights=heights, vertical_spacing=0.06)
    # The replay is dashed and on top, so that both are visible where they agree.
    lines = [("equity", "paper account", {"color": ACCOUNT, "width": 2.4})]
    if curve.benchmark.notna().any():
        lines.append(("benchmark", BENCHMARK, {"color": NEUTRAL, "dash": "dot", "width": 1.8}))
    if difference.is_available:
        lines.append(("backtest", "replayed backtest", {"color": REPLAY, "dash": "dash", "width": 2}))
    for column, name, line in lines:
        mode = "lines" if len(curve) > 1 else "markers"
        figure.add_scatter(
            x=curve.session, y=curve[column], name=name, mode=mode, line=line, hovertemplate="%{y:$,.2f}", row=1, col=1
        )
    if capital > 0:
        figure.add_hline(y=capital, line={"color": NEUTRAL, "width": 1, "dash": "dot"}, row=1, col=1)
    # The axis of equity is at least 1% high, so that small changes look small.
    values = curve[[column for column, *_ in lines]]
    low, high = float(values.min().min()), float(values.max().max())
    margin = max(0.08 * (high - low), (0.01 * abs(high) - (high - low)) / 2)
    figure.update_yaxes(tickformat="$,.0f", range=[low - margin, high + margin], row=1, col=1)
    figure.add_scatter(
        x=curve.session,
        y=curve.drawdown,
        name="drawdown",
        showlegend=False,
        mode="lines",
        fill="tozeroy",
        line={"color": BAD, "width": 1.4},
        hovertemplate="%{y:.2%}",
        row=2,
        col=1,
    )
    # The axis spans at least 1%, so that a small decline looks small.
    lowest = min(-0.01, 1.15 * float(curve.drawdown.min()))
    figure.update_yaxes(
        title_text="drawdown", tickformatstops=charts.PERCENT_TICKS, range=[lowest, 0.0], nticks=4, row=2, col=1
    )
    if difference.is_available:
        figure.add_bar(
            x=curve.session,
            y=curve.difference,
            name="difference to the backtest",
            showlegend=False,
            marker_color=[GOOD if value >= 0 else BAD for value in curve.difference.fillna(0.0)],
            hovertemplate="%{y:.1f} bp",
            row=3,
            col=1,
        )
        # The axis spans at least 1 bp, so that no difference does not look like noise.
        limit = max(1.0, float(curve.difference.abs().max() or 0.0)) * 1.15
        figure.update_yaxes(title_text="difference, bp", range=[-limit, limit], nticks=4, row=3, col=1)
    figure.update_xaxes(**_session_axis(len(curve)))
    return figure


def _session_axis(sessions: int) -> dict[str, str | int]:
    """A date axis; few sessions get a tick each, so that no day is labelled twice."""
    return {"type": "date", "tickformat": "%b %d\n%Y"} | ({"dtick": DAY_MS} if sessions <= MAX_DAILY_TICKS else {})


def slippage(sessions: pd.DataFrame, total: Slippage) -> Any:
    """Slippage by session in basis points, its value-weighted cumulative mean, and the modelled cost."""
    figure = charts.empty_figure()
    figure.add_bar(x=sessions.bar, y=sessions.bp, name="session", marker_color=NEUTRAL, opacity=0.6)
    line = {"color": ACCOUNT, "width": 2.4}
    mean = sessions.cumulative_bp
    figure.add_scatter(x=sessions.bar, y=mean, name="cumulative, value-weighted", mode="lines", line=line)
    if total.modelled is not None:
        line = {"color": REPLAY, "dash": "dash", "width": 2}
        costs = [total.modelled] * len(sessions)
        figure.add_scatter(x=sessions.bar, y=costs, name="modelled", mode="lines", line=line)
    figure.update_traces(hovertemplate="%{y:.1f} bp")
    figure.update_yaxes(title_text="shortfall, bp")
    figure.update_xaxes(**_session_axis(len(sessions)))
    return figure
