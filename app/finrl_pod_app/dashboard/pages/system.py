"""The machine: what it does now, devices, versions, disk, and what would not work on it."""

from __future__ import annotations

from typing import Any

import streamlit as st

from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.tables import show_sentences, show_table
from finrl_pod_app.dashboard.queries import findings, machine
from finrl_pod_app.dashboard.settings import Settings

REFRESH = 5.0  # seconds
CELL = 170  # pixels of a figure: two stand side by side on a telephone


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
            "free": column.NumberColumn("Free, GiB", format="%.1f"),
            "total": column.NumberColumn("Of, GiB", format="%.1f"),
            "used": column.ProgressColumn("Used", format="percent", min_value=0.0, max_value=1.0),
            "path": column.TextColumn("Folder"),
        },
        "disks",
        describes="Free and used space of the disks that hold runs and prices.",
    )
    st.subheader("What the doctor finds")
    if st.button("Look again", icon=":material/refresh:"):
        cached.doctor.clear()
    found = cached.doctor()
    fixes = [f"- **{theme.plain(one.name)}**: {theme.plain(one.fix)}" for one in found if one.status != "ok"]
    st.markdown("\n".join(fixes))
    show_sentences(
        findings.doctor_table(found),
        {"status": "Result", "name": "What", "value": "Found"},
        describes="What the doctor looked at: result, name and what was found.",
    )


def _load() -> None:
    now = machine.load()
    cards = cached.gpus()
    used = f"{now.memory_used / machine.GIB:.1f} of {now.memory_total / machine.GIB:.0f}"
    with st.container(horizontal=True):
        cores = "All processors together; those of other programs count too."
        st.metric(f"Use of {now.cores} processors", f"{now.cpu:.0%}", help=cores, width=CELL)
        st.metric("Memory in use, GiB", used, width=CELL)
        st.metric("This dashboard", f"{now.own / 2**20:,.0f} MiB", help="Memory of its own process.", width=CELL)
        st.metric("Graphics cards", len(cards) or "none", width=CELL)
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
