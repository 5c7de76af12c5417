"""Run page: one run from its training to its verdict and report, with tags and links to the next steps."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from typing import Any

import streamlit as st

from finrl_pod.errors import count_text
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.actions.run_changes import (
    MAX_TAG,
    paper_command,
    paper_config,
    save_tags,
    write_paper_config,
)
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.address import BOUND
from finrl_pod_app.dashboard.pages.result_views import (
    show_key_figures,
    show_mandate,
    show_profit,
    show_reasons,
    show_verdict,
)
from finrl_pod_app.dashboard.pages.run_monitor import show_outcome, show_progress, show_training
from finrl_pod_app.dashboard.pages.widgets import RUN_FIGURES, choose_run, error_messages, page_of, show_errors
from finrl_pod_app.dashboard.queries import runs
from finrl_pod_app.dashboard.settings import Settings
from finrl_pod_app.report import charts
from finrl_pod_app.report.columns import CHAMPION, in_sentence
from finrl_pod_app.report.palette import report_styles
from finrl_pod_app.report.records import RunReport

PAGE_HEIGHT = 900  # pixels of the embedded report
_REFRESH = 3.0  # seconds between refreshes of the figures of a running training


def render(settings: Settings) -> None:
    """Draw the page."""
    heading, choice = st.columns([3, 2], vertical_alignment="bottom")
    with choice:
        run = choose_run(settings)
    if run is None:
        heading.title("Run", anchor=False)
        st.info("No runs yet. Start the demo run on the overview page, or configure a training.")
        return
    heading.title(theme.escape_markdown(run.name), anchor=False)
    summary = cached.summary(run)
    if summary.error:
        st.error(
            f"{theme.escape_markdown(run.name)} is damaged: {theme.escape_markdown(summary.error)}",
            icon=":material/broken_image:",
        )
        st.caption(f"Folder: {theme.escape_markdown(run.path)}. Its other parts and other runs are not affected.")
    if run.is_temporary:
        st.info("Trained by `finrl-pod paper demo` for its account only: it is no result.", icon=":material/hourglass:")
    status = runs.status_of(run)
    with error_messages():
        _show_heading(run, summary, status)
    if status in ("running", "paused"):
        show_progress(run)
        st.fragment(show_errors(show_training), run_every=_REFRESH if status == "running" else None)(settings, run.name)
        return
    if not run.has(runs.REPORT):
        with error_messages():
            show_outcome(run, status)
            show_training(settings, run.name)
        return
    report = cached.report(run)
    if report.split == "test" and not runs.is_test_look_recorded(run):
        st.info(
            "The look at the test period is not recorded, so its results are not shown. Repeat the command of the "
            "training with --resume to test it.",
            icon=":material/visibility:",
        )
        show_training(settings, run.name)
        return
    show_key_figures(report)
    st.header("Verdict", anchor=False)
    with error_messages():
        show_verdict(run, cached.verdict(run))
    with st.container(horizontal=True, vertical_alignment="center"):
        st.page_link(page_of("compare"), label="Compare", icon=":material/query_stats:", query_params={"run": run.name})
        st.page_link(page_of("audit"), label="Audit", icon=":material/fact_check:", query_params={"run": run.name})
        if st.button("Trade this on paper", icon=":material/rocket_launch:", key=f"deploy {run.name}"):
            _paper_dialog(settings, run)
    with error_messages():
        _show_views(settings, run, report)
    _show_report(run)


def _show_heading(run: runs.RunFiles, summary: runs.RunSummary, status: runs.Status) -> None:
    """Draw status, period and settings in one line, and the tags."""
    config = cached.config(run)
    first, last = config.splits.test
    facts = [
        summary.data,
        f"tested {first} to {last}",
        summary.algorithm,
        f"{count_text(summary.pods, 'pod')}, {summary.generation} of {count_text(summary.generations, 'generation')}",
        f"seed {summary.seed}",
    ]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.badge(status, color={"finished": "green", "running": "blue"}.get(status, "orange"))  # type: ignore[arg-type]
        st.markdown(theme.escape_markdown(" · ".join(facts)), width="content")
    _show_tags(run, summary.tags)


def _show_tags(run: runs.RunFiles, tags: Sequence[str]) -> None:
    """Draw the tags of a run, with a field that changes them."""
    with st.popover(f"Tags: {', '.join(tags)}" if tags else "Add tags", icon=":material/label:"):
        choice = st.multiselect(
            "Tags",
            sorted(tags),
            default=sorted(tags),
            accept_new_options=True,
            help=f"At most {MAX_TAG} characters each. The overview shows them.",
            key=f"tags of {run.name}",
        )
        if sorted(choice) != sorted(tags) and st.button("Save tags", type="primary", key=f"save tags of {run.name}"):
            with error_messages():
                save_tags(run, choice)
                cached.found_runs.clear()
                st.rerun()


def _show_views(settings: Settings, run: runs.RunFiles, report: RunReport) -> None:
    """Draw the choice of a view and the chosen one."""
    views = {
        "Performance": partial(_show_performance, run, report),
        "Allocation": partial(_show_allocation, run, report),
        "Profit": partial(show_profit, run, report),
        "Mandate": partial(show_mandate, run),
        "Reasons": partial(show_reasons, run, report),
        "Training": partial(show_training, settings, run.name),
        "Config": partial(_show_config, run),
    }
    names = list(views)
    views[st.segmented_control("View", names, default=names[0], required=True, key="view", bind=BOUND)]()


def _show_performance(run: runs.RunFiles, report: RunReport) -> None:
    all_baselines = st.toggle("All baselines", key="baselines", bind=BOUND)
    alt = "Growth of 1 of the champion and the baselines on a log scale, and their drawdowns beneath."
    period = " to ".join(report.splits.test)
    RUN_FIGURES.show(
        _equity_figure, (run, all_baselines), f"equity and drawdown of {run.name}, {period}", alt=alt, height=560
    )
    band = report.test.band
    grey = f" Grey: {100 * band.level:.0f}% bootstrap band of the champion." if band else ""
    st.caption(f"{report.period_words[0].capitalize()} {theme.escape_markdown(period)}, after costs.{grey}")
    if report.base in cached.curves(run) and report.base != report.subject:
        alt = "Growth of the champion relative to its base, minus one."
        RUN_FIGURES.show(_active_figure, (run,), f"growth of {run.name} over its base, {period}", alt=alt, height=300)
        st.caption("The value of the champion over the value of its base, minus one: above 0 the champion is ahead.")


def _equity_figure(run: runs.RunFiles, all_baselines: bool) -> Any:
    results = cached.curves(run)
    figure = charts.equity_figure(results, cached.report(run).test.band)
    if not all_baselines:  # the report hides them at first
        names = {cached.report(run).subject, *charts.reference_names(results), "band"}
        figure.data = [trace for trace in figure.data if trace.meta in names]
    return figure


def _active_figure(run: runs.RunFiles) -> Any:
    results = cached.curves(run)
    report = cached.report(run)
    accounts = {name: results[name] for name in (report.subject, report.base)}
    return charts.active_growth_figure(accounts, report.base, report_styles(results))


def _show_allocation(run: runs.RunFiles, report: RunReport) -> None:
    period = " to ".join(report.splits.test)
    if weights := report.active_weights:
        alt = "Mean weight of each asset less its mean weight in the base."
        key = f"over- and underweights of {run.name}, {period}"
        RUN_FIGURES.show(_active_weights_figure, (run,), key, alt=alt, height=None)
        base = theme.escape_markdown(in_sentence(weights.base))
        st.caption(f"Over- and underweights: mean weight of the champion less its mean weight in {base}.")
    alt = "Weights of the champion over time, stacked, with cash."
    RUN_FIGURES.show(_allocation_figure, (run,), f"weights of {run.name}, {period}", alt=alt, height=460)
    st.caption("Weights after the fills of each bar: the largest by mean, the others together, and cash.")


def _active_weights_figure(run: runs.RunFiles) -> Any:
    weights = cached.report(run).active_weights
    return None if weights is None else charts.active_weights_figure(weights)


def _allocation_figure(run: runs.RunFiles) -> Any:
    return charts.weights_figure(cached.curves(run)[cached.report(run).subject or CHAMPION])


def _show_config(run: runs.RunFiles) -> None:
    from finrl_pod_app.setup.presets import config_text

    text = config_text(cached.config(run))
    st.download_button("Download TOML", text, f"{run.name}.toml", "application/toml", icon=":material/download:")
    st.code(text, language=None, wrap_lines=True)  # colours of the highlighted language lack contrast


def _show_report(run: runs.RunFiles) -> None:
    """Draw the HTML report in a frame, with its downloads."""
    from finrl_pod_app.dashboard.actions.report_route import read_page, report_url

    st.header("Report", anchor=False)
    if not run.has(runs.PAGE):
        st.caption("This run has no report.html.")
        return
    url = report_url(run.name)
    name = "-".join([run.name.replace("/", "-"), *cached.report(run).splits.test])
    with st.container(horizontal=True):
        st.link_button("Open in a new tab", url, icon=":material/open_in_new:")
        results = partial(runs.read_bytes, run.path / runs.REPORT, runs.MAX_BYTES)
        for label, read, ending, kind in (
            ("Report (HTML)", partial(read_page, run), "html", "text/html"),
            ("Results (JSON)", results, "json", "application/json"),
        ):
            file = f"{name}-report.{ending}"
            st.download_button(label, read, file, kind, icon=":material/download:", on_click="ignore")
    st.iframe(url, height=PAGE_HEIGHT, alt=f"Report of {run.name}")
    st.page_link(page_of("overview"), label="All runs", icon=":material/arrow_back:")


@st.dialog("Trade this on paper", width="large")
def _paper_dialog(settings: Settings, run: runs.RunFiles) -> None:
    verdict = cached.verdict(run)
    is_promoted = verdict is not None and verdict.promoted
    if not is_promoted:
        st.warning(
            "The champion is not promoted: the daemon refuses it with an Alpaca account. The config below replays it "
            "on a simulated broker instead.",
            icon=":material/warning:",
        )
    text = paper_config(run, cached.config(run), is_promoted=is_promoted)
    st.code(text, language=None, wrap_lines=True)
    target = run.path / "paper.toml"
    st.caption(f"Writes {theme.escape_markdown(target)}; an existing file is kept.")
    if st.button("Write the config", type="primary", icon=":material/save:"):
        with error_messages():
            write_paper_config(settings, run, text)
            st.success("Written. Start the daemon from a terminal:", icon=":material/check_circle:")
            command = shlex.join(paper_command(target, cached.config(run), is_promoted=is_promoted))
            st.code(command, language="bash", wrap_lines=True)
