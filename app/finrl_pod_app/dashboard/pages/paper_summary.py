"""The paper account in one line, for the overview."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.queries import paper_journal, paper_state

_COLOURS = {"active": "green", "reducing": "orange", "halted": "red"}
_ALIVE = {"good": "green", "warning": "orange", "bad": "red", "unknown": "gray"}


def show_account(path: Path) -> None:
    """State, sign of life and equity of a journal. Raises JournalError for one that cannot be read."""
    journal, now = paper_journal.load(path), paper_state.now()
    state, _ = journal.state
    beat, summary = paper_state.heartbeat(journal, now), paper_state.summary(journal)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.badge(f"Trading: {theme.plain(state)}", color=_COLOURS.get(state, "gray"))  # type: ignore[arg-type]
        st.badge(f"Daemon: {beat.words}", color=_ALIVE[beat.level])  # type: ignore[arg-type]
    with st.container(horizontal=True):
        day = None if summary.day is None else theme.percent(summary.day, 2)
        since = f"At the close of {summary.session or 'no session yet'}; below, the change since the session before."
        st.metric("Equity", theme.money(summary.equity), day, help=since, width=170)
        whole = "Equity over the capital, less one."
        st.metric("Since the start", theme.percent(summary.total, 2), help=whole, width=170)
    waiting = paper_state.waiting(journal, now)
    if waiting:
        st.warning(theme.plain(waiting), icon=":material/hourglass_top:")
