"""What the pages keep between two refreshes. Everything is keyed by contents or times of change, and bounded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from finrl_pod_app.dashboard.frames import runs, training
from finrl_pod_app.dashboard.settings import Settings

if TYPE_CHECKING:
    from finrl_pod.data.manifest import Manifest

RUNS_KEPT, GENERATIONS_KEPT = 1_000, 200


@st.cache_resource(max_entries=RUNS_KEPT, show_spinner=False)
def summary(run: runs.RunFiles) -> runs.RunSummary:
    """A line about a run; read anew when one of its files changed."""
    return runs.summarise(run)


@st.cache_resource(ttl=1.0, max_entries=4, show_spinner=False)
def found_runs(settings: Settings) -> list[runs.RunFiles]:
    """The runs, looked for at most once a second however many pages are open."""
    return runs.find_runs(settings.runs)


@st.cache_resource(max_entries=GENERATIONS_KEPT, show_spinner=False)
def generation(file: Path, changed: int) -> dict[str, Any]:  # noqa: ARG001 - a part of the key
    """A generation's curves and agents; read anew when its file changed."""
    return training.read_generation(file)


@st.cache_resource(max_entries=RUNS_KEPT, show_spinner=False)
def champions(run: runs.RunFiles) -> tuple[str, ...]:
    """Members of a finished run's champion; none before."""
    return runs.champions(run)


@st.cache_resource(max_entries=RUNS_KEPT, show_spinner=False)
def champion_size(run: runs.RunFiles) -> int:
    """How many of the best will form the champion."""
    return runs.champion_size(run)


@st.cache_resource(ttl=10.0, max_entries=1, show_spinner="Reading the catalogue")
def catalogue() -> tuple[Manifest, ...]:
    """The stored panels, the built-in sample first."""
    from finrl_pod.data.store import Store

    return Store().list()


@st.cache_resource(max_entries=1, show_spinner=False)
def feature_names() -> tuple[str, ...]:
    """The registered features."""
    from finrl_pod.data.features import names

    return names()
