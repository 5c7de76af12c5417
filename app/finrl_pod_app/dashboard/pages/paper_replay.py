"""The replayed backtest on the paper page: its result, and a button that runs it.

The replay needs torch, which the server does not load, so it runs as a separate process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import streamlit as st

from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.figures import paper as figures
from finrl_pod_app.dashboard.pages.figure_cache import PAPER_FIGURES
from finrl_pod_app.dashboard.pages.paper_columns import strategy_parts
from finrl_pod_app.dashboard.pages.widgets import show_table
from finrl_pod_app.dashboard.queries.paper_journal import Journal
from finrl_pod_app.dashboard.queries.paper_performance import BacktestDifference
from finrl_pod_app.dashboard.queries.paper_state import is_simulated

CENT = 0.01
MAX_DIFFERENCES = 10
SAMPLE = "sample"
TIMEOUT = 600.0  # seconds


def show_replay(journal: Journal, difference: BacktestDifference) -> None:
    """Draw the last replay and the form for a new one."""
    if difference.is_available:
        made = difference.made[:16].replace("T", " ")
        match = "Orders, fills and equity match the backtest to the cent." if not difference.differences else ""
        late = f" It does not cover the last {difference.behind} sessions." if difference.behind else ""
        st.caption(theme.escape_markdown(f"Replayed with {difference.strategy} on {made} UTC.{late} {match}"))
        if any(abs(value) >= CENT for value in difference.causes.values()):
            st.caption("The difference in dollars by cause:")
            alt = "Difference between account and backtest by cause."
            PAPER_FIGURES.show(_causes_figure, (difference,), "paper-causes", alt=alt, height=240)
        if len(difference.parts) > 1:
            alt = "Each strategy of the account with its equity and that of its backtest."
            show_table(difference.parts, strategy_parts(), "paper-strategies", alt=alt)
        if difference.differences:
            with st.expander(f"{len(difference.differences):,} differences from the backtest"):
                for sentence in difference.differences[:MAX_DIFFERENCES]:
                    st.markdown(f"- {theme.escape_markdown(sentence)}")
                if (more := len(difference.differences) - MAX_DIFFERENCES) > 0:
                    st.markdown(f"and {more:,} more (`finrl-pod paper track --json`)")
    with st.expander("Replay the backtest", expanded=not difference.is_available):
        st.markdown(
            "Runs the backtest over the same sessions with the orders that the daemon would have sent. The remaining "
            "difference in growth is the difference to the backtest."
        )
        prices = st.text_input(
            "Stored prices",
            SAMPLE if is_simulated(journal) else "",
            key="replay-prices",
            max_chars=64,
            placeholder="the daemon's feed",
            help="A panel from the Data page. Empty: the daemon's feed.",
        )
        if st.button("Replay", key="replay", icon=":material/replay:"):
            with st.spinner("Replaying the backtest"):
                error = run_replay(journal.path, prices.strip())
            if error:
                st.error(theme.escape_markdown(error), icon=":material/error:")
            else:
                st.rerun(scope="fragment")


def _causes_figure(difference: BacktestDifference) -> Any:
    return figures.causes(difference.causes)


def run_replay(journal: Path, panel: str) -> str:
    """Run `finrl-pod paper track` on a journal. Returns "" or an error message."""
    command = [
        *(sys.executable, "-m", "finrl_pod_app.cli.main", "paper", "track", "--json"),
        *("--journal", str(journal), f"--panel={panel}"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return f"the replay was stopped after {TIMEOUT:.0f} s: run finrl-pod paper track from a terminal"
    if done.returncode == 0 or (done.returncode == 1 and done.stdout.startswith("{")):
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1].removeprefix("finrl-pod: ") if lines else f"the replay failed with exit code {done.returncode}"
