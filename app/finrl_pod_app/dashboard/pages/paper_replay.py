"""The replayed backtest: what is known of it, and a button that makes it anew."""

from __future__ import annotations

import streamlit as st

from finrl_pod_app.dashboard import replays, theme
from finrl_pod_app.dashboard.queries.paper_journal import Journal
from finrl_pod_app.dashboard.queries.paper_state import simulated
from finrl_pod_app.dashboard.queries.paper_tracking import Tracking

DIFFERENCES_SHOWN = 10
SAMPLE = "sample"


def offer(journal: Journal, track: Tracking) -> None:
    """What the replay says, and how to make one."""
    if track.known:
        same = "Orders, fills and equity are those of the backtest, to the cent." if not track.differences else ""
        late = f" {track.behind} sessions came after it." if track.behind else ""
        st.caption(
            theme.plain(f"Replayed with {track.strategy} on {track.made[:16].replace('T', ' ')} UTC.{late} {same}")
        )
        if track.differences:
            with st.expander(f"{len(track.differences):,} differences from the backtest"):
                for sentence in track.differences[:DIFFERENCES_SHOWN]:
                    st.markdown(f"- {theme.plain(sentence)}")
                if (more := len(track.differences) - DIFFERENCES_SHOWN) > 0:
                    st.markdown(f"and {more:,} more (`finrl-pod paper track --json`)")
    with st.expander("Replay the backtest now", expanded=not track.known):
        st.markdown(
            "The backtest sends the orders that the daemon would have sent, over the same sessions. What is left "
            "between the two is the tracking difference."
        )
        prices = st.text_input(
            "Stored prices", SAMPLE if simulated(journal) else "", key="replay-prices", max_chars=64,
            placeholder="the daemon's own feed", help="A name from the Data page; empty asks the daemon's own feed.",
        )  # fmt: skip
        if st.button("Replay", key="replay", icon=":material/replay:"):
            with st.spinner("replaying the backtest"):
                refusal = replays.replay(journal.path, prices.strip())
            if refusal:
                st.error(theme.plain(refusal), icon=":material/error:")
            else:
                st.rerun(scope="fragment")
