"""Where a run's profit comes from: against the benchmark, by asset and year, and by account size."""

from __future__ import annotations

import shlex
from typing import Any

import pandas as pd
import streamlit as st

from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.columns import benchmark_columns
from finrl_pod_app.dashboard.pages.figure_cache import RUN_FIGURES
from finrl_pod_app.dashboard.pages.widgets import show_table, show_text_table
from finrl_pod_app.dashboard.queries import runs
from finrl_pod_app.report import contribution
from finrl_pod_app.report.columns import champion_first, display_name
from finrl_pod_app.report.records import RunReport

BAR_HEIGHT = 26  # pixels


def show_profit(run: runs.RunFiles, report: RunReport) -> None:
    """Draw the parts of a report on the profit."""
    _show_benchmark(report)
    _show_attribution(run, report)
    _show_capacity(run, report)


def _show_benchmark(report: RunReport) -> None:
    base, strategies = report.test.benchmark, report.test.strategies
    rows = [{"strategy": display_name(name), **strategies[name]} for name in champion_first(strategies) if name != base]
    table = pd.DataFrame(rows)
    if base is None or "beta" not in table.columns:
        return
    shown = display_name(base)
    show_table(table, benchmark_columns(table), "run: benchmark", alt=f"Statistics of each strategy against {shown}.")
    st.caption(theme.escape_markdown(f"Against {shown}, on the test period."))


def _show_attribution(run: runs.RunFiles, report: RunReport) -> None:
    if report.attribution is None:
        return
    alt = "Profit of the champion by asset, before costs."
    RUN_FIGURES.show(_profit_figure, (run,), "profit by asset", alt=alt, height=None)
    heads = {"year": "Year", **{key: head.capitalize() for key, head in contribution.YEAR_COLUMNS.items()}}
    rows = [
        dict(zip(heads, (str(row.year), *cells), strict=True))
        for row, cells in zip(report.attribution.by_year, contribution.year_cells(report.attribution), strict=True)
    ]
    show_text_table(pd.DataFrame(rows), heads, alt="Profit, costs and return of the champion by year.")
    st.caption("Profit before costs: the change of a holding's value with its dividends, less what was paid for it.")


def _show_capacity(run: runs.RunFiles, report: RunReport) -> None:
    if report.capacity is None:
        st.caption("How much money the strategy can manage, with market impact, takes a minute to measure:")
        st.code(
            f"finrl-pod backtest {shlex.quote(str(run.path))} --capacity --out reports/capacity",
            language=None,
            wrap_lines=True,
        )
        return
    alt = "Active growth by account size, with its interval."
    RUN_FIGURES.show(_capacity_figure, (run,), "capacity", alt=alt, height=340)
    st.caption(theme.escape_markdown(contribution.capacity_sentence(report.capacity)))


def _profit_figure(run: runs.RunFiles) -> Any:
    attribution = cached.report(run).attribution
    if attribution is None:
        return None
    figure = contribution.profit_figure(attribution)
    figure.update_layout(height=80 + BAR_HEIGHT * len(figure.data[0].y))
    return figure


def _capacity_figure(run: runs.RunFiles) -> Any:
    capacity = cached.report(run).capacity
    return None if capacity is None else contribution.capacity_figure(capacity)
