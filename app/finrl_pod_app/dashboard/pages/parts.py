"""Pieces that several pages draw: a figure in the page's colours."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import streamlit as st

from finrl_pod.errors import FinrlPodError
from finrl_pod_app.dashboard import theme


def show_figure(figure: Any, key: str, *, describes: str, height: int = 380) -> None:
    """A figure as wide as its column. key: unique on the page. describes: what it shows, for screen readers."""
    figure.update_layout(template=theme.template(dark=is_dark()), height=height)
    # Streamlit's own theme would replace ours.
    tools = {"displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d"]}
    st.plotly_chart(figure, key=key, theme=None, config=tools, alt=describes)


def told(draw: Callable[..., None]) -> Callable[..., None]:
    """A part that is drawn again by itself says by itself what was raised on purpose: nobody above it does."""

    @functools.wraps(draw)
    def drawn(*arguments: Any) -> None:
        try:
            draw(*arguments)
        except FinrlPodError as error:
            st.error(theme.plain(error), icon=":material/error:")

    return drawn


def is_dark() -> bool:
    """Whether the visitor's page is dark; light where the browser has not said."""
    return st.context.theme.type == "dark"
