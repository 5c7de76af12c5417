"""The mandate of a finished run: performance against the base, use of the mandate, and its settings."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import streamlit as st

from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.widgets import show_text_table
from finrl_pod_app.dashboard.queries import runs
from finrl_pod_app.report.columns import display_name
from finrl_pod_app.report.mandate_text import (
    METHODS,
    added_rows,
    mandate_settings,
    usage_periods,
    usage_rows,
)
from finrl_pod_app.report.records import Added, MandateUsage


def show_mandate(run: runs.RunFiles, *, expanded: bool = False) -> None:
    """Draw a section with the comparison with the base and the mandate's tables, if the run has them."""
    report = cached.report(run)
    if not report.mandate:
        return
    with st.expander("Mandate", expanded=expanded):
        if report.added:
            _show_added(report.added)
            st.caption(theme.escape_markdown(METHODS))
        if report.mandate_usage:
            _show_usage(report.mandate_usage)
        settings = mandate_settings(report.mandate)
        st.caption(theme.escape_markdown(", ".join(f"{name} {value}" for name, value in settings.items())))


def _show_added(added: Added) -> None:
    base = display_name(added.base)
    rows = [
        {"statistic": measure.label, "value": value, "interval": interval, "note": measure.note}
        for measure, value, interval in added_rows(added)
    ]
    headings = {
        "statistic": f"Against {base}",
        "value": "Value",
        "interval": f"{100 * added.level:.0f}% interval",
        "note": "Definition",
    }
    show_text_table(pd.DataFrame(rows), headings, alt=f"Test returns of the champion against those of {base}.")


def _show_usage(usage: Mapping[str, MandateUsage]) -> None:
    periods = usage_periods(usage)
    rows = [
        {"measure": measure.label, **dict(zip(periods, cells, strict=True)), "note": measure.note}
        for measure, cells in usage_rows(usage)
    ]
    headings = {"measure": "Use of the mandate", **{name: name.capitalize() for name in periods}, "note": "Definition"}
    alt = "How much of the mandate was used on validation and test."
    show_text_table(pd.DataFrame(rows), headings, alt=alt)
