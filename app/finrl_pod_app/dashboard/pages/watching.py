"""A training that runs: how far it is, and the buttons that pause, resume and stop it."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from finrl_pod.errors import RunError
from finrl_pod_app.dashboard import jobs, theme
from finrl_pod_app.dashboard.definitions import definition
from finrl_pod_app.dashboard.pages.parts import told
from finrl_pod_app.dashboard.queries import runs

REFRESH = 1.0  # seconds


def watch(run: runs.RunFiles) -> None:
    """Draw the training, and again every second until it ends; then the whole page."""
    st.fragment(told(_draw), run_every=REFRESH)(run)


def _draw(run: runs.RunFiles) -> None:
    status = runs.status_of(run)
    if status not in ("running", "paused"):
        st.rerun()
    said = runs.progress_of(run) or {}
    with st.container(border=True):
        left, right = st.columns([3, 2], vertical_alignment="center")
        left.markdown(f"**{theme.plain(run.name)}** · {_stage(said, status)}")
        with right.container(horizontal=True, horizontal_alignment="right"):
            _buttons(run, status)
        total, done = said.get("total_samples") or 0, said.get("samples") or 0
        st.progress(min(done / total, 1.0) if total else 0.0)
        cells = st.columns(4)
        cells[0].metric("Samples", theme.count(done) if total else theme.MISSING, border=False)
        rate = said.get("samples_per_second") or None
        cells[1].metric("Samples/s", theme.count(rate), help=definition("samples_per_second"))
        cells[2].metric("Best on validation", theme.ratio(said.get("best")), help=definition("validation_score"))
        cells[3].metric("Time left", theme.duration(said.get("seconds_left")))


def _stage(said: Mapping[str, object], status: str) -> str:
    if status == "paused":
        return "paused"
    return theme.plain(said.get("stage") or "starting")


def _buttons(run: runs.RunFiles, status: str) -> None:
    try:
        if status == "paused":
            if st.button("Resume", icon=":material/play_arrow:", key=f"resume {run.name}"):
                jobs.resume(run)
                st.rerun(scope="fragment")
        elif st.button("Pause", icon=":material/pause:", key=f"pause {run.name}", help="Holds it where it is."):
            jobs.pause(run)
            st.rerun(scope="fragment")
        tip = "Ends it; the generations that were finished are kept, and it can be resumed."
        if st.button("Stop", icon=":material/stop:", key=f"stop {run.name}", help=tip):
            jobs.stop(run)
            st.toast(f"{theme.plain(run.name)} is said to stop.")
    except RunError as error:
        st.error(theme.plain(error))
