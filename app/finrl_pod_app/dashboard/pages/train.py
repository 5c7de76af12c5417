"""Set up a training, start it and watch it."""

from __future__ import annotations

import streamlit as st

from finrl_pod_app.dashboard.settings import Settings


def render(settings: Settings) -> None:
    """Draw the page."""
    st.title("Train")
    st.caption("Set up a training, start it and watch it.")
    st.caption(f"Runs: {settings.runs}")
