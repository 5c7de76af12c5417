"""A table as every page shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from finrl_pod.evaluate.export import escape_formula
from finrl_pod_app.dashboard.theme import MISSING, plain

ROW = 35  # pixels
MOST_ROWS = 12  # that are seen at once; the rest is scrolled to


def show_table(
    frame: pd.DataFrame, columns: dict[str, Any], key: str, *, describes: str, most: int = MOST_ROWS
) -> None:
    """A frame with the columns that are configured, in their order. describes: what it is, for screen readers. most:
    rows that are seen at once.

    The table's own button saves it as CSV just as it stands, so text that a spreadsheet would execute is neutralised.
    """
    shown = frame[list(columns)].copy()
    for name in shown.columns:
        if not pd.api.types.is_numeric_dtype(shown[name]) and not pd.api.types.is_datetime64_any_dtype(shown[name]):
            shown[name] = [escape_formula(value) if isinstance(value, str) else value for value in shown[name]]
    height = ROW * (1 + min(len(shown), most)) + 3
    st.dataframe(
        shown,
        hide_index=True,
        column_config=columns,
        height=height,
        row_height=ROW,
        placeholder=MISSING,
        key=key,
        alt=describes,
    )


def show_sentences(frame: pd.DataFrame, headings: Mapping[str, str], *, describes: str) -> None:
    """A frame of text, whose sentences wrap so that a narrow page shows them whole. headings: by column, in order."""
    shown = pd.DataFrame({head: [plain(text) for text in frame[name]] for name, head in headings.items()}, dtype=object)
    st.table(shown, border="horizontal", hide_index=True, alt=describes)
