"""What the checks for look-ahead, leaks and flawed data found."""

from __future__ import annotations

import streamlit as st

from finrl_pod_app.dashboard.settings import Settings


def render(settings: Settings) -> None:
    """Draw the page."""
    st.title("Audit")
    st.caption("What the checks for look-ahead, leaks and flawed data found.")
    st.caption(f"Runs: {settings.runs}")
