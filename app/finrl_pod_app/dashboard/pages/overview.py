"""The latest runs, the running training and the state of the paper account."""

from __future__ import annotations

import streamlit as st

from finrl_pod_app.dashboard.settings import Settings


def render(settings: Settings) -> None:
    """Draw the page."""
    st.title("Overview")
    st.caption("The latest runs, the running training and the state of the paper account.")
    st.caption(f"Runs: {settings.runs}")
