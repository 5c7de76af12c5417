"""The view of a comparison against a benchmark of choice."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from finrl_pod.evaluate.tearsheet import ROLLING_BARS
from finrl_pod_app.dashboard.figures import active as figures
from finrl_pod_app.dashboard.figures.comparison import Styles
from finrl_pod_app.dashboard.pages.columns import benchmark_columns
from finrl_pod_app.dashboard.pages.widgets import show_figure, show_table
from finrl_pod_app.dashboard.queries import benchmark
from finrl_pod_app.dashboard.queries.comparison import Curve
from finrl_pod_app.report.columns import display_name

PREFERRED = ("index", "equal_weight")


def show_benchmark(curves: Mapping[str, Curve], styles: Styles, period: str) -> None:
    """Draw the choice of the benchmark, statistics of active returns, their growth, and rolling alpha and beta.

    period: of the curves, as text for the names of saved pictures.
    """
    names = list(curves)
    index = next((names.index(name) for name in PREFERRED if name in names), len(names) - 1)
    base = st.selectbox("Benchmark", names, index=index, format_func=display_name, key="compare: benchmark")
    if not benchmark.comparable(curves, base):
        st.info("Choose a second strategy over the same period.")
        return
    table = benchmark.active_table(curves, base)
    table["strategy"] = table["strategy"].map(display_name)
    shown = display_name(base)
    show_table(table, benchmark_columns(table), "compare: active", alt=f"Statistics of each strategy against {shown}.")
    figure = figures.active_growth_figure(curves, base, styles)
    show_figure(
        figure, f"growth over {base}, {period}", alt=f"Growth of each strategy over that of {shown}.", height=360
    )
    figure = figures.rolling_alpha_beta_figure(curves, base, styles)
    show_figure(
        figure, f"rolling alpha and beta to {base}, {period}", alt=f"Rolling alpha and beta to {shown}.", height=420
    )
    st.caption(f"Alpha and beta over a rolling window of {ROLLING_BARS} bars.")
