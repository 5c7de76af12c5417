"""Figures of the paper account."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from finrl_pod_app.dashboard.theme import BAD, COLOURS, GOOD, NEUTRAL

if TYPE_CHECKING:
    import pandas as pd

    from finrl_pod_app.dashboard.queries.paper_costs import Slippage
    from finrl_pod_app.dashboard.queries.paper_tracking import Tracking

ACCOUNT, REPLAY = COLOURS[0], COLOURS[1]
A_DAY, FEW = 24 * 3600 * 1000, 8  # milliseconds; sessions


def equity(track: Tracking, capital: float) -> Any:
    """Own equity at each session's close, over that of the replayed backtest; below, by how much it is ahead."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    curve = track.curve
    rows = 2 if track.known else 1
    figure = make_subplots(rows=rows, shared_xaxes=True, row_heights=[0.72, 0.28][:rows], vertical_spacing=0.06)
    figure.add_scatter(
        x=curve.session, y=curve.equity, name="paper account", mode="lines" if len(curve) > 1 else "markers",
        line={"color": ACCOUNT, "width": 2.4}, hovertemplate="%{y:$,.2f}", row=1, col=1,
    )  # fmt: skip
    if track.known:  # dashed and on top: two curves that agree are both seen
        figure.add_scatter(
            x=curve.session, y=curve.backtest, name="replayed backtest", mode="lines",
            line={"color": REPLAY, "dash": "dash", "width": 2}, hovertemplate="%{y:$,.2f}", row=1, col=1,
        )  # fmt: skip
    if capital > 0:
        figure.add_hline(y=capital, line={"color": NEUTRAL, "width": 1, "dash": "dot"}, row=1, col=1)
    figure.update_yaxes(tickformat="$,.0f", range=_span(curve[["equity", "backtest"]]), row=1, col=1)
    if track.known:
        figure.add_trace(
            go.Bar(
                x=curve.session, y=curve.difference, name="tracking difference", showlegend=False,
                marker_color=[GOOD if value >= 0 else BAD for value in curve.difference.fillna(0.0)],
                hovertemplate="%{y:.1f} bp",
            ),
            row=2, col=1,
        )  # fmt: skip
        # A difference of nothing is shown as nothing, not as noise blown up to the axis.
        most = max(1.0, float(curve.difference.abs().max() or 0.0)) * 1.15
        figure.update_yaxes(title_text="ahead, bp", range=[-most, most], nticks=4, row=2, col=1)
    figure.update_xaxes(**_days(len(curve)))
    return figure


def _span(values: pd.DataFrame) -> list[float]:
    """An axis on which a change of a few dollars looks like one: at least 1% of the whole high."""
    low, high = float(values.min().min()), float(values.max().max())
    room = max(0.08 * (high - low), (0.01 * abs(high) - (high - low)) / 2)
    return [low - room, high + room]


def _days(sessions: int) -> dict[str, Any]:
    """An axis of sessions; few of them get a tick each, so that no day is named twice."""
    return {"type": "date", "tickformat": "%b %d\n%Y"} | ({"dtick": A_DAY} if sessions <= FEW else {})


def slippage(sessions: pd.DataFrame, total: Slippage) -> Any:
    """Slippage of each session's fills in basis points, its running mean, and what was modelled."""
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.add_bar(
        x=sessions.bar, y=sessions.bp, name="of the session", marker_color=NEUTRAL, opacity=0.6,
        hovertemplate="%{y:.1f} bp",
    )  # fmt: skip
    figure.add_scatter(
        x=sessions.bar, y=sessions.so_far, name="so far, by value", mode="lines", line={"color": ACCOUNT, "width": 2.4},
        hovertemplate="%{y:.1f} bp",
    )  # fmt: skip
    if total.modelled is not None:
        figure.add_scatter(
            x=sessions.bar, y=[total.modelled] * len(sessions), name="modelled", mode="lines",
            line={"color": REPLAY, "dash": "dash", "width": 2}, hovertemplate="%{y:.1f} bp",
        )  # fmt: skip
    figure.update_yaxes(title_text="basis points, positive costs us")
    figure.update_xaxes(**_days(len(sessions)))
    return figure
