"""Pieces that several pages draw: a figure in the page's colours."""

from __future__ import annotations

from typing import Any

import streamlit as st

from finrl_pod_app.dashboard import theme


def show_figure(figure: Any, key: str, *, height: int = 380) -> None:
    """A figure as wide as its column. key: unique on the page."""
    figure.update_layout(template=theme.template(dark=is_dark()), height=height)
    # Streamlit's own theme would replace ours.
    st.plotly_chart(figure, key=key, theme=None, config={"displaylogo": False, "modeBarButtonsToRemove": ["lasso2d"]})


def is_dark() -> bool:
    """Whether the visitor's page is dark; light where the browser has not said."""
    return st.context.theme.type == "dark"
