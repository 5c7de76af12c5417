"""The stored prices: what is in them and what is wrong with them."""

from __future__ import annotations

import streamlit as st

from finrl_pod_app.dashboard.settings import Settings


def render(settings: Settings) -> None:
    """Draw the page."""
    st.title("Data")
    st.caption("The stored prices: what is in them and what is wrong with them.")
    st.caption(f"Runs: {settings.runs}")
