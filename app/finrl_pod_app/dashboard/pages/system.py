"""System page: load, devices, disks, and the results of the doctor."""

from __future__ import annotations

import streamlit as st

from finrl_pod.data.store import Store
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.widgets import show_table, show_text_table
from finrl_pod_app.dashboard.queries import checks, machine
from finrl_pod_app.dashboard.settings import Settings

REFRESH = 5.0  # seconds
METRIC_WIDTH = 170  # pixels; two fit side by side on a phone


def render(settings: Settings) -> None:
    """Draw the page."""
    st.title("System")
    st.fragment(_load, run_every=REFRESH)()
    st.header("Disk")
    column = st.column_config
    show_table(
        machine.disk_usage({"runs": settings.runs, "prices": Store().root}),
        {
            "what": column.TextColumn("Contents"),
            "free": column.NumberColumn("Free, GiB", format="%.1f"),
            "total": column.NumberColumn("Total, GiB", format="%.1f"),
            "used": column.ProgressColumn("Used", format="percent", min_value=0.0, max_value=1.0),
            "path": column.TextColumn("Folder"),
        },
        "disks",
        alt="Free and used disk space of the folders of runs and prices.",
    )
    st.header("Doctor")
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


def _load() -> None:
    now = machine.machine_load()
    cards = cached.gpus()
    memory_text = f"{now.memory_used / machine.GIB:.1f} of {now.memory_total / machine.GIB:.0f}"
    with st.container(horizontal=True):
        help_text = "Mean over all cores, including other programs."
        st.metric(f"CPU ({now.cores} cores)", f"{now.cpu:.0%}", help=help_text, width=METRIC_WIDTH)
        st.metric("Memory used, GiB", memory_text, width=METRIC_WIDTH)
        st.metric("Dashboard memory", f"{now.own / 2**20:,.0f} MiB", help="Of this server.", width=METRIC_WIDTH)
        st.metric("GPUs", len(cards) or "none", width=METRIC_WIDTH)
    if len(cards):
        column = st.column_config
        show_table(
            cards,
            {
                "card": column.TextColumn("GPU"),
                "use": column.ProgressColumn("Utilisation", format="percent", min_value=0.0, max_value=1.0),
                "used": column.NumberColumn("Memory used, GiB", format="%.1f"),
                "total": column.NumberColumn("Memory, GiB", format="%.1f"),
                "temperature": column.NumberColumn("°C", format="%d"),
            },
            "cards",
            alt="GPUs with utilisation, memory and temperature.",
        )
