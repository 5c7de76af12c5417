"""The views of a comparison, all under the cost that the slider names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from finrl_pod.evaluate.tearsheet import BAND_LEVEL
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.definitions import definition
from finrl_pod_app.dashboard.figures import comparison as figures
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.columns import strategy_columns
from finrl_pod_app.dashboard.pages.parts import show_figure
from finrl_pod_app.dashboard.pages.tables import show_table
from finrl_pod_app.dashboard.queries import comparison

HIGHEST = 100.0  # basis points
TRADES = 2_000  # rows shown, the last ones; all are in the file
VIEWS = ("Equity", "Drawdown", "Rolling Sharpe", "Months", "Weights", "Turnover and costs", "Trades")


def show(asked: Mapping[str, Any], looks: Mapping[str, theme.Style]) -> None:
    """Draw the slider and what hangs on it; the page around stays as it is."""
    own = next(iter(asked.values())).prepared.config.environment.cost_bps
    cost = st.slider(
        "Cost of a trade, basis points of its value",
        0.0,
        max(HIGHEST, own),
        own,
        1.0,
        help="Charged on the decisions that were made under the run's own cost. It begins there.",
        key=f"compare: cost, at first {own}",
    )
    found = comparison.curves(asked, cost)
    words = "Each strategy with its return, risk, ratios, turnover and costs under the cost that is chosen."
    table = comparison.metrics_table(found)
    table["strategy"] = table["strategy"].map(_words)
    show_table(table, strategy_columns(), "compare: metrics", describes=words)
    view = st.segmented_control("View", VIEWS, default=VIEWS[0], required=True, key="compare: view")
    if view in ("Equity", "Drawdown", "Rolling Sharpe"):
        _lines(view, found, looks)
    else:
        name = st.selectbox("Strategy", list(asked), format_func=_words, key="compare: of") if view != VIEWS[5] else ""
        if view == "Months":
            drawn = figures.months(found[name].times, found[name].equity)
            words = f"Return of each month and year of {_words(name)}, in percent."
            show_figure(drawn, "months", describes=words, height=60 + 30 * len(drawn.data[0].y))
        elif view == "Weights":
            drawn = figures.holdings(comparison.account(name, asked[name], cost))
            show_figure(drawn, "weights", describes=f"Weights of {_words(name)} over time.", height=460)
        elif view == "Turnover and costs":
            results = [comparison.account(one, asked[one], cost) for one in asked]
            show_figure(figures.turnover(results, looks), "turnover", describes="Turnover of each month.", height=320)
            show_figure(figures.costs(results, looks), "costs", describes="Costs paid so far.", height=320)
        else:
            _trades(name, asked[name], cost)
    _exports(asked, cost)


def _lines(view: str, found: Mapping[str, comparison.Curve], looks: Mapping[str, theme.Style]) -> None:
    if view == "Drawdown":
        show_figure(figures.falls(found, looks), "falls", describes="Drawdown of each strategy.", height=460)
        return
    if view == "Rolling Sharpe":
        show_figure(figures.rolling(found, looks), "rolling", describes="Rolling Sharpe ratio.", height=460)
        return
    first = next(iter(found))
    banded = st.toggle(f"Bootstrap band of {_words(first)}, and intervals of all", help=definition("interval"))
    band = cached.band(found[first].equity) if banded else None
    shown = None if band is None else {"level": BAND_LEVEL, **band}
    show_figure(figures.equity(found, looks, shown), "equity", describes="Equity of each strategy.", height=460)
    if banded:
        _intervals(found)


def _intervals(found: Mapping[str, comparison.Curve]) -> None:
    column: Any = st.column_config
    formats = {"sharpe": "%.2f", "annual_return": "percent", "max_drawdown": "percent"}
    words = {"value": "", "low": ", low", "high": ", high"}
    titles = {"sharpe": "Sharpe", "annual_return": "A year", "max_drawdown": "Drawdown"}
    config = {"strategy": column.TextColumn("Strategy")} | {
        f"{key}_{end}": column.NumberColumn(f"{titles[key]}{word}", format=form, help=definition("interval"))
        for key, form in formats.items()
        for end, word in words.items()
    }
    table = comparison.intervals_table(found, seed=0)
    table["strategy"] = table["strategy"].map(_words)
    show_table(table, config, "compare: intervals", describes="Bootstrap intervals of each strategy's statistics.")


def _trades(name: str, asked: Any, cost: float) -> None:
    table = comparison.trades(comparison.account(name, asked, cost), asked)
    column: Any = st.column_config
    config = {
        "time": column.DatetimeColumn("Time", format="YYYY-MM-DD"),
        "symbol": column.TextColumn("Symbol"),
        "side": column.TextColumn("Side"),
        "shares": column.NumberColumn("Shares", format="%.3f"),
        "price": column.NumberColumn("Price", format="dollar"),
        "value": column.NumberColumn("Value", format="dollar"),
        "weight": column.NumberColumn("Weight after", format="percent"),
    }
    last = table.tail(TRADES).iloc[::-1]
    show_table(last, config, "compare: trades", describes="Trades, the latest first.")
    st.caption(f"{len(table):,} trades{f', the last {TRADES:,} are shown' if len(table) > TRADES else ''}.")
    csv = comparison.table_csv(table)
    st.download_button("Download all trades as CSV", csv, "trades.csv", "text/csv", key="compare: trades csv")


def _exports(asked: Mapping[str, Any], cost: float) -> None:
    """Files are made when they are asked for: a report takes a second."""

    def results() -> list[Any]:
        return [comparison.account(name, one, cost) for name, one in asked.items()]

    def page() -> str:
        return comparison.export_html(results(), next(iter(asked.values())), cost)

    with st.container(horizontal=True):
        st.download_button("Report (HTML)", page, "comparison.html", "text/html", icon=":material/description:")
        bars = lambda: comparison.export_csv(results())[0]  # noqa: E731
        held = lambda: comparison.export_csv(results())[1]  # noqa: E731
        st.download_button("Bars (CSV)", bars, "bars.csv", "text/csv", icon=":material/table:")
        st.download_button("Holdings (CSV)", held, "holdings.csv", "text/csv", icon=":material/table:")
        st.caption("A figure as PNG: the camera above it.")


def _words(name: str) -> str:
    return name.replace("_", " ")
