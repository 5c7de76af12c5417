"""What a visitor does with a run: tags, and links to comparison, audit and paper trading."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import streamlit as st

from finrl_pod.errors import FinrlPodError
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.actions.deployment import paper_command, paper_config, write_paper_config
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.widgets import page_of
from finrl_pod_app.dashboard.queries import runs
from finrl_pod_app.dashboard.queries.tags import MAX_TAG, save_tags
from finrl_pod_app.dashboard.settings import Settings


def show_tags(run: runs.RunFiles, tags: Sequence[str]) -> None:
    """Draw the tags of a run, which can be changed in place."""
    with st.popover(f"Tags: {', '.join(tags)}" if tags else "Add tags", icon=":material/label:"):
        chosen = st.multiselect(
            "Tags",
            sorted(tags),
            default=sorted(tags),
            accept_new_options=True,
            help=f"At most {MAX_TAG} characters each. The overview filters by them.",
            key=f"tags of {run.name}",
        )
        if sorted(chosen) != sorted(tags) and st.button("Save tags", type="primary", key=f"save tags of {run.name}"):
            try:
                save_tags(run, chosen)
            except FinrlPodError as error:
                st.error(theme.escape_markdown(error), icon=":material/error:")
                return
            cached.found_runs.clear()
            st.rerun()


def show_next_steps(settings: Settings, run: runs.RunFiles) -> None:
    """Draw the links to comparison and audit, and the dialog that writes a config for paper trading."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.page_link(page_of("compare"), label="Compare", icon=":material/query_stats:", query_params={"run": run.name})
        st.page_link(page_of("audit"), label="Audit", icon=":material/fact_check:", query_params={"run": run.name})
        if st.button("Trade this on paper", icon=":material/rocket_launch:", key=f"deploy {run.name}"):
            _paper_dialog(settings, run)


@st.dialog("Trade this on paper", width="large")
def _paper_dialog(settings: Settings, run: runs.RunFiles) -> None:
    verdict = cached.verdict(run)
    promoted = verdict is not None and verdict.promoted
    if not promoted:
        st.warning(
            "The champion is not promoted: the daemon refuses it with an Alpaca account. The config below replays it "
            "on a simulated broker instead.",
            icon=":material/warning:",
        )
    text = paper_config(run, cached.config(run), promoted=promoted)
    st.code(text, language=None, wrap_lines=True)
    target = run.path / "paper.toml"
    st.caption(f"Writes {theme.escape_markdown(target)}; an existing file is kept.")
    if st.button("Write the config", type="primary", icon=":material/save:"):
        try:
            write_paper_config(settings, run, text)
        except FinrlPodError as error:
            st.error(theme.escape_markdown(error), icon=":material/error:")
            return
        st.success("Written. Start the daemon from a terminal:", icon=":material/check_circle:")
        st.code(
            shlex.join(paper_command(target, cached.config(run), promoted=promoted)), language="bash", wrap_lines=True
        )
