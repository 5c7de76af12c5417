"""The latest runs, the running training, and the state of the paper account."""

from __future__ import annotations

import streamlit as st

from finrl_pod_app.dashboard import jobs, theme
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.columns import run_columns
from finrl_pod_app.dashboard.pages.paper_summary import show_account
from finrl_pod_app.dashboard.pages.tables import show_table
from finrl_pod_app.dashboard.pages.watching import watch
from finrl_pod_app.dashboard.queries import runs
from finrl_pod_app.dashboard.settings import Settings
from finrl_pod_app.services.presets import preset

LATEST = 25


def render(settings: Settings) -> None:
    """Draw the page."""
    st.title("Overview")
    found = cached.found_runs(settings)
    if not found:
        _welcome(settings)
        return
    statuses = {run.name: runs.status_of(run) for run in found[:LATEST]}
    working = [run for run in found[:LATEST] if statuses[run.name] in ("running", "paused")]
    if working:
        st.subheader("Training")
        for run in working:
            watch(run)
    st.subheader("Latest runs")
    _table(found, statuses)
    _failures(found, statuses)
    _paper(settings)


def _welcome(settings: Settings) -> None:
    st.markdown(
        "There are no runs yet. The demo trains a small population of agents on twenty real stocks, picks a champion "
        "on years that it was not trained on, and tests it on later ones beside the usual baselines."
    )
    st.caption(f"Runs are kept in {theme.plain(settings.runs)}.")
    with st.container(horizontal=True):
        _demo_button(settings, "Make the demo run", "quick", "About a minute: every stage, too short to learn much.")
        _demo_button(settings, "Make the whole demo", "laptop", "One to three minutes on two cores.")
    st.page_link(st.session_state["pages"]["train"], label="Or set up a training of your own")


def _demo_button(settings: Settings, label: str, name: str, tip: str) -> None:
    if st.button(
        label,
        type="primary" if name == "quick" else "secondary",
        help=tip,
        key=f"demo {name}",
        icon=":material/rocket_launch:",
    ):
        jobs.start(preset(name), settings.runs, "demo")
        cached.found_runs.clear()
        st.rerun()


def _table(found: list[runs.RunFiles], statuses: dict[str, runs.Status]) -> None:
    shown = found[:LATEST]
    frame = runs.table([cached.summary(run) for run in shown], [statuses[run.name] for run in shown])
    words = "The latest runs: status, name, progress, validation and test results, settings and the time of change."
    show_table(frame, run_columns(), "latest runs", describes=words)
    if len(found) > LATEST:
        st.caption(f"The latest {LATEST} of {len(found):,} runs.")


def _failures(found: list[runs.RunFiles], statuses: dict[str, runs.Status]) -> None:
    for run in found[:LATEST]:
        fault = cached.summary(run).fault
        if fault:
            st.warning(f"{theme.plain(run.name)}: {theme.plain(fault)}", icon=":material/broken_image:")
        if statuses[run.name] == "failed":
            st.error(f"{theme.plain(run.name)} ended before it began.", icon=":material/error:")
            st.code(runs.last_words(run) or "It left no message.", language=None, wrap_lines=True)


def _paper(settings: Settings) -> None:
    st.subheader("Paper account")
    journal = settings.find_journal()
    if journal is None or not journal.is_file():
        st.caption("No paper account yet: `finrl-pod paper demo` trades a simulated month against a fake broker.")
        return
    show_account(journal)
    st.page_link(st.session_state["pages"]["paper"], label="See and command it")
