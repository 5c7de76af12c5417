"""What the checks for look-ahead, leaks and flawed data find about a champion or a strategy."""

from __future__ import annotations

from typing import Any

import streamlit as st

from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.tables import show_sentences
from finrl_pod_app.dashboard.queries import findings, runs
from finrl_pod_app.dashboard.settings import Settings


def render(settings: Settings) -> None:
    """Draw the page."""
    st.title("Audit")
    st.caption(
        "Changes the future and looks whether decisions of the past move, asks whether anything was fitted on later "
        "days, whether orders fill at prices that were already seen, and what is wrong with the data."
    )
    found = {run.name: run for run in cached.found_runs(settings) if run.has_champion}
    kind = st.segmented_control("Of", ["A run's champion", "A strategy"], default="A run's champion", required=True)
    if kind == "A run's champion":
        if not found:
            st.info("There are no runs yet: make the demo run on the overview.")
            return
        target: runs.RunFiles | str = found[st.selectbox("Run", list(found), key="audit: run")]
    else:
        target = st.selectbox("Strategy", cached.strategies(), format_func=lambda one: one.replace("_", " "))
    label = target if isinstance(target, str) else target.name
    # The answer is kept for as long as the run's files stay as they are.
    shown = st.session_state.setdefault("audit: asked", set())
    if st.button("Run the audit", type="primary", icon=":material/fact_check:", help="Some seconds to a minute."):
        shown.add(target)
    if target not in shown:
        return
    with st.status(f"Auditing {theme.plain(label)}", expanded=False) as status:
        answer = cached.audit(target, _teller(status))
        status.update(label=f"Audit of {theme.plain(label)}", state="complete")
    _draw(answer)


def _teller(status: Any) -> Any:
    return lambda step: status.update(label=f"Looking at {step}")


def _draw(answer: dict[str, Any]) -> None:
    count = findings.counts(answer)
    if answer["clean"]:
        doubts = f"; {count['warn']} deserve doubt" if count["warn"] else ""
        st.success(f"No fault was found in {sum(count.values())} checks{doubts}.", icon=":material/check_circle:")
    else:
        st.error(f"{count['fail']} faults: results that rest on this are worthless.", icon=":material/error:")
    show_sentences(
        findings.audit_table(answer),
        {"status": "Result", "check": "Check", "words": "In words"},
        describes="What the audit found: a result, the check, and a sentence with the first bar where it shows.",
    )
