"""System page: the results of the doctor."""

from __future__ import annotations

import streamlit as st

from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.widgets import show_text_table
from finrl_pod_app.dashboard.queries import checks
from finrl_pod_app.dashboard.settings import Settings


def render(settings: Settings) -> None:  # noqa: ARG001 - the interface of every page
    """Draw the page."""
    st.title("System")
    st.caption("Versions, devices, data and optional packages, as `finrl-pod doctor` finds them.")
    if st.button("Check again", icon=":material/refresh:"):
        cached.doctor.clear()
    findings = cached.doctor()
    escape = theme.escape_markdown
    fixes = [f"- **{escape(finding.name)}**: {escape(finding.fix)}" for finding in findings if finding.status != "ok"]
    st.markdown("\n".join(fixes))
    show_text_table(
        checks.doctor_table(findings),
        {"status": "Result", "name": "Check", "value": "Found"},
        alt="Results of the doctor: result, name and value of each check.",
    )
