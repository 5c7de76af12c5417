"""What the pages keep between two refreshes. Everything is keyed by contents or times of change, and bounded.

Of runs and files a plain cache is kept: Streamlit's own takes longer to make its key than many of them to be read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import streamlit as st

from finrl_pod_app.dashboard.queries import machine, runs, training, verdicts
from finrl_pod_app.dashboard.settings import Settings

if TYPE_CHECKING:
    from finrl_pod.data.manifest import Manifest
    from finrl_pod.settings.run import RunConfig
    from finrl_pod.types import Panel

RUNS_KEPT, GENERATIONS_KEPT = 1_000, 200
ASKED_KEPT = 32  # of about 6 MB each


@lru_cache(maxsize=RUNS_KEPT)
def summary(run: runs.RunFiles) -> runs.RunSummary:
    """A line about a run; read anew when one of its files changed."""
    return runs.summarise(run)


@st.cache_resource(ttl=1.0, max_entries=4, show_spinner=False)
def found_runs(settings: Settings) -> list[runs.RunFiles]:
    """The runs, looked for at most once a second however many pages are open."""
    return runs.find_runs(settings.runs)


@lru_cache(maxsize=GENERATIONS_KEPT)
def generation(file: Path, changed: int) -> dict[str, Any]:  # noqa: ARG001 - a part of the key
    """A generation's curves and agents; read anew when its file changed."""
    return training.read_generation(file)


@lru_cache(maxsize=RUNS_KEPT)
def champions(run: runs.RunFiles) -> tuple[str, ...]:
    """Members of a finished run's champion; none before."""
    return runs.champions(run)


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


@lru_cache(maxsize=RUNS_KEPT)
def config(run: runs.RunFiles) -> RunConfig:
    """A run's settings."""
    return runs.config(run)


@st.cache_resource(max_entries=1, show_spinner=False)
def default_config() -> RunConfig:
    """The settings where nobody says others."""
    from finrl_pod.settings.run import RunConfig

    return RunConfig()


@lru_cache(maxsize=RUNS_KEPT)
def verdict(run: runs.RunFiles) -> dict[str, Any] | None:
    """What the gate said of a run, or None before it did."""
    return verdicts.read(run)


@st.cache_resource(max_entries=ASKED_KEPT, show_spinner=False)
def asked(
    target: runs.RunFiles | str,
    start: str | None,
    end: str | None,
    base: runs.RunFiles | None,
    data: str | None,
    counted: bool,
) -> Any:
    """What a strategy or the champion of a run decides in a period (`comparison.ask_strategy`)."""
    from finrl_pod_app.dashboard.queries.comparison import ask_strategy

    _one_thread()
    if isinstance(target, str):
        return ask_strategy(target, start, end, None if base is None else config(base), data, counted=counted)
    return ask_strategy(target.path, start, end, None, counted=counted)


@st.cache_data(max_entries=50, show_spinner=False)
def band(equity: Any) -> dict[str, Any] | None:
    """The bootstrap band of an equity curve, None for one that is too short, flat or ruined."""
    from finrl_pod_app.dashboard.queries.comparison import band_of

    return band_of(equity)


@st.cache_resource(max_entries=4, show_spinner="Reading prices")
def panel(name: str, sha256: str) -> Panel:  # noqa: ARG001 - a part of the key
    """A stored panel; read anew when its contents changed."""
    from finrl_pod.data.store import Store

    return Store().load(name)


@st.cache_resource(max_entries=1, show_spinner=False)
def strategies() -> tuple[str, ...]:
    """The names of the built-in strategies."""
    from finrl_pod_app.dashboard.queries.comparison import STRATEGIES

    return STRATEGIES


@st.cache_resource(max_entries=50, show_spinner=False)
def audit(target: runs.RunFiles | str, _tell: Callable[[str], None]) -> dict[str, Any]:
    """What an audit finds about the champion of a run, or about a strategy on the sample prices."""
    from finrl_pod_app.services import audit_targets

    _one_thread()
    if isinstance(target, str):
        return audit_targets.audit_strategy(target, None, on_step=_tell).plain()
    return audit_targets.audit_run(target.path, on_step=_tell).plain()


@st.cache_resource(ttl=300.0, max_entries=1, show_spinner="Looking at the machine")
def doctor() -> list[Any]:
    """What works on this machine and what does not."""
    from finrl_pod_app.services.doctor import examine

    return examine()


@st.cache_resource(ttl=2.0, max_entries=1, show_spinner=False)
def gpus() -> pd.DataFrame:
    """The graphics cards, asked at most every two seconds however many pages are open."""
    return machine.gpus()


@st.cache_resource(max_entries=1, show_spinner=False)
def store_folder() -> Path:
    """Where prices are stored."""
    from finrl_pod.data.store import Store

    return Store().root


def _one_thread() -> None:
    """A strategy decides on a few numbers at a time: threads would do nothing but wait for each other, and on a busy
    machine ten times as long as the work takes. Trainings are processes of their own and not concerned."""
    import torch

    torch.set_num_threads(1)
