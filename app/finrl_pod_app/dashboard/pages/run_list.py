"""Table of the runs on the overview: chosen columns, ticked runs with differences and learning curves, and CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pandas as pd
import streamlit as st

from finrl_pod.evaluate.export import csv_text
from finrl_pod.settings.run import describe_setting
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.figures import training as figures
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.address import BOUND
from finrl_pod_app.dashboard.pages.columns import RUN_COLUMNS, Columns, validation_columns
from finrl_pod_app.dashboard.pages.widgets import page_of, show_figure, show_table, visitor_zone
from finrl_pod_app.dashboard.queries import run_settings, runs, training
from finrl_pod_app.report.columns import display_name

MAX_CURVES = 50  # runs whose learning curves are drawn at once
SCORE = "validation score"
PICKED = "pick"  # parameter of the address
_TICKS = "overview: ticks"  # number of changes of the address, and the last ticked runs


def show_runs(summary_by_run: Mapping[runs.RunFiles, runs.RunSummary], statuses: Sequence[str]) -> None:
    """Draw the table with the choice of its columns, and what the picked runs have in common."""
    summaries = list(summary_by_run.values())
    frame = runs.runs_table(summaries, statuses)
    frame["changed"] = frame["changed"].dt.tz_convert(visitor_zone())
    columns = _choose_columns(frame, summaries)
    st.caption("Tick runs to open or compare them; click a heading to sort. All figures are of the validation period.")
    picked_names = _tick(frame, columns)
    _show_actions(picked_names, frame[list(columns)])
    if len(picked_names) > 1:
        settings = {summary.name: summary.settings for summary in summaries if summary.name in picked_names}
        show_differences(settings)
    _show_curves([run for run, summary in summary_by_run.items() if not summary.error], picked_names)


def _tick(frame: pd.DataFrame, columns: Columns) -> list[str]:
    """Draw the table, write the ticked runs into the address, and return their names."""
    names = frame["name"].tolist()
    requested_names = [name for name in st.query_params.get_all(PICKED) if name in names]
    version, last_names = st.session_state.get(_TICKS, (0, requested_names))
    if set(requested_names) != set(last_names):  # Back, Forward or a link
        version += 1
    # The key depends on the rows: a new run must not move the ticks to others.
    selection = show_table(
        frame,
        columns,
        f"overview: runs {version} {hash(tuple(names))}",
        alt=f"Runs: {', '.join(columns)}.",
        on_select="rerun",
        selection_mode="multi-row",
        selection_default={"selection": {"rows": [names.index(name) for name in requested_names]}},
    )
    picked_names = [names[row] for row in selection["selection"]["rows"] if row < len(names)]
    if set(picked_names) != set(requested_names):
        st.query_params[PICKED] = picked_names
    st.session_state[_TICKS] = (version, picked_names)
    return picked_names


def _choose_columns(frame: pd.DataFrame, summaries: Sequence[runs.RunSummary]) -> Columns:
    """Draw the choice of columns; settings in which runs differ come before the others."""
    columns: Columns = RUN_COLUMNS | validation_columns()
    labels = {name: str((config or {}).get("label") or name) for name, config in columns.items()}
    differing_names = run_settings.differing_names({s.name: s.settings for s in summaries if s.settings})
    settings = dict.fromkeys([*differing_names, *(name for s in summaries for name in s.settings)])
    has_tags = any(summary.tags for summary in summaries)
    chosen_names = st.multiselect(
        "Columns",
        [name for name in (*columns, *settings) if name != "name" and name in frame],
        default=[name for name in RUN_COLUMNS if name != "name" and (has_tags or name != "tags")],
        format_func=lambda name: labels.get(name, name),
        help="Settings have the dotted names of the config; those in which runs differ come first.",
        key="columns",
        bind=BOUND,
    )
    return {
        name: columns[name] if name in columns else st.column_config.TextColumn(name, help=_setting_help(name))
        for name in ("name", *chosen_names)
    }


def _setting_help(name: str) -> str | None:
    try:
        return describe_setting(name).comment
    except (KeyError, AttributeError, TypeError):  # of another version
        return None


def _show_actions(picked_names: Sequence[str], table: pd.DataFrame) -> None:
    """Draw the links for the picked runs and the download of the table."""
    with st.container(horizontal=True, vertical_alignment="center"):
        if len(picked_names) == 1:
            name = picked_names[0]
            label = f"Open {theme.escape_markdown(name)}"
            st.page_link(page_of("run"), label=label, icon=":material/monitoring:", query_params={"name": name})
        if picked_names:
            label = "Compare" if len(picked_names) == 1 else f"Compare {len(picked_names)} runs"
            query = [("run", name) for name in picked_names]
            st.page_link(page_of("compare"), label=label, icon=":material/query_stats:", query_params=query)
        file = f"runs-{datetime.now(UTC):%Y-%m-%d}.csv"
        table = table.assign(tags=table["tags"].map(", ".join)) if "tags" in table else table
        st.download_button("Table (CSV)", lambda: csv_text(table), file, "text/csv", icon=":material/table:")


def show_differences(settings_by_run: Mapping[str, run_settings.Settings]) -> None:
    """Draw the settings in which runs differ: their dotted names, and one column per run."""
    table = run_settings.differences(settings_by_run)
    st.markdown("**Settings that differ**")
    if table.empty:
        st.caption("None: the runs have the same settings.")
        return
    columns = {"setting": st.column_config.TextColumn("Setting", pinned=True)}
    columns |= {name: st.column_config.TextColumn(name) for name in settings_by_run}
    show_table(table, columns, "differences", alt="Settings in which the runs differ, one column per run.")


def _show_curves(all_runs: Sequence[runs.RunFiles], picked_names: Sequence[str]) -> None:
    """Draw the learning curves of the newest runs and of the picked ones, the others in grey."""
    if not st.toggle("Learning curves", key="curves", bind=BOUND, help="Ticked runs in colour, the others in grey."):
        return
    names = [run.name for run in reversed(all_runs)]
    by_age = sorted(all_runs, key=lambda run: run.name not in picked_names)
    files_by_run = {run: files for run in by_age if (files := training.generation_files(run))}
    shown_runs = list(files_by_run)[:MAX_CURVES]
    if not shown_runs:
        st.caption("Learning curves appear after the first generation.")
        return
    first = shown_runs[0]
    metrics = training.metric_names([cached.generation(*file) for file in files_by_run[first]])
    curve = st.selectbox("Curve", [SCORE, *metrics], format_func=_label, key="curve", bind=BOUND)
    styles = {run.name: theme.style_of(run.name, names) for run in shown_runs}
    if curve == SCORE:
        best_scores = {run.name: cached.best_scores(run, files_by_run[run]) for run in shown_runs}
        figure = figures.overlaid_scores(best_scores, styles, _bases(shown_runs, picked_names))
    else:
        curves = {run.name: cached.learning_curve(files_by_run[run], curve) for run in shown_runs}
        figure = figures.overlaid_curves(curves, curve, styles)
    if picked_names:
        figures.grey_out(figure, [run.name for run in shown_runs if run.name not in picked_names])
    show_figure(figure, f"{curve} of {len(shown_runs)} runs", alt=f"{_label(curve)} of each run.", height=460)
    if len(files_by_run) > MAX_CURVES:
        st.caption(f"The newest {MAX_CURVES} of {len(files_by_run)} runs; ticked runs are always drawn.")


def _bases(shown_runs: Sequence[runs.RunFiles], picked_names: Sequence[str]) -> dict[str, float]:
    """Validation scores of the bases by label; runs with the same base and score share one."""
    bases: dict[str, float] = {}
    for run in shown_runs:
        if picked_names and run.name not in picked_names:
            continue
        score = runs.base_score(run, cached.report(run))
        if score is not None and score not in bases.values():
            base = cached.summary(run).settings.get("mandate.base", "none")
            label = f"base: {display_name('equal_weight' if base == 'none' else base)}"
            bases[label if label not in bases else f"{label}, {run.name}"] = score
    return bases


def _label(name: str) -> str:
    return name.replace("_", " ").capitalize()
