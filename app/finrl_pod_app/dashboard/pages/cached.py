"""Caches of the pages, keyed by contents or modification times and bounded in size. Do not modify their objects.

Runs and files use lru_cache: computing the key of a Streamlit cache takes longer than reading many of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import streamlit as st

from finrl_pod_app.dashboard.queries import damage, runs, training
from finrl_pod_app.dashboard.settings import Settings
from finrl_pod_app.report.verdict_text import verdict_paragraph
from finrl_pod_app.setup.presets import PRESETS, for_stored_panel

if TYPE_CHECKING:
    from finrl_pod.data.store import Manifest
    from finrl_pod.promotion.verdict import Verdict
    from finrl_pod.settings.run import RunConfig
    from finrl_pod.types import BacktestResult, Floats, Panel
    from finrl_pod_app.evaluation.audit import Audit
    from finrl_pod_app.evaluation.sweeps import DecisionTable
    from finrl_pod_app.report.records import Band
    from finrl_pod_app.setup.doctor import Finding

MAX_RUNS, MAX_GENERATIONS = 1_000, 200
MAX_REPORTS = 16
MAX_CURVES = 500  # of a few numbers each
MAX_CONFIGS = 64
MAX_DECISIONS = 32  # of about 6 MB each

summary = lru_cache(maxsize=MAX_RUNS)(damage.summarise)
champions = lru_cache(maxsize=MAX_RUNS)(runs.champions)
config = lru_cache(maxsize=MAX_RUNS)(runs.config)
verdict = lru_cache(maxsize=MAX_RUNS)(runs.verdict)
report = lru_cache(maxsize=MAX_REPORTS)(damage.readable_report)


@st.cache_resource(ttl=1.0, max_entries=4, show_spinner=False)
def found_runs(settings: Settings) -> list[runs.RunFiles]:
    """The runs on disk, searched at most once per second over all sessions."""
    return runs.find_runs(settings.runs)


@lru_cache(maxsize=MAX_GENERATIONS)
def generation(file: Path, modified: int) -> training.Generation:  # noqa: ARG001 - cache key
    """The metrics and agents of a generation."""
    return training.read_generation(file)


@lru_cache(maxsize=MAX_REPORTS)
def agents(run: runs.RunFiles, files: training.GenerationFiles) -> pd.DataFrame:
    """The agents of a run. files: result of `training.generation_files`."""
    return training.agents_table(run, [generation(*file) for file in files])


@lru_cache(maxsize=MAX_CURVES)
def best_scores(run: runs.RunFiles, files: training.GenerationFiles) -> pd.Series[float]:
    """The best validation score so far by generation."""
    return training.best_scores(training.agents_table(run, [training.read_generation(path) for path, _ in files]))


@lru_cache(maxsize=MAX_CURVES)
def learning_curve(files: training.GenerationFiles, metric: str) -> pd.DataFrame:
    """The learning curve of a metric."""
    return training.learning_curve([training.read_generation(path) for path, _ in files], metric)


@st.cache_resource(ttl=10.0, max_entries=1, show_spinner="Reading the catalogue")
def catalogue() -> tuple[Manifest, ...]:
    """Manifests of the stored panels, the built-in ones first."""
    from finrl_pod.data.store import Store

    return Store().list()


def paragraph_of(run: runs.RunFiles, verdict: Verdict) -> list[str]:
    """The first paragraph of a verdict."""
    return verdict_paragraph(report(run).model_copy(update={"verdict": verdict}))


@lru_cache(maxsize=MAX_CONFIGS)
def preset_on_panel(preset: str, name: str, sha256: str) -> RunConfig:  # noqa: ARG001 - cache key
    """A preset for a stored panel, as `finrl-pod init` writes it."""
    from finrl_pod.data.store import Store

    return for_stored_panel(PRESETS[preset], Store(), name)


@lru_cache(maxsize=MAX_REPORTS)
def curves(run: runs.RunFiles) -> dict[str, BacktestResult]:
    """The results behind the report of a run, by strategy. Raises RunError if they are missing or damaged."""
    from finrl_pod_app.report.builder import MAX_CURVES_BYTES, parse_curves

    return dict(parse_curves(runs.read_bytes(run.path / runs.CURVES, MAX_CURVES_BYTES)))


@st.cache_resource(max_entries=MAX_DECISIONS, show_spinner=False)
def decisions(
    target: runs.RunFiles | str,
    start: str | None,
    end: str | None,
    base: runs.RunFiles | None,
    data: str | None,
    look_recorded: bool,
) -> DecisionTable:
    """The decisions of a strategy or the champion of a run in a period, from `comparison.strategy_decisions`."""
    from finrl_pod_app.dashboard.queries.comparison import strategy_decisions

    _use_one_thread()
    if isinstance(target, str):
        base_config = None if base is None else config(base)
        return strategy_decisions(target, start, end, base_config, data, look_recorded=look_recorded)
    return strategy_decisions(target.path, start, end, None, look_recorded=look_recorded)


@st.cache_data(max_entries=50, show_spinner=False)
def bootstrap_band(equity: Floats) -> Band | None:
    """The bootstrap band of an equity curve, or None if it is too short, flat or ruined."""
    from finrl_pod_app.report.builder import bootstrap_band

    return bootstrap_band(equity)


@st.cache_resource(max_entries=4, show_spinner="Reading prices")
def panel(name: str, sha256: str) -> Panel:  # noqa: ARG001 - cache key
    """A stored panel."""
    from finrl_pod.data.store import Store

    return Store().load(name)


@st.cache_data(max_entries=40, show_spinner="Analysing the feature")
def feature_analysis(name: str, sha256: str, feature: str) -> dict[str, Any]:  # noqa: ARG001 - cache key
    """Figures of one feature on a panel: its training bars if it is built in, else all bars.

    Raises FinrlPodError for a feature that cannot rank assets.
    """
    from finrl_pod.settings.run import BUILT_IN_SPLITS, DataConfig
    from finrl_pod_app.evaluation.feature_analysis import analyse_features

    if name == DataConfig().name:
        return analyse_features([feature])
    splits = BUILT_IN_SPLITS.get(name)
    if splits is None:
        return analyse_features([feature], data=name, split="all")
    return analyse_features([feature], data=name, start=splits.train[0], end=splits.train[1]) | {"split": "train"}


@st.cache_resource(max_entries=50, show_spinner=False)
def audit(target: runs.RunFiles | str, _on_step: Callable[[str], None]) -> Audit:
    """The audit of the champion of a run, or of a strategy on the sample prices.

    _on_step: called with each step; the underscore excludes it from the cache key of Streamlit.
    """
    from finrl_pod_app.evaluation import audit as audits

    _use_one_thread()
    if isinstance(target, str):
        return audits.audit_strategy(target, None, on_step=_on_step)
    return audits.audit_run(target.path, on_step=_on_step)


@st.cache_resource(ttl=300.0, max_entries=1, show_spinner="Checking the installation")
def doctor() -> list[Finding]:
    """The findings of `doctor`."""
    from finrl_pod_app.setup.doctor import check_installation

    return check_installation()


def _use_one_thread() -> None:
    """Limit torch to one thread: strategies compute on small tensors, where threads cost more than they save."""
    import torch

    torch.set_num_threads(1)
