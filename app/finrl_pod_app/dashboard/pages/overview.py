"""Overview page: running trainings, latest runs, and the paper account."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from finrl_pod_app.dashboard import jobs, theme
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.columns import run_columns
from finrl_pod_app.dashboard.pages.run_monitor import show_progress
from finrl_pod_app.dashboard.pages.widgets import show_table
from finrl_pod_app.dashboard.queries import paper_journal, paper_state, runs
from finrl_pod_app.dashboard.settings import Settings
from finrl_pod_app.services.presets import preset

MAX_RUNS = 25
METRIC_WIDTH = 170  # pixels
_COLOURS = {"good": "green", "warning": "orange", "bad": "red", "unknown": "gray"}


def render(settings: Settings) -> None:
    """Draw the page."""
    st.title("Overview")
    found = cached.found_runs(settings)
    if not found:
        _show_welcome(settings)
        return
    statuses = {run.name: runs.status_of(run) for run in found[:MAX_RUNS]}
    active = [run for run in found[:MAX_RUNS] if statuses[run.name] in ("running", "paused")]
    if active:
        st.subheader("Training")
        for run in active:
            show_progress(run)
    st.subheader("Latest runs")
    _show_runs(found, statuses)
    _show_failures(found, statuses)
    _show_paper_account(settings)


def _show_welcome(settings: Settings) -> None:
    st.markdown(
        "No runs yet. The demo trains a small population of agents on twenty US stocks, selects a champion on a "
        "validation period, and tests it on a later period against the usual baselines."
    )
    st.caption(f"Runs are stored in {theme.escape_markdown(settings.runs)}.")
    with st.container(horizontal=True):
        _demo_button(settings, "Start the demo run", "quick", "About a minute: every stage, too short to learn much.")
        _demo_button(settings, "Start the full demo", "laptop", "One to three minutes on two cores.")
    st.page_link(st.session_state["pages"]["train"], label="Or configure a training")


def _demo_button(settings: Settings, label: str, name: str, help_text: str) -> None:
    if st.button(
        label,
        type="primary" if name == "quick" else "secondary",
        help=help_text,
        key=f"demo {name}",
        icon=":material/rocket_launch:",
    ):
        jobs.start(preset(name), settings.runs, "demo")
        cached.found_runs.clear()
        st.rerun()


def _show_runs(found: list[runs.RunFiles], statuses: dict[str, runs.Status]) -> None:
    shown = found[:MAX_RUNS]
    frame = runs.runs_table([cached.summary(run) for run in shown], [statuses[run.name] for run in shown])
    alt = "Latest runs: name, status, progress, validation and test results, settings and time of the last change."
    show_table(frame, run_columns(), "latest runs", alt=alt)
    if len(found) > MAX_RUNS:
        st.caption(f"The latest {MAX_RUNS} of {len(found):,} runs.")


def _show_failures(found: list[runs.RunFiles], statuses: dict[str, runs.Status]) -> None:
    for run in found[:MAX_RUNS]:
        name, error = theme.escape_markdown(run.name), cached.summary(run).error
        if error:
            st.warning(f"{name}: {theme.escape_markdown(error)}", icon=":material/broken_image:")
        if statuses[run.name] == "failed":
            st.error(f"{name} failed to start.", icon=":material/error:")
            st.code(runs.log_tail(run) or "The log is empty.", language=None, wrap_lines=True)


def _show_paper_account(settings: Settings) -> None:
    st.subheader("Paper account")
    path = settings.find_journal()
    if path is None or not path.is_file():
        st.caption("No paper account yet: `finrl-pod paper demo` trades a simulated month with a fake broker.")
        return
    _show_paper_summary(path)
    st.page_link(st.session_state["pages"]["paper"], label="Open paper trading")


def _show_paper_summary(path: Path) -> None:
    journal, now = paper_journal.load(path), paper_state.utc_now()
    summary = paper_state.summary(journal)
    with st.container(horizontal=True, vertical_alignment="center"):
        for badge in (paper_state.trading_status(journal), paper_state.daemon_status(journal, now)):
            st.badge(theme.escape_markdown(badge.label), color=_COLOURS[badge.level])  # type: ignore[arg-type]
    with st.container(horizontal=True):
        change = None if summary.day is None else theme.percent(summary.day, 2)
        help_text = f"At the close of {summary.session or 'no session yet'}, with the change since the session before."
        st.metric("Equity", theme.money(summary.equity), change, help=help_text, width=METRIC_WIDTH)
        total = theme.percent(summary.total, 2)
        st.metric("Total return", total, help="On the capital.", width=METRIC_WIDTH)
    if pending := paper_state.pending_commands(journal, now):
        st.warning(theme.escape_markdown(pending), icon=":material/hourglass_top:")
