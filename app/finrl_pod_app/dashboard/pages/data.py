"""The stored prices: what there is, what is wrong with it, and how more gets in."""

from __future__ import annotations

from typing import Any

import streamlit as st

from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.data_import import take_in
from finrl_pod_app.dashboard.pages.parts import show_figure
from finrl_pod_app.dashboard.pages.tables import show_table
from finrl_pod_app.dashboard.settings import Settings

VIEWS = ("Flaws", "Prices", "Missing bars", "Jumps", "Correlations")
SHOWN = 6  # tickers drawn at first


def render(settings: Settings) -> None:  # noqa: ARG001 - every page takes them
    """Draw the page."""
    from finrl_pod_app.dashboard.queries.prices import catalogue_table

    st.title("Data")
    panels = cached.catalogue()
    column: Any = st.column_config
    show_table(
        catalogue_table(panels),
        {
            "name": column.TextColumn("Name"),
            "source": column.TextColumn("Source"),
            "bar": column.TextColumn("Bar", help="1d: a day."),
            "tickers": column.NumberColumn("Tickers", format="localized"),
            "bars": column.NumberColumn("Bars", format="localized"),
            "start": column.TextColumn("From"),
            "end": column.TextColumn("To"),
            "columns": column.TextColumn("Columns"),
            "adjusted": column.TextColumn("Adjusted", help="For splits and dividends."),
            "flaws": column.NumberColumn("Flaws", help="Known faults, each in words below."),
            "fault": column.TextColumn("Why it cannot be used"),
        },
        "catalogue",
        describes="The stored panels: name, source, tickers, bars, days, columns and how many flaws are known.",
    )
    with st.expander("Import a CSV or Parquet file", icon=":material/upload_file:"):
        take_in()
    usable = [one.name for one in panels if not one.fault]
    name = st.selectbox("Panel", usable, key="data: panel")
    view = st.segmented_control("View", VIEWS, default=VIEWS[0], required=True, key="data: view")
    _draw(name, view)


def _draw(name: str, view: str) -> None:
    from finrl_pod_app.dashboard.figures import prices as figures
    from finrl_pod_app.dashboard.queries import prices

    panel = cached.panel(name, next(one.sha256 for one in cached.catalogue() if one.name == name))
    column: Any = st.column_config
    symbol = column.TextColumn("Symbol")
    if view == "Flaws":
        if not panel.flaws:
            st.success("No flaws are known.", icon=":material/check_circle:")
        st.markdown("\n".join(f"- {theme.plain(flaw)}" for flaw in panel.flaws))
    elif view == "Prices":
        chosen = _symbols(panel, SHOWN)
        if chosen:
            st.caption("Closing prices as a multiple of the first one.")
            show_figure(figures.growth(prices.growth(panel, chosen)), "growth", describes="Growth of each.", height=460)
    elif view == "Missing bars":
        words = "Which bars each ticker has, over time."
        show_figure(figures.gaps(panel), "gaps", describes=words, height=120 + 18 * len(panel.symbols))
        days = {
            "symbol": symbol,
            "first": column.DatetimeColumn("First", format="YYYY-MM-DD"),
            "last": column.DatetimeColumn("Last", format="YYYY-MM-DD"),
            "bars": column.NumberColumn("Bars", format="localized"),
            "missing": column.NumberColumn("Missing", help="Between its first and last bar."),
            "share": column.NumberColumn("Share missing", format="percent"),
        }
        words = "Each ticker with its first and last bar and how many are missing between them."
        show_table(prices.missing(panel), days, "missing", describes=words)
    elif view == "Jumps":
        least = st.slider("At least, in percent", 5, 100, 40, 5, key="data: jump") / 100
        table = prices.jumps(panel, least)
        if table.empty:
            st.success(
                f"No close moved by {least:.0%} or more from one bar to the next.", icon=":material/check_circle:"
            )
            return
        moves = {
            "time": column.DatetimeColumn("Day", format="YYYY-MM-DD"),
            "symbol": symbol,
            "before": column.NumberColumn("Before", format="dollar"),
            "after": column.NumberColumn("After", format="dollar"),
            "move": column.NumberColumn("Move", format="percent"),
            "bars": column.NumberColumn("Bars between", help="1: from one bar to the very next."),
        }
        show_table(table, moves, "jumps", describes="Large moves, the largest first: day, symbol, prices, size.")
    else:
        chosen = _symbols(panel, len(panel.symbols))
        if len(chosen) > 1:
            frame = prices.correlations(panel, chosen)
            words = "Correlation of the returns of each pair."
            show_figure(figures.correlations(frame), "correlations", describes=words, height=200 + 22 * len(chosen))
            st.caption("Of log returns from one close to the next, over the bars that both have.")


def _symbols(panel: Any, at_first: int) -> list[str]:
    first = list(panel.symbols[: min(at_first, 40)])
    return st.multiselect("Tickers", panel.symbols, default=first, key=f"data: symbols {panel.name} {at_first}")
