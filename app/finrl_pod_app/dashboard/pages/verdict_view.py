"""The verdict of a run: promoted or not with its reasons, and every promotion rule."""

from __future__ import annotations

from typing import Any

import streamlit as st

from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.columns import definition
from finrl_pod_app.dashboard.pages.figure_cache import RUN_FIGURES
from finrl_pod_app.dashboard.pages.widgets import show_text_table
from finrl_pod_app.dashboard.queries import checks, runs
from finrl_pod_app.report.edge_text import verdict_paragraph
from finrl_pod_app.report.verdict_text import deciding_test

METRIC_WIDTH = 150  # pixels; two fit side by side on a phone


def show_verdict(run: runs.RunFiles, verdict: dict[str, Any] | None) -> None:
    """Draw the first paragraph of the verdict with the rules that failed, and all rules collapsed."""
    show_paragraph(run, verdict)
    if verdict is not None:
        with st.expander("Promotion rules"):
            show_rules(run, verdict)


def show_paragraph(run: runs.RunFiles, verdict: dict[str, Any] | None) -> None:
    """Draw the first paragraph of the verdict, in amber with the rules that failed unless it is a promotion."""
    if verdict is None:
        st.info("Verdict: not evaluated yet.", icon=":material/gavel:")
        return
    paragraph = [theme.escape_markdown(line) for line in paragraph_of(run, verdict)]
    if verdict["promoted"] and not verdict["edge"].get("is_demonstration"):
        st.success("\n\n".join(paragraph), icon=":material/verified:")
        return
    failed = [rule for rule in verdict["rules"] if not rule["passed"]]
    if failed:
        paragraph.append(f"{len(failed)} of {len(verdict['rules'])} promotion rules failed:")
        paragraph.append("\n".join(f"- {theme.escape_markdown(rule['sentence'])}" for rule in failed))
    st.warning("\n\n".join(paragraph), icon=":material/gavel:")


def show_rules(run: runs.RunFiles, verdict: dict[str, Any]) -> None:
    """Draw the counted trials, each rule with its outcome, and the histogram of overfitting."""
    trials = verdict["trials"]
    metrics = {
        "Trials": (trials.get("raw"), definition("trials")),
        "Distinct trials": (trials.get("clustered"), definition("distinct_trials")),
        "Effective trials": (_effective_trials(verdict), definition("effective_trials")),
        "Runs": (trials.get("runs"), "Runs that the trials came from."),
        "Looks at the test": (verdict["looks"], definition("looks")),
    }
    with st.container(horizontal=True):
        for label, (value, help_text) in metrics.items():
            shown = f"{value:.1f}" if isinstance(value, float) else theme.count(value)
            st.metric(label, shown, help=help_text, width=METRIC_WIDTH)
    headings = {"passed": "Result", "rule": "Rule", "sentence": "Explanation"}
    alt = "The promotion rules: result, name and explanation of each."
    show_text_table(checks.rules_table(verdict), headings, alt=alt)
    histogram = checks.pbo_logits(verdict)
    if histogram is not None:
        st.markdown("Probability of backtest overfitting", help=definition("pbo"))
        alt = "Out-of-sample rank of the in-sample best trial: bars left of zero are below the median."
        RUN_FIGURES.show(_logits_figure, (run,), f"logits of {run.name}", alt=alt, height=240)
        st.caption("Left of 0, the best trial of one half of the period ranks below the median on the other half.")


def paragraph_of(run: runs.RunFiles, verdict: dict[str, Any]) -> list[str]:
    """The first paragraph of a run's verdict."""
    return verdict_paragraph({"verdict": verdict, **cached.mandate_parts(run)})


def _effective_trials(verdict: dict[str, Any]) -> float | None:
    found = (deciding_test(verdict) or {}).get("effective_trials")
    return None if found is None else float(found)


def _logits_figure(run: runs.RunFiles) -> Any:
    from finrl_pod_app.dashboard.figures.comparison import pbo_logits

    return pbo_logits(checks.pbo_logits(cached.verdict(run) or {}) or {})
