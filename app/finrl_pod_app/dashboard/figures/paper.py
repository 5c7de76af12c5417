"""Figures of the paper account: equity compared with the replayed backtest, and implementation shortfall."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from finrl_pod_app.dashboard.theme import BAD, COLOURS, GOOD, NEUTRAL

if TYPE_CHECKING:
    import pandas as pd

    from finrl_pod_app.dashboard.queries.paper_performance import BacktestDifference, Slippage

ACCOUNT, REPLAY = COLOURS[0], COLOURS[1]
DAY_MS = 24 * 3600 * 1000
MAX_DAILY_TICKS = 8  # sessions that get a tick each


def equity(difference: BacktestDifference, capital: float) -> Any:
    """Equity at each close of account and replayed backtest; below it their difference in basis points."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    curve = difference.curve
    rows = 2 if difference.is_available else 1
    figure = make_subplots(rows=rows, shared_xaxes=True, row_heights=[0.72, 0.28][:rows], vertical_spacing=0.06)
    figure.add_scatter(
        x=curve.session,
        y=curve.equity,
        name="paper account",
        mode="lines" if len(curve) > 1 else "markers",
        line={"color": ACCOUNT, "width": 2.4},
        hovertemplate="%{y:$,.2f}",
        row=1,
        col=1,
    )
    if difference.is_available:  # dashed and on top, so that both are visible where they agree
        figure.add_scatter(
            x=curve.session,
            y=curve.backtest,
            name="replayed backtest",
            mode="lines",
            line={"color": REPLAY, "dash": "dash", "width": 2},
            hovertemplate="%{y:$,.2f}",
            row=1,
            col=1,
        )
    if capital > 0:
        figure.add_hline(y=capital, line={"color": NEUTRAL, "width": 1, "dash": "dot"}, row=1, col=1)
    figure.update_yaxes(tickformat="$,.0f", range=_equity_range(curve[["equity", "backtest"]]), row=1, col=1)
    if difference.is_available:
        figure.add_trace(
            go.Bar(
                x=curve.session,
                y=curve.difference,
                name="difference to the backtest",
                showlegend=False,
                marker_color=[GOOD if value >= 0 else BAD for value in curve.difference.fillna(0.0)],
                hovertemplate="%{y:.1f} bp",
            ),
            row=2,
            col=1,
        )
        # The axis spans at least 1 bp, so that no difference does not look like noise.
        limit = max(1.0, float(curve.difference.abs().max() or 0.0)) * 1.15
        figure.update_yaxes(title_text="difference, bp", range=[-limit, limit], nticks=4, row=2, col=1)
    figure.update_xaxes(**_session_axis(len(curve)))
    return figure


def _equity_range(values: pd.DataFrame) -> list[float]:
    """The range of the equity axis: at least 1% high, so that small changes look small."""
    low, high = float(values.min().min()), float(values.max().max())
    margin = max(0.08 * (high - low), (0.01 * abs(high) - (high - low)) / 2)
    return [low - margin, high + margin]


def _session_axis(sessions: int) -> dict[str, Any]:
    """A date axis; few sessions get a tick each, so that no day is labelled twice."""
    return {"type": "date", "tickformat": "%b %d\n%Y"} | ({"dtick": DAY_MS} if sessions <= MAX_DAILY_TICKS else {})


def slippage(sessions: pd.DataFrame, total: Slippage) -> Any:
    """Slippage by session in basis points, its value-weighted cumulative mean, and the modelled cost."""
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.add_bar(
        x=sessions.bar,
        y=sessions.bp,
        name="session",
        marker_color=NEUTRAL,
        opacity=0.6,
        hovertemplate="%{y:.1f} bp",
    )
    figure.add_scatter(
        x=sessions.bar,
        y=sessions.cumulative_bp,
        name="cumulative, value-weighted",
        mode="lines",
        line={"color": ACCOUNT, "width": 2.4},
        hovertemplate="%{y:.1f} bp",
    )
    if total.modelled is not None:
        figure.add_scatter(
            x=sessions.bar,
            y=[total.modelled] * len(sessions),
            name="modelled",
            mode="lines",
            line={"color": REPLAY, "dash": "dash", "width": 2},
            hovertemplate="%{y:.1f} bp",
        )
    figure.update_yaxes(title_text="implementation shortfall, bp (positive is a cost)")
    figure.update_xaxes(**_session_axis(len(sessions)))
    return figure
