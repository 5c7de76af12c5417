"""The views of a comparison under the cost that the slider sets: metrics, charts, benchmark, trades, exports."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pandas as pd
import streamlit as st

from finrl_pod.evaluate.tearsheet import ROLLING_BARS, drawdowns
from finrl_pod.types import BacktestResult
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.figures import accounts as figures
from finrl_pod_app.dashboard.figures.accounts import Styles
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.columns import benchmark_columns, definition, metric_columns
from finrl_pod_app.dashboard.pages.result_views import BAR_HEIGHT
from finrl_pod_app.dashboard.pages.widgets import show_figure, show_table
from finrl_pod_app.dashboard.queries import comparison
from finrl_pod_app.dashboard.queries.comparison import Curve
from finrl_pod_app.evaluation.sweeps import DecisionTable
from finrl_pod_app.report import charts
from finrl_pod_app.report.columns import display_name
from finrl_pod_app.report.contribution import profit_figure
from finrl_pod_app.report.palette import Style

MAX_COST = 100.0  # basis points
MAX_TRADES = 2_000  # the last ones; the CSV has all
ACCOUNTS = (1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10)
ALL = "all strategies"
VIEWS = (
    "Equity", "Drawdown", "Against the benchmark", "Rolling Sharpe", "Monthly returns", "Weights", "Profit by asset",
    "Turnover and costs", "Trades",
)  # fmt: skip


def show_comparison(decisions: Mapping[str, DecisionTable], styles: Mapping[str, Style]) -> None:
    """Draw the sliders of cost and account size and the views that depend on them, as a fragment of the page."""
    environment = next(iter(decisions.values())).inputs.config.environment
    own = environment.cost_bps
    left, right = st.columns(2)
    cost = left.slider(
        "Transaction cost, basis points",
        0.0,
        max(MAX_COST, own),
        own,
        1.0,
        help="Applied to the decisions made under the cost of the run, the initial value.",
        key=f"compare: cost, initially {own}",
    )
    sizes = sorted({*ACCOUNTS, environment.cash})
    cash = right.select_slider(
        "Account size",
        sizes,
        environment.cash,
        format_func=lambda size: f"{size:,.0f}",
        help="Cash at the start. It matters with market impact, minimum commissions and whole shares; proportional "
        "costs are the same share of every account.",
        key=f"compare: account, initially {environment.cash}",
    )
    curves = comparison.account_curves(decisions, cost, cash)
    alt = "Return, risk, ratios, turnover and costs of each strategy under the chosen transaction cost."
    table = comparison.metrics_table(curves)
    table["strategy"] = table["strategy"].map(display_name)
    table["costs_paid"] = table["costs_paid"].round()
    show_table(table, metric_columns(), "compare: metrics", alt=alt)
    period = _period(curves)
    st.caption(f"Period: {theme.escape_markdown(period)}.")
    view = st.segmented_control("View", VIEWS, default=VIEWS[0], required=True, key="compare: view")
    if view in ("Equity", "Drawdown", "Rolling Sharpe"):
        _show_lines(view, curves, styles, period)
    elif view == "Against the benchmark":
        show_benchmark(curves, styles, period)
    elif view == "Turnover and costs":
        results = [comparison.backtest_of(name, recorded, cost, cash) for name, recorded in decisions.items()]
        by_name = {result.name: result for result in results}
        figure = figures.turnover(results, styles)
        show_figure(figure, f"turnover, {period}", alt="Monthly turnover.", height=320)
        show_figure(charts.costs_figure(by_name, styles), f"costs, {period}", alt="Cumulative costs.", height=320)
    elif view == "Trades":
        _show_trades(decisions, cost, cash)
    else:
        name = st.selectbox("Strategy", list(decisions), format_func=display_name, key="compare: of")
        _show_strategy(view, name, decisions[name], curves[name], (cost, cash))
    _show_exports(decisions, cost, cash)


def _show_strategy(view: str, name: str, decisions: DecisionTable, curve: Curve, terms: tuple[float, float]) -> None:
    """Draw a view of one strategy: monthly returns, profit or weights. terms: cost in basis points, and cash."""
    period = _period({name: curve})
    if view == "Monthly returns":
        figure = figures.monthly_returns_heatmap(curve.times, curve.equity)
        alt = f"Return of {display_name(name)} by month and year, in percent."
        show_figure(figure, f"monthly returns of {name}, {period}", alt=alt, height=60 + 30 * len(figure.data[0].y))
    elif view == "Profit by asset":
        result = comparison.backtest_of(name, decisions, *terms)
        figure = profit_figure(comparison.profit_of(result, decisions, terms[0]))
        height = 80 + BAR_HEIGHT * len(figure.data[0].y)
        alt = f"Profit of {display_name(name)} by asset, before costs."
        show_figure(figure, f"profit of {name} by asset, {period}", alt=alt, height=height)
        st.caption(
            f"{theme.escape_markdown(period)}, before costs: the change in value of a holding with its dividends, less "
            "what was paid for it."
        )
    else:
        result = comparison.backtest_of(name, decisions, *terms)
        figure = charts.weights_figure(result)
        alt = f"Weights of {display_name(name)} over time."
        show_figure(figure, f"weights of {name}, {period}", alt=alt, height=460)
        if st.toggle("Every asset as a heat map", key="compare: weights map"):
            heat = figures.weights_heatmap(result)
            alt = f"Weights of {display_name(name)} by asset and time."
            show_figure(heat, f"weights of {name} by asset, {period}", alt=alt, height=160 + 20 * len(heat.data[0].y))


def _show_lines(view: str, curves: Mapping[str, Curve], styles: Mapping[str, Style], period: str) -> None:
    if view == "Drawdown":
        figure = charts.drawdown_figure(curves, styles)
        show_figure(figure, f"drawdown, {period}", alt="Drawdown of each strategy.", height=460)
        _show_drawdowns(curves)
        return
    if view == "Rolling Sharpe":
        figure = charts.rolling_sharpe_figure(curves, styles)
        show_figure(figure, f"rolling Sharpe ratio, {period}", alt="Rolling Sharpe ratio of each strategy.", height=460)
        return
    first = next(iter(curves))
    label = f"Bootstrap band of {display_name(first)}, confidence intervals of all"
    with_intervals = st.toggle(label, help=definition("interval"))
    band = cached.bootstrap_band(curves[first].equity) if with_intervals else None
    figure = charts.growth_figure(curves, band, styles)
    show_figure(figure, f"equity, {period}", alt="Growth of 1 of each strategy.", height=460)
    if with_intervals:
        _show_intervals(curves)


def _period(curves: Mapping[str, Curve]) -> str:
    """First and last day of the curves. The curves may differ by a bar."""
    days = [str(curve.times[i].astype("datetime64[D]")) for curve in curves.values() for i in (0, -1)]
    return f"{min(days)} to {max(days)}"


def _show_drawdowns(curves: Mapping[str, Curve]) -> None:
    name = st.selectbox("Deepest drawdowns of", list(curves), format_func=display_name, key="compare: drawdowns of")
    column = st.column_config
    table = pd.DataFrame(map(dataclasses.asdict, drawdowns(curves[name].times, curves[name].equity)))
    if table.empty:
        st.caption("No drawdown.")
        return
    columns = {
        "peak": column.TextColumn("Peak"),
        "trough": column.TextColumn("Trough"),
        "recovered": column.TextColumn("Recovered", help="Empty: not yet."),
        "depth": column.NumberColumn("Depth", format="percent"),
        "bars": column.NumberColumn("Bars", format="localized", help="From the peak to the recovery or the end."),
    }
    show_table(table, columns, "compare: drawdowns", alt=f"The deepest drawdowns of {display_name(name)}.")


def _show_intervals(curves: Mapping[str, Curve]) -> None:
    column = st.column_config
    formats = {"sharpe": "%.2f", "annual_return": "percent", "max_drawdown": "percent"}
    ends = {"value": "", "low": ", low", "high": ", high"}
    titles = {"sharpe": "Sharpe ratio", "annual_return": "CAGR", "max_drawdown": "Max drawdown"}
    config = {"strategy": column.TextColumn("Strategy")} | {
        f"{key}_{end}": column.NumberColumn(f"{titles[key]}{suffix}", format=form, help=definition("interval"))
        for key, form in formats.items()
        for end, suffix in ends.items()
    }
    table = comparison.intervals_table(curves, seed=0)
    table["strategy"] = table["strategy"].map(display_name)
    show_table(table, config, "compare: intervals", alt="Bootstrap confidence intervals of each strategy.")


def _show_trades(decisions: Mapping[str, DecisionTable], cost: float, cash: float) -> None:
    """Draw the trades of one strategy or of all, latest first."""
    options = [ALL, *decisions] if len(decisions) > 1 else list(decisions)
    strategy = st.selectbox("Strategy", options, format_func=display_name, key="compare: trades of")
    table = pd.concat(
        comparison.trades_of(name, comparison.backtest_of(name, decision_table, cost, cash), decision_table, cost)
        for name, decision_table in decisions.items()
        if strategy in (ALL, name)
    ).sort_values("time", kind="stable")
    table["strategy"] = table["strategy"].map(display_name)
    column = st.column_config
    config = {
        "time": column.DatetimeColumn("Time", format="YYYY-MM-DD"),
        "strategy": column.TextColumn("Strategy"),
        "symbol": column.TextColumn("Symbol"),
        "side": column.TextColumn("Side"),
        "shares": column.NumberColumn("Shares", format="%.3f"),
        "price": column.NumberColumn("Price", format="localized"),
        "value": column.NumberColumn("Value", format="localized"),
        "cost": column.NumberColumn("Cost", format="localized"),
        "profit": column.NumberColumn(
            "P/L",
            format="localized",
            help="Of what the trade closes: its price less the average entry price, times the shares, less its cost. "
            "Empty where it opens or enlarges a position.",
        ),
        "weight": column.NumberColumn("Weight after", format="percent"),
    }
    last = table.tail(MAX_TRADES).iloc[::-1]
    show_table(last, config, "compare: trades", alt="Trades, latest first.")
    note = f", showing the last {MAX_TRADES:,}" if len(table) > MAX_TRADES else ""
    st.caption(
        f"{len(table):,} trades{note}; costs {table['cost'].sum():,.0f}, realised P/L {table['profit'].sum():+,.0f}."
    )
    csv = comparison.table_csv(table)
    file = f"trades-{strategy.replace(' ', '-')}.csv"
    st.download_button("Download all trades as CSV", csv, file, "text/csv", key="compare: trades csv")


def _show_exports(decisions: Mapping[str, DecisionTable], cost: float, cash: float) -> None:
    """Draw the download buttons; files are generated on click."""

    def results() -> list[BacktestResult]:
        return [comparison.backtest_of(name, table, cost, cash) for name, table in decisions.items()]

    def report() -> str:
        return comparison.export_html(results(), next(iter(decisions.values())), cost)

    with st.container(horizontal=True):
        st.download_button("Report (HTML)", report, "comparison.html", "text/html", icon=":material/description:")
        bars = lambda: comparison.export_csv(results())[0]  # noqa: E731
        weights = lambda: comparison.export_csv(results())[1]  # noqa: E731
        st.download_button("Bars (CSV)", bars, "bars.csv", "text/csv", icon=":material/table:")
        st.download_button("Weights (CSV)", weights, "weights.csv", "text/csv", icon=":material/table:")
        st.caption("The report has a button that saves it as PDF; the camera icon above a figure saves it as PNG.")


PREFERRED = ("index", "equal_weight")


def show_benchmark(curves: Mapping[str, Curve], styles: Styles, period: str) -> None:
    """Draw the choice of the benchmark, statistics of active returns, their growth, and rolling alpha and beta.

    period: period of the curves, for the names of saved pictures.
    """
    names = list(curves)
    index = next((names.index(name) for name in PREFERRED if name in names), len(names) - 1)
    base = st.selectbox("Benchmark", names, index=index, format_func=display_name, key="compare: benchmark")
    if not comparison.comparable(curves, base):
        st.info("Choose a second strategy over the same period.")
        return
    table = comparison.active_table(curves, base)
    table["strategy"] = table["strategy"].map(display_name)
    label = display_name(base)
    show_table(table, benchmark_columns(table), "compare: active", alt=f"Statistics of each strategy against {label}.")
    figure = figures.active_growth_figure(curves, base, styles)
    alt = f"Growth of each strategy relative to {label}."
    show_figure(figure, f"growth over {base}, {period}", alt=alt, height=360)
    figure = figures.rolling_alpha_beta_figure(curves, base, styles)
    alt = f"Rolling alpha and beta to {label}."
    show_figure(figure, f"rolling alpha and beta to {base}, {period}", alt=alt, height=420)
    st.caption(f"Alpha and beta over a rolling window of {ROLLING_BARS} bars.")
