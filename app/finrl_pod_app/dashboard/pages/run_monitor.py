"""Monitoring of runs: progress and controls of a training, then curves, leaderboard and lineage of its agents."""

from __future__ import annotations

from typing import Any

import streamlit as st

from finrl_pod.errors import count_text
from finrl_pod.settings.run import describe_setting
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.actions import jobs
from finrl_pod_app.dashboard.figures import training as figures
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.address import BOUND
from finrl_pod_app.dashboard.pages.columns import definition
from finrl_pod_app.dashboard.pages.widgets import RUN_FIGURES, error_messages, show_errors, show_figure, show_table
from finrl_pod_app.dashboard.queries import runs, training
from finrl_pod_app.dashboard.settings import Settings
from finrl_pod_app.report.columns import display_name, diversity_of

PROGRESS_INTERVAL = 1.0  # seconds between refreshes
LEADERBOARD_ROWS = 20
MAX_OVERLAID = 7  # more curves cannot be distinguished


def show_progress(run: runs.RunFiles) -> None:
    """Draw progress and controls of a training, refreshed until it ends; then the page is drawn again."""
    st.fragment(show_errors(_draw_progress), run_every=PROGRESS_INTERVAL)(run)


def _draw_progress(run: runs.RunFiles) -> None:
    status = runs.status_of(run)
    if status not in ("running", "paused"):
        st.rerun()
    progress = runs.progress_of(run)
    with st.container(border=True):
        left, right = st.columns([3, 2], vertical_alignment="center")
        stage = "paused" if status == "paused" else progress.stage if progress else "starting"
        left.markdown(f"**{theme.escape_markdown(run.name)}** · {theme.escape_markdown(stage)}")
        with right.container(horizontal=True, horizontal_alignment="right"):
            _draw_controls(run, status)
        total = progress.total_samples if progress else 0
        st.progress(min(progress.samples / total, 1.0) if progress and total else 0.0)
        cells = st.columns(4)
        samples = progress.samples if progress and progress.total_samples else None
        cells[0].metric("Samples", theme.count(samples), border=False)
        rate = (progress.samples_per_second if progress else None) or None
        cells[1].metric("Samples/s", theme.count(rate), help=definition("samples_per_second"))
        best = theme.ratio(progress.best if progress else None)
        cells[2].metric("Best validation Sharpe", best, help=definition("validation_score"))
        cells[3].metric("Time left", theme.duration(progress.seconds_left if progress else None))


def _draw_controls(run: runs.RunFiles, status: str) -> None:
    with error_messages():
        if status == "paused":
            if st.button("Resume", icon=":material/play_arrow:", key=f"resume {run.name}"):
                jobs.resume(run)
                st.rerun(scope="fragment")
        elif st.button("Pause", icon=":material/pause:", key=f"pause {run.name}", help="Suspend the process."):
            jobs.pause(run)
            st.rerun(scope="fragment")
        help_text = "End the training. Finished generations are kept, and it can be resumed."
        if st.button("Stop", icon=":material/stop:", key=f"stop {run.name}", help=help_text):
            jobs.stop(run)
            st.toast(f"Stopping {theme.escape_markdown(run.name)}.")


def show_outcome(run: runs.RunFiles, status: runs.Status) -> None:
    """Draw how a run without a report ended, and what resumes it."""
    summary = cached.summary(run)
    walkforward = runs.walkforward_of(run)
    if status == "finished":
        walk = " It is one run of a walk-forward, evaluated as a whole." if walkforward is not None else ""
        st.success(f"Finished.{walk}", icon=":material/check_circle:")
        return
    note = (
        f" {summary.generation} of {count_text(summary.generations, 'generation')} completed."
        if summary.generations
        else ""
    )
    st.warning(f"Not running.{note}", icon=":material/pause_circle:")
    if log := runs.log_tail(run):
        st.code(log, language=None, wrap_lines=True)
    if walkforward is not None:
        st.caption("It is one run of a walk-forward. Resume the walk-forward as a whole from a terminal:")
        st.code(runs.walkforward_resume_command(walkforward), language="bash", wrap_lines=True)
        return
    if st.button("Resume", type="primary", icon=":material/play_arrow:", key="resume the run"):
        with error_messages():
            jobs.resume(run)
            cached.found_runs.clear()
            st.rerun()


def show_training(settings: Settings, name: str) -> None:
    """Draw learning curves, validation scores, leaderboard, lineage and hyperparameters of a run."""
    run = runs.open_run(settings.runs, name)  # opened again: its files changed since the page was drawn
    files = training.generation_files(run)
    if not files:
        st.caption("Learning curves appear after the first generation.")
        return
    agents = cached.agents(run, files)
    _show_curves(settings, run, files)
    st.header("Leaderboard")
    hyperparameters = training.varied_hyperparameters(agents)
    leaderboard = training.leaderboard(agents, LEADERBOARD_ROWS)
    leaderboard["generation"] += 1  # numbered from one, as in the figures
    column = st.column_config.NumberColumn
    columns = {
        "rank": column("#"),
        "id": st.column_config.TextColumn("Agent"),
        "score": column("Score", format="%.3f", help=definition("validation_score")),
        "parent": st.column_config.TextColumn("Parent", help="The agent it continues or copies."),
        "generation": column("Generation", format="%d"),
        "slot": column("Slot", format="%d", help="Position in the population."),
        "samples": column("Samples", format="localized"),
        **{
            name: column(_label(name), format="%.4g", help=describe_setting(f"agent.{name}").comment)
            for name in hyperparameters
        },
    }
    alt = "The best agents by validation score, with their hyperparameters."
    show_table(leaderboard, columns, "leaderboard", alt=alt)
    champions = cached.champions(run) or tuple(leaderboard["id"].head(cached.config(run).tournament.champion))
    st.header("Lineage")
    caption = "One column per generation, one row per slot. Rings mark the members of the champion."
    if (champion := cached.report(run).champion) is not None:
        diversity = diversity_of(champion.roots, champion.mean_correlation)
        caption = f"{caption} The champion's members descend{diversity}."
    st.caption(caption)
    height = 320 + 10 * cached.summary(run).pods
    RUN_FIGURES.show(_lineage_figure, (run, files, champions), "lineage", alt="Lineage of the agents.", height=height)
    if hyperparameters:
        st.header("Hyperparameters over generations")
        name = st.selectbox("Hyperparameter", hyperparameters, format_func=_label, key="hyperparameter", bind=BOUND)
        RUN_FIGURES.show(_drift_figure, (run, files, name), "drift", alt="A hyperparameter over the generations.")


def _lineage_figure(run: runs.RunFiles, files: training.GenerationFiles, champions: tuple[str, ...]) -> Any:
    agents = cached.agents(run, files)
    return figures.lineage(agents, champions, training.ancestors(agents, champions))


def _drift_figure(run: runs.RunFiles, files: training.GenerationFiles, name: str) -> Any:
    return figures.hyperparameter_drift(training.hyperparameter_drift(cached.agents(run, files), name), name)


def _show_curves(settings: Settings, run: runs.RunFiles, files: training.GenerationFiles) -> None:
    """Draw the learning curve and the validation scores, also of other runs."""
    by_name = {candidate.name: candidate for candidate in cached.found_runs(settings)}
    names = [name for name, candidate in by_name.items() if name != run.name and training.generation_files(candidate)]
    choices = st.columns(2)
    metrics = training.metric_names([cached.generation(*file) for file in files])
    metric = choices[0].selectbox("Learning curve", metrics, format_func=_label, key="curve", bind=BOUND)
    others = choices[1].multiselect(
        "Other runs", names, max_selections=MAX_OVERLAID, placeholder="none", key="with", bind=BOUND
    )
    left, right = st.columns(2)
    if not others:
        with left:
            alt = "Learning curve: median over the pods."
            RUN_FIGURES.show(_learning_curve_figure, (files, metric), "learning curve", alt=alt)
        with right:
            contents = (run, files, runs.base_score(run, cached.report(run)))
            RUN_FIGURES.show(_scores_figure, contents, "scores", alt="Validation scores by generation.")
        return
    files_by_name = {run.name: files} | {name: training.generation_files(by_name[name]) for name in others}
    medians = {name: cached.learning_curve(run_files, metric) for name, run_files in files_by_name.items()}
    best_scores = {name: cached.best_scores(by_name[name], run_files) for name, run_files in files_by_name.items()}
    styles = {name: theme.style_of(name, [*reversed(list(by_name))]) for name in medians}
    with left:
        figure = figures.overlaid_curves(medians, metric, styles)
        show_figure(figure, "learning curve", alt="Learning curve: median over the pods.")
    with right:
        show_figure(figures.overlaid_scores(best_scores, styles, {}), "scores", alt="Validation scores by generation.")


def _learning_curve_figure(files: training.GenerationFiles, metric: str) -> Any:
    return figures.learning_curve(cached.learning_curve(files, metric), metric)


def _scores_figure(run: runs.RunFiles, files: training.GenerationFiles, base_score: float | None) -> Any:
    base = cached.config(run).mandate.base
    name = display_name("equal_weight" if base == "none" else base)
    return figures.scores(cached.agents(run, files), name, base_score)


def _label(name: str) -> str:
    return name.replace("_", " ").capitalize()
