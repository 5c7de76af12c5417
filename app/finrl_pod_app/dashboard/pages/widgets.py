"""Streamlit elements shared by the pages: figures, tables, and error messages of self-refreshing parts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import streamlit as st

from finrl_pod.errors import FinrlPodError
from finrl_pod.evaluate.export import escape_formula
from finrl_pod_app.dashboard import theme

ROW_HEIGHT = 35  # pixels
MAX_VISIBLE_ROWS = 12  # the others are reached by scrolling


def show_figure(figure: Any, key: str, *, alt: str, height: int = 380) -> None:
    """Draw a figure as wide as its column. key: unique on the page. alt: description for screen readers."""
    figure.update_layout(template=theme.template(dark=is_dark()), height=height)
    toolbar = {"displaylogo": False, "modeBarButtonsToRemove": ["lasso2d", "select2d"]}
    # Streamlit's theme would replace the template.
    st.plotly_chart(figure, key=key, theme=None, config=toolbar, alt=alt)


def show_table(
    frame: pd.DataFrame, columns: dict[str, Any], key: str, *, alt: str, max_rows: int = MAX_VISIBLE_ROWS
) -> None:
    """Draw the configured columns of a frame, in their order. alt: description for screen readers.

    Text that a spreadsheet would execute is escaped, since the table can be saved as CSV.
    """
    shown = frame[list(columns)].copy()
    for name in shown.columns:
        if not pd.api.types.is_numeric_dtype(shown[name]) and not pd.api.types.is_datetime64_any_dtype(shown[name]):
            shown[name] = [escape_formula(value) if isinstance(value, str) else value for value in shown[name]]
    st.dataframe(
        shown,
        hide_index=True,
        column_config=columns,
        height=ROW_HEIGHT * (1 + min(len(shown), max_rows)) + 3,
        row_height=ROW_HEIGHT,
        placeholder=theme.MISSING,
        key=key,
        alt=alt,
    )


def show_text_table(frame: pd.DataFrame, headings: Mapping[str, str], *, alt: str) -> None:
    """Draw a frame of sentences that wrap on narrow pages. headings: by column, in order."""
    text = {head: [theme.escape_markdown(cell) for cell in frame[name]] for name, head in headings.items()}
    st.table(pd.DataFrame(text, dtype=object), border="horizontal", hide_index=True, alt=alt)


def show_errors(draw: Callable[..., None]) -> Callable[..., None]:
    """Wrap a self-refreshing part, which nothing above it guards, so that errors of finrl_pod show as messages."""

    @functools.wraps(draw)
    def drawn(*arguments: Any) -> None:
        try:
            draw(*arguments)
        except FinrlPodError as error:
            st.error(theme.escape_markdown(error), icon=":material/error:")

    return drawn


def is_dark() -> bool:
    """Whether the visitor's page is dark; False if the browser did not report it."""
    return st.context.theme.type == "dark"
