"""Figures of the paper account: equity, profit and loss, prices with own fills, and shortfall."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from finrl_pod_app.dashboard.queries.paper_performance import BENCHMARK
from finrl_pod_app.dashboard.queries.paper_profit import (
    Interval,
    ProfitAndLoss,
    contributions_of,
    interval_labels,
    profit_by_interval,
)
from finrl_pod_app.dashboard.theme import COLOURS, NEUTRAL, escape_html
from finrl_pod_app.report import charts

if TYPE_CHECKING:
    import pandas as pd

    from finrl_pod_app.dashboard.queries.paper_performance import BacktestDifference, Slippage
    from finrl_pod_app.dashboard.queries.paper_prices import PriceHistory

PALETTE = COLOURS[1:]  # the first one is close to red, the colour of what stops trading
ACCOUNT, REPLAY = PALETTE[0], PALETTE[3]
DAY_MS = 24 * 3600 * 1000
MAX_DAILY_TICKS = 8  # sessions that get a tick each
MAX_ASSETS = 20  # with the largest contributions; the table has all


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
        line={"color": NEUTRAL, "width": 1.4},
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
            marker_color=REPLAY,
            hovertemplate="%{y:.1f} bp",
            row=3,
            col=1,
        )
        # The axis spans at least 1 bp, so that no difference does not look like noise.
        limit = max(1.0, float(curve.difference.abs().max() or 0.0)) * 1.15
        figure.update_yaxes(title_text="difference, bp", range=[-limit, limit], nticks=4, row=3, col=1)
    figure.update_xaxes(**_session_axis(len(curve)))
    return figure


def profit(profits: ProfitAndLoss, interval: Interval) -> Any:
    """Profit of each day, week or month by strategy as stacked bars, and its sum from the start of the period."""
    figure = charts.empty_figure()
    labels = interval_labels(profits.parts.session, interval)
    table = profits.parts.groupby([labels, "strategy"]).profit.sum().unstack("strategy", fill_value=0)
    for name, colour in zip(table.columns, PALETTE * len(table.columns), strict=False):
        figure.add_bar(x=table.index, y=table[name], name=escape_html(name), marker_color=colour)
    total = profit_by_interval(profits, interval)
    line = {"color": NEUTRAL, "width": 2.4}
    mode = "lines+markers" if len(total) <= MAX_DAILY_TICKS else "lines"
    figure.add_scatter(x=total.label, y=total.profit.cumsum(), name="sum of the period", mode=mode, line=line)
    figure.update_traces(hovertemplate="%{y:$,.2f}")
    figure.update_layout(barmode="relative")
    figure.update_yaxes(title_text="profit, dollars", tickformat="$,.0f", zeroline=True)
    figure.update_xaxes(**_session_axis(len(total)))
    return figure


def contributions(profits: ProfitAndLoss) -> Any:
    """Contribution of each symbol to the return of the period, in points, by strategy as stacked bars."""
    figure = charts.empty_figure()
    parts = profits.parts.assign(points=contributions_of(profits.parts))
    table = parts.groupby(["symbol", "strategy"]).points.sum().unstack("strategy", fill_value=0)
    total = table.sum(axis=1)
    largest = total[total.abs().nlargest(MAX_ASSETS).index].sort_values(ascending=False).index
    for name, colour in zip(table.columns, PALETTE * len(table.columns), strict=False):
        figure.add_bar(
            x=table.loc[largest, name], y=[escape_html(symbol) for symbol in largest], name=escape_html(name),
            orientation="h", marker_color=colour, hovertemplate="%{x:.2%}",
        )  # fmt: skip
    figure.update_layout(barmode="relative")
    figure.update_xaxes(title_text="contribution to the return", tickformatstops=charts.PERCENT_TICKS, zeroline=True)
    charts.set_name_axis(figure)
    return figure


def prices(history: PriceHistory) -> Any:
    """Closes of a symbol with own purchases and sales, above the shares held after each session."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=2, shared_xaxes=True, row_heights=[0.74, 0.26], vertical_spacing=0.06)
    closes = history.closes
    line = {"color": NEUTRAL, "width": 1.8}
    figure.add_scatter(
        x=closes.session, y=closes.price, name="close", mode="lines+markers", marker={"size": 4}, line=line,
        hovertemplate="%{y:$,.2f}", row=1, col=1,
    )  # fmt: skip
    for side, name, symbol, colour in (
        ("buy", "purchase", "triangle-up", ACCOUNT),
        ("sell", "sale", "triangle-down", REPLAY),
    ):
        fills = history.fills[history.fills.side == side]
        texts = [f"{row.quantity:,.6g} shares, {escape_html(row.strategy)}" for row in fills.itertuples()]
        figure.add_scatter(
            x=fills.day, y=fills.price, name=name, mode="markers", text=texts,
            marker={"symbol": symbol, "size": 11, "color": colour, "line": {"width": 1, "color": NEUTRAL}},
            hovertemplate="%{y:$,.2f}, %{text}", row=1, col=1,
        )  # fmt: skip
    figure.add_bar(
        x=closes.session, y=closes.shares, name="shares held", showlegend=False, marker_color=NEUTRAL, opacity=0.6,
        hovertemplate="%{y:,.6g} shares", row=2, col=1,
    )  # fmt: skip
    figure.update_yaxes(title_text="price, dollars", tickformat="$,.2f", row=1, col=1)
    figure.update_yaxes(title_text="shares", nticks=4, zeroline=True, row=2, col=1)
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(**_session_axis(len(closes)))
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
