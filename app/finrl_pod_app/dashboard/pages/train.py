"""Set up a training, start it, and watch it."""

from __future__ import annotations

import streamlit as st

from finrl_pod_app.dashboard.pages.train_setup import set_up
from finrl_pod_app.dashboard.pages.train_watch import watch_one
from finrl_pod_app.dashboard.settings import Settings

WATCH, SET_UP = "Watch", "Set up a new one"


def render(settings: Settings) -> None:
    """Draw the page."""
    st.title("Train")
    # Set before the widget is made: afterwards it belongs to the visitor.
    if st.session_state.pop("train: started", False):
        st.session_state["train: view"] = WATCH
    st.session_state.setdefault("train: view", WATCH if st.query_params.get("run") else SET_UP)
    view = st.segmented_control("View", [SET_UP, WATCH], key="train: view", label_visibility="collapsed", required=True)
    if view == WATCH:
        watch_one(settings)
    else:
        set_up(settings)
