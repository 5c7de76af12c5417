"""Strategies side by side under the same rules."""

from __future__ import annotations

import streamlit as st

from finrl_pod_app.dashboard.settings import Settings


def render(settings: Settings) -> None:
    """Draw the page."""
    st.title("Backtest and compare")
    st.caption("Strategies side by side under the same rules.")
    st.caption(f"Runs: {settings.runs}")
