"""Overview page: running trainings, all runs, and the paper account."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import streamlit as st

from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.actions import jobs
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.run_list import show_runs
from finrl_pod_app.dashboard.pages.run_monitor import show_progress
from finrl_pod_app.dashboard.pages.widgets import (
    newest_result,
    page_of,
    show_as_of,
    show_badge,
    show_equity,
    show_errors,
    show_looks,
)
from finrl_pod_app.dashboard.queries import paper_journal, paper_state, runs
from finrl_pod_app.dashboard.settings import Settings
from finrl_pod_app.report.headline import key_figures
from finrl_pod_app.setup.presets import preset

REFRESH_INTERVAL = 10.0  # seconds
METRIC_WIDTH = 150  # pixels; two fit side by side on a phone
NEWEST_FIGURES = ("annual_return", "sharpe", "max_drawdown", "active_return")
ACCOUNTS_SHOWN = 6  # the paper page has all
FAILURES_SHOWN = 5  # logs of failed runs; the others have theirs on their pages


def render(settings: Settings) -> None:
    """Draw the page."""
    st.title("Overview", anchor=False)
    st.fragment(show_errors(_show_contents), run_every=REFRESH_INTERVAL)(settings)


def _show_contents(settings: Settings) -> None:
    """Draw the time, the runs and the paper account, as a fragment that refreshes itself."""
    show_as_of()
    all_runs = cached.found_runs(settings)
    if not all_runs:
        _show_welcome(settings)
        _show_paper_account(settings)
        return
    summary_by_run = {run: cached.summary(run) for run in all_runs}
    summaries = list(summary_by_run.values())
    status_by_run = {
        run: "damaged" if summary.error else runs.status_of(run) for run, summary in summary_by_run.items()
    }
    _show_started_demo(status_by_run)
    if active := [run for run, status in status_by_run.items() if status in ("running", "paused")]:
        st.header("Training", anchor=False)
        for run in active:
            show_progress(run)
    _show_newest(settings)
    st.header("Runs", anchor=False)
    show_runs(summary_by_run, list(status_by_run.values()))
    _show_damaged(summaries)
    _show_failures([run for run, status in status_by_run.items() if status == "failed"])
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
    st.page_link(page_of("train"), label="Or configure a training")


def _demo_button(settings: Settings, label: str, name: str, help_text: str) -> None:
    kind: Literal["primary", "secondary"] = "primary" if name == "quick" else "secondary"
    if st.button(label, type=kind, help=help_text, key=f"demo {name}", icon=":material/rocket_launch:"):
        st.session_state["overview: demo"] = jobs.start(preset(name), settings.runs, "demo").name
        cached.found_runs.clear()
        st.rerun()


def _show_started_demo(status_by_run: Mapping[runs.RunFiles, str]) -> None:
    """Open the page of the demo that this visitor started, once it has finished."""
    demo_name = st.session_state.get("overview: demo")
    for run, status in status_by_run.items():
        if run.name == demo_name and status == "finished":
            del st.session_state["overview: demo"]
            st.switch_page(page_of("run"), query_params={"name": run.name})


def _show_newest(settings: Settings) -> None:
    """Draw verdict and key figures of the newest result, and the link to its page."""
    run = newest_result(settings)
    if run is None:
        return
    report = cached.report(run)
    verdict = cached.verdict(run)
    with st.container(border=True):
        st.markdown(f"**Newest result: {_run_link(run.name)}**")
        for sentence in cached.paragraph_of(run, verdict) if verdict else ():
            st.markdown(theme.escape_markdown(sentence))
        with st.container(horizontal=True):
            for figure in key_figures(report):
                if figure.key in NEWEST_FIGURES:
                    st.metric(figure.label, figure.text, help=figure.definition, width=METRIC_WIDTH)
            st.metric("Validation score", theme.ratio(cached.summary(run).score), width=METRIC_WIDTH)
        show_looks(report)


def _show_damaged(summaries: Sequence[runs.RunSummary]) -> None:
    damaged_runs = [summary for summary in summaries if summary.error]
    if not damaged_runs:
        return
    with st.container(border=True):
        st.markdown(f"**Damaged runs: {len(damaged_runs)}.** Their pages show what can be read; other pages skip them.")
        lines = [f"- {_run_link(summary.name)} is damaged: {_reason(summary.error)}" for summary in damaged_runs]
        st.markdown("\n".join(lines))


def _reason(error: str) -> str:
    return theme.escape_markdown(error.removeprefix("the run is damaged: ").replace(" is damaged", ""))


def _run_link(name: str) -> str:
    """A link to the page of a run as Markdown."""
    return f"[{theme.escape_markdown(name)}](/run?name={quote(name, safe='')})"


def _show_failures(failed_runs: Sequence[runs.RunFiles]) -> None:
    for run in failed_runs[:FAILURES_SHOWN]:
        st.error(f"{theme.escape_markdown(run.name)} failed to start.", icon=":material/error:")
        st.code(runs.log_tail(run) or "The log is empty.", language=None, wrap_lines=True)


def _show_paper_account(settings: Settings) -> None:
    accounts = {name: path for name, path in settings.accounts().items() if path.is_file()}
    st.header("Paper account" if len(accounts) < 2 else f"Paper accounts: {len(accounts)}", anchor=False)
    if not accounts:
        st.caption("No paper account yet: `finrl-pod paper demo` trades a simulated month with a fake broker.")
        return
    for name, path in list(accounts.items())[:ACCOUNTS_SHOWN]:
        if len(accounts) > 1:
            st.markdown(f"**{theme.escape_markdown(name)}**")
        show_errors(_show_paper_summary)(path)
        label = "Open paper trading"
        query = {"account": name} if len(accounts) > 1 else {}
        st.page_link(page_of("paper"), label=label, icon=":material/receipt_long:", query_params=query)


def _show_paper_summary(path: Path) -> None:
    journal = paper_journal.load(path)
    now = paper_state.utc_now()
    summary = paper_state.summary(journal)
    overall = paper_state.overall_status(journal, now)
    with st.container(horizontal=True, vertical_alignment="center"):
        show_badge(overall)
        st.markdown(theme.escape_markdown(overall.detail), width="content")
    with st.container(horizontal=True):
        show_equity(summary, METRIC_WIDTH)
    if pending := paper_state.pending_commands(journal, now):
        st.warning(theme.escape_markdown(pending), icon=":material/hourglass_top:")
