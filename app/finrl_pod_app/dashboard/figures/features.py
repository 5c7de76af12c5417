"""Figures of a feature's analysis: information coefficient by horizon, returns by quantile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finrl_pod_app.dashboard import theme


def information_coefficients(feature: Mapping[str, Any]) -> Any:
    """The mean rank correlation with later returns at each horizon, with its interval."""
    import plotly.graph_objects as go

    rows = feature["horizons"]
    figure = go.Figure(
        go.Scatter(
            x=[_bars(row["horizon"]) for row in rows],
            y=[row["information_coefficient"] for row in rows],
            mode="markers",
            marker={"size": 10, "color": theme.COLOURS[0]},
            error_y={
                "type": "data",
                "array": [row["high"] - row["information_coefficient"] for row in rows],
                "arrayminus": [row["information_coefficient"] - row["low"] for row in rows],
                "thickness": 1.5,
                "color": theme.COLOURS[0],
            },
            hovertemplate="%{x} ahead: %{y:+.3f}<extra></extra>",
        )
    )
    figure.update_layout(hovermode="closest", showlegend=False)
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(title="information coefficient", tickformat="+.2f", zeroline=True)
    return figure


def quantile_returns(feature: Mapping[str, Any]) -> Any:
    """Mean return of each quantile less that of all assets in basis points a bar, one colour per horizon."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for place, row in enumerate(feature["horizons"]):
        names = [f"{i + 1}" for i in range(len(row["quantiles"]))]
        names[0], names[-1] = "lowest", "highest"
        figure.add_bar(
            x=names,
            y=row["quantiles"],
            name=f"{_bars(row['horizon'])} ahead",
            marker_color=theme.COLOURS[place % len(theme.COLOURS)],
            hovertemplate="%{y:+.2f} bp a bar",
        )
    figure.update_layout(barmode="group")
    figure.update_xaxes(title="quantile of the feature", type="category", showgrid=False)
    figure.update_yaxes(title="bp a bar over all assets", zeroline=True)
    return figure


def _bars(horizon: int) -> str:
    return "1 bar" if horizon == 1 else f"{horizon} bars"
