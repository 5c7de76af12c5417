"""Audit page: checks of a champion or a strategy for look-ahead, leakage and data errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from finrl_pod.errors import count_text
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.address import BOUND, default_to
from finrl_pod_app.dashboard.pages.widgets import damaged_note, runs_with_champion, show_text_table
from finrl_pod_app.dashboard.queries import checks, runs
from finrl_pod_app.dashboard.settings import Settings
from finrl_pod_app.report.columns import display_name

if TYPE_CHECKING:
    from finrl_pod_app.evaluation.audit import Audit

CHAMPION, STRATEGY = "Champion of a run", "Strategy"


def render(settings: Settings) -> None:
    """Draw the page."""
    st.title("Audit")
    st.caption(
        "Changes future prices and checks that past decisions stay the same; checks that nothing was fitted on later "
        "data, that orders never fill at prices already observed, and the data itself."
    )
    damaged_note(settings)
    champions = runs_with_champion(settings)
    kind = st.segmented_control(
        "Audit of", [CHAMPION, STRATEGY], default=CHAMPION, required=True, key="kind", bind=BOUND
    )
    if kind == CHAMPION:
        if not champions:
            st.info("No runs yet. Start the demo run on the overview page.")
            return
        newest = next((name for name, run in champions.items() if not run.is_temporary), next(iter(champions)))
        default_to("run", newest, champions)
        name = st.selectbox("Run", list(champions), index=None, key="run", bind=BOUND)
        target: runs.RunFiles | str = champions[name or newest]
    else:
        from finrl_pod_app.dashboard.queries.comparison import STRATEGIES

        target = st.selectbox("Strategy", STRATEGIES, format_func=display_name, key="strategy", bind=BOUND)
    label = theme.escape_markdown(target if isinstance(target, str) else target.name)
    # Results are cached until the files of the run change.
    audit_targets = st.session_state.setdefault("audit: requested", set())
    if st.button("Run audit", type="primary", icon=":material/fact_check:", help="Takes up to a minute."):
        audit_targets.add(target)
    if target not in audit_targets:
        return
    with st.status(f"Auditing {label}", expanded=False) as status:
        audit = cached.audit(target, lambda step: status.update(label=f"Checking {step}"))
        status.update(label=f"Audit of {label}", state="complete")
    _draw(audit)


def _draw(audit: Audit) -> None:
    counts = checks.audit_counts(audit)
    if audit.clean:
        warnings = f", {count_text(counts['warn'], 'warning')}" if counts["warn"] else ""
        st.success(
            f"{count_text(sum(counts.values()), 'check')}, no failures{warnings}.", icon=":material/check_circle:"
        )
    else:
        st.error(
            f"{count_text(counts['fail'], 'failed check')}: do not trust results that depend on what was checked.",
            icon=":material/error:",
        )
    show_text_table(
        checks.audit_table(audit),
        {"status": "Result", "check": "Check", "explanation": "Finding"},
        alt="Audit findings: result, check, and a sentence with the first bar affected.",
    )
