"""How the columns of the pages' tables are headed, written and explained."""

from __future__ import annotations

from typing import Any

import streamlit as st

from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.definitions import definition
from finrl_pod_app.report.columns import STRATEGY_COLUMNS


def run_columns() -> dict[str, Any]:
    """The columns of the table of runs, in their order."""
    column: Any = st.column_config
    zone = theme.EXCHANGE_ZONE.key
    return {
        "name": column.TextColumn("Run"),
        "status": column.TextColumn("Status"),
        "progress": column.ProgressColumn(
            "Done",
            format="percent",
            min_value=0.0,
            max_value=1.0,
            width="small",
            help="Generations that have finished.",
        ),
        "score": column.NumberColumn("Validation", format="%.2f", help=definition("validation_score")),
        "sharpe": column.NumberColumn("Test Sharpe", format="%.2f", help=definition("sharpe")),
        "annual_return": column.NumberColumn("A year", format="percent", help=definition("annual_return")),
        "drawdown": column.NumberColumn("Drawdown", format="percent", help=definition("max_drawdown")),
        "promoted": column.TextColumn("Gate", help="Whether the champion passed every rule of the gate."),
        "algorithm": column.TextColumn("Algorithm"),
        "pods": column.NumberColumn("Pods", format="localized", help="Agents trained side by side."),
        "data": column.TextColumn("Data", help="The panel of prices."),
        "changed": column.DatetimeColumn("Changed", format="MMM D, HH:mm z", timezone=zone),
    }


def strategy_columns() -> dict[str, Any]:
    """Configuration of a table with a row for each strategy and its metrics as columns."""
    formats = {"percent": "percent", "ratio": "%.2f", "currency": "dollar", "times": "%.2f×"}
    column: Any = st.column_config
    found = {
        one.key: column.NumberColumn(one.short.capitalize(), format=formats[one.kind], help=definition(one.key))
        for one in STRATEGY_COLUMNS
    }
    return {"strategy": column.TextColumn("Strategy"), **found}
