"""The gate's rules for each run, and the trials that were counted."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.definitions import definition
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.parts import show_figure
from finrl_pod_app.dashboard.pages.tables import show_sentences
from finrl_pod_app.dashboard.queries import runs, verdicts

CELL = 150  # pixels of a figure: two stand side by side on a telephone


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
            trials = verdict["trials"]
            with st.container(horizontal=True):
                st.metric("Trials", theme.count(trials.get("raw")), help=definition("trials"), width=CELL)
                st.metric("That differ", theme.count(trials.get("clustered")), help=definition("differ"), width=CELL)
                st.metric(
                    "From runs", theme.count(trials.get("runs")), help="Runs that the trials came from.", width=CELL
                )
                st.metric("Looks at the test", theme.count(verdict["looks"]), help=definition("looks"), width=CELL)
            table = verdicts.rules_table(verdict)
            heads = {"passed": "Result", "rule": "Rule", "sentence": "In words"}
            show_sentences(table, heads, describes="The gate's rules: whether each was passed, and a sentence on it.")
            histogram = verdicts.logits(verdict)
            if histogram is not None:
                st.markdown("Overfitting of the choice", help=definition("pbo"))
                from finrl_pod_app.dashboard.figures.comparison import logits

                words = "How the choice ranked on other days: bars left of zero are below the median."
                show_figure(logits(histogram), f"logits of {run.name}", describes=words, height=240)
