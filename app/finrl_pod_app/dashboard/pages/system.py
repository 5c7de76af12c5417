"""The machine: what it does now, devices, versions, disk, and what would not work on it."""

from __future__ import annotations

from typing import Any

import streamlit as st

from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.frames import findings, machine
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.tables import show_table
from finrl_pod_app.dashboard.settings import Settings

REFRESH = 5.0  # seconds


def render(settings: Settings) -> None:
    """Draw the page."""
    st.title("System")
    st.fragment(_load, run_every=REFRESH)()
    st.subheader("Disk")
    column: Any = st.column_config
    show_table(
        machine.disks({"runs": settings.runs, "prices": cached.store_folder()}),
        {
            "what": column.TextColumn("Of"),
            "path": column.TextColumn("Folder", width="large"),
            "free": column.NumberColumn("Free, GiB", format="%.1f"),
            "total": column.NumberColumn("Total, GiB", format="%.1f"),
            "used": column.ProgressColumn("Used", format="percent", min_value=0.0, max_value=1.0),
        },
        "disks",
        describes="Free and used space of the disks that hold runs and prices.",
    )
    st.subheader("What the doctor finds")
    if st.button("Look again", icon=":material/refresh:"):
        cached.doctor.clear()
    found = cached.doctor()
    mends = [f"- **{theme.plain(one.name)}**: {theme.plain(one.mend)}" for one in found if one.status != "ok"]
    st.markdown("\n".join(mends))
    show_table(
        findings.doctor_table(found),
        {
            "status": column.TextColumn("", width="small"),
            "group": column.TextColumn("Of"),
            "name": column.TextColumn("What"),
            "value": column.TextColumn("Found", width="large"),
        },
        "doctor",
        describes="What the doctor looked at: status, group, name and what was found.",
        most=40,
    )


def _load() -> None:
    now = machine.load()
    cells = st.columns(4)
    cells[0].metric("Processors in use", f"{now.cpu:.0%} of {now.cores}")
    cells[1].metric("Memory in use", f"{now.memory_used / machine.GIB:.1f} of {now.memory_total / machine.GIB:.0f} GiB")
    cells[2].metric("This dashboard", f"{now.own / 2**20:,.0f} MiB", help="Memory of the dashboard's own process.")
    cards = cached.gpus()
    cells[3].metric("Graphics cards", len(cards) or "none")
    if len(cards):
        column: Any = st.column_config
        show_table(
            cards,
            {
                "card": column.TextColumn("Card"),
                "use": column.ProgressColumn("In use", format="percent", min_value=0.0, max_value=1.0),
                "used": column.NumberColumn("Memory, GiB", format="%.1f"),
                "total": column.NumberColumn("of, GiB", format="%.1f"),
                "temperature": column.NumberColumn("°C", format="%d"),
            },
            "cards",
            describes="Graphics cards with their use, memory and temperature.",
        )
