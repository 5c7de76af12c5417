"""The paper account: what it holds, what it did, and how to stop it."""

from __future__ import annotations

import streamlit as st

from finrl_pod_app.dashboard.settings import Settings


def render(settings: Settings) -> None:
    """Draw the page."""
    st.title("Paper trading")
    st.caption("The paper account: what it holds, what it did, and how to stop it.")
    st.caption(f"Runs: {settings.runs}")
