"""A table as every page shows it."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from finrl_pod.evaluate.export import neutral
from finrl_pod_app.dashboard.theme import MISSING

ROW = 35  # pixels
WRAPPED = 58  # pixels: two lines of text
MOST_ROWS = 12  # that are seen at once; the rest is scrolled to


def show_table(
    frame: pd.DataFrame, columns: dict[str, Any], key: str, *, describes: str, row: int = ROW, most: int = MOST_ROWS
) -> None:
    """A frame with the columns that are configured, in their order. describes: what it is, for screen readers. row:
    pixels of a row; most: rows that are seen at once.

    The table's own button saves it as CSV just as it stands, so text that a spreadsheet would execute is neutralised.
    """
    shown = frame[list(columns)].copy()
    for name in shown.columns:
        if not pd.api.types.is_numeric_dtype(shown[name]) and not pd.api.types.is_datetime64_any_dtype(shown[name]):
            shown[name] = [neutral(value) if isinstance(value, str) else value for value in shown[name]]
    height = ROW + row * min(len(shown), most) + 3
    st.dataframe(
        shown,
        hide_index=True,
        column_config=columns,
        height=height,
        row_height=row,
        placeholder=MISSING,
        key=key,
        alt=describes,
    )
