"""What the pages keep between two refreshes. Everything is keyed by contents or times of change, and bounded."""

from __future__ import annotations

import streamlit as st

from finrl_pod_app.dashboard.frames import runs
from finrl_pod_app.dashboard.settings import Settings

RUNS_KEPT = 1_000


@st.cache_resource(max_entries=RUNS_KEPT, show_spinner=False)
def summary(run: runs.RunFiles) -> runs.RunSummary:
    """A line about a run; read anew when one of its files changed."""
    return runs.summarise(run)


@st.cache_resource(ttl=1.0, max_entries=4, show_spinner=False)
def found_runs(settings: Settings) -> list[runs.RunFiles]:
    """The runs, looked for at most once a second however many pages are open."""
    return runs.find_runs(settings.runs)
