"""The gate's rules for each run, and the trials that were counted."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.definitions import definition
from finrl_pod_app.dashboard.frames import runs, verdicts
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.parts import show_figure
from finrl_pod_app.dashboard.pages.tables import WRAPPED, show_table


def gate(chosen: Sequence[runs.RunFiles]) -> None:
    """Draw a table of rules for each run that was judged."""
    if not chosen:
        return
    st.subheader("The gate", help="The rules that a champion has to pass before it may trade.")
    for run in chosen:
        verdict = cached.verdict(run)
        if verdict is None:
            st.caption(f"{theme.plain(run.name)} was not judged yet.")
            continue
        word = "promoted" if verdict["promoted"] else "not promoted"
        with st.expander(f"{theme.plain(run.name)}: {word}", expanded=len(chosen) == 1):
            trials, cells = verdict["trials"], st.columns(4)
            cells[0].metric("Trials on these data", theme.count(trials.get("raw")), help=definition("trials"))
            cells[1].metric("That differ", theme.count(trials.get("clustered")), help="Clusters of similar returns.")
            cells[2].metric("Runs", theme.count(trials.get("runs")), help="Runs that the trials came from.")
            cells[3].metric("Looks at the test", theme.count(verdict["looks"]), help="The error is shared by all.")
            table = verdicts.rules_table(verdict)
            columns = {
                "passed": st.column_config.TextColumn("", width="small"),
                "rule": st.column_config.TextColumn("Rule", width="small"),
                "value": st.column_config.NumberColumn("Value", format="%.3f"),
                "limit": st.column_config.NumberColumn("Limit", format="%.3f"),
                "sentence": st.column_config.TextColumn("In words", width="large"),
            }
            words = "The gate's rules: whether each was passed, its value, its limit and a sentence."
            show_table(table, columns, f"gate of {run.name}", describes=words, row=WRAPPED)
            histogram = verdicts.logits(verdict)
            if histogram is not None:
                st.markdown("Overfitting of the choice", help=definition("pbo"))
                from finrl_pod_app.dashboard.figures.curves import logits

                show_figure(logits(histogram), f"logits of {run.name}", height=240)
