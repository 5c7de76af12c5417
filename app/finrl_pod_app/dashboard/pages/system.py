"""The machine: devices, versions, disk."""

from __future__ import annotations

import streamlit as st

from finrl_pod_app.dashboard.settings import Settings


def render(settings: Settings) -> None:
    """Draw the page."""
    st.title("System")
    st.caption("The machine: devices, versions, disk.")
    st.caption(f"Runs: {settings.runs}")
