"""A run while it trains, or after: curves, scores, leaderboard, descent, drift of the settings."""

from __future__ import annotations

import streamlit as st

from finrl_pod.errors import FinrlPodError
from finrl_pod.settings.run import describe_setting
from finrl_pod_app.dashboard import jobs, theme
from finrl_pod_app.dashboard.definitions import definition
from finrl_pod_app.dashboard.figures import training as figures
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.parts import show_figure, told
from finrl_pod_app.dashboard.pages.tables import show_table
from finrl_pod_app.dashboard.pages.watching import watch
from finrl_pod_app.dashboard.queries import runs, training
from finrl_pod_app.dashboard.settings import Settings

REFRESH = 3.0  # seconds: a generation takes longer
SHOWN = 20  # rows of the leaderboard


def watch_one(settings: Settings) -> None:
    """Choose a run and draw it."""
    found = cached.found_runs(settings)
    if not found:
        st.info("There are no runs yet: set one up, or make the demo run on the overview.")
        return
    names = [run.name for run in found]
    wanted = st.query_params.get("run")
    place = names.index(wanted) if wanted in names else 0
    run = found[names.index(st.selectbox("Run", names, index=place, help="The one that changed last stands first."))]
    st.query_params["run"] = run.name
    status = runs.status_of(run)
    working = status in ("running", "paused")
    if working:
        watch(run)
    else:
        _ended(run, status)
    st.fragment(told(_figures), run_every=REFRESH if status == "running" else None)(settings, run.name)


def _ended(run: runs.RunFiles, status: runs.Status) -> None:
    summary = cached.summary(run)
    walk = runs.walkforward_of(run)
    if status == "finished" and walk is not None:
        words = "Trained. It is one run of a walk-forward, which is judged as a whole."
        st.success(words, icon=":material/check_circle:")
        return
    if status == "finished":
        gate = {True: "promoted", False: "not promoted", None: "not judged"}[summary.promoted]
        st.success(f"Finished: its champion is {gate}.", icon=":material/check_circle:")
        return
    done = f"{summary.generation} of {summary.generations} generations are kept" if summary.generations else ""
    st.warning(f"It does not run. {done}".strip(), icon=":material/pause_circle:")
    words = runs.last_words(run)
    if words:
        st.code(words, language=None, wrap_lines=True)
    if walk is not None:
        st.caption("It is one run of a walk-forward, which goes on as a whole, from a terminal:")
        st.code(runs.resume_walkforward(walk), language="bash", wrap_lines=True)
        return
    if st.button("Resume", type="primary", icon=":material/play_arrow:", key="resume the run"):
        try:
            jobs.resume(run)
        except FinrlPodError as error:
            st.error(theme.plain(error))
            return
        cached.found_runs.clear()
        st.rerun()


def _figures(settings: Settings, name: str) -> None:
    run = runs.open_run(settings.runs, name)  # anew: its files changed since the page was drawn
    generations = [cached.generation(file, changed) for file, changed in training.generation_files(run)]
    if not generations:
        st.caption("Curves appear when the first generation has finished.")
        return
    known = training.agents(run, generations)
    summary = cached.summary(run)
    board = training.board(known, SHOWN)
    board["generation"] += 1  # counted from one, as in the figures
    left, right = st.columns(2)
    with left:
        quantity = st.selectbox("Learning curve of", training.curve_names(generations), format_func=_words)
        show_figure(
            figures.learning_curve(training.curve(generations, quantity), quantity),
            "learning curve",
            describes="Learning curve: median of the pods, with a band.",
        )
    with right:
        st.markdown("Scores of the agents", help=definition("validation_score"))
        show_figure(figures.scores(known), "scores", describes="Validation scores by generation.", height=420)
    st.subheader("Leaderboard")
    settings_shown = training.settings_of(known)
    columns = {
        "rank": st.column_config.NumberColumn("#"),
        "id": st.column_config.TextColumn("Agent"),
        "score": st.column_config.NumberColumn("Score", format="%.3f", help=definition("validation_score")),
        "parent": st.column_config.TextColumn("Parent", help="The agent that it goes on from, or inherits from."),
        "generation": st.column_config.NumberColumn("Generation", format="%d"),
        "slot": st.column_config.NumberColumn("Slot", format="%d", help="Its place in the population."),
        "samples": st.column_config.NumberColumn("Samples", format="localized"),
        **{
            one: st.column_config.NumberColumn(
                _words(one), format="%.4g", help=describe_setting(f"agent.{one}").comment
            )
            for one in settings_shown
        },
    }
    show_table(board, columns, "leaderboard", describes="The best agents by validation score, with their settings.")
    champions = cached.champions(run) or tuple(board["id"].head(cached.config(run).tournament.champion))
    st.subheader("Descent")
    st.caption("A column for each generation, a row for each slot; ringed agents form the champion.")
    line = training.ancestors(known, champions)
    show_figure(
        figures.lineage(known, champions, line),
        "lineage",
        describes="Tree of descent of the agents.",
        height=320 + 10 * summary.pods,
    )
    if settings_shown:
        st.subheader("Drift of the settings")
        setting = st.selectbox("Setting", settings_shown, format_func=_words)
        show_figure(
            figures.drift(training.drift(known, setting), setting), "drift", describes="A setting over the generations."
        )


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize()
