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
from finrl_pod_app.report.records import Verdict

METRIC_WIDTH = 150  # pixels; two fit side by side on a phone


def show_verdict(run: runs.RunFiles, verdict: Verdict | None) -> None:
    """Draw the first paragraph of the verdict with the rules that failed, and all rules collapsed."""
    show_paragraph(run, verdict)
    if verdict is not None:
        with st.expander("Promotion rules"):
            show_rules(run, verdict)


def show_paragraph(run: runs.RunFiles, verdict: Verdict | None) -> None:
    """Draw the first paragraph of the verdict, in amber with the rules that failed unless it is a promotion."""
    if verdict is None:
        st.info("Verdict: not evaluated yet.", icon=":material/gavel:")
        return
    paragraph = [theme.escape_markdown(line) for line in paragraph_of(run, verdict)]
    if verdict.promoted and not (verdict.edge and verdict.edge.is_demonstration):
        st.success("\n\n".join(paragraph), icon=":material/verified:")
        return
    failed = [rule for rule in verdict.rules if not rule.passed]
    if failed:
        paragraph.append(f"{len(failed)} of {len(verdict.rules)} promotion rules failed:")
        paragraph.append("\n".join(f"- {theme.escape_markdown(rule.sentence)}" for rule in failed))
    st.warning("\n\n".join(paragraph), icon=":material/gavel:")


def show_rules(run: runs.RunFiles, verdict: Verdict) -> None:
    """Draw the counted trials, each rule with its outcome, and the histogram of overfitting."""
    trials = verdict.trials
    metrics: dict[str, tuple[float | None, str]] = {
        "Trials": (trials.raw if trials else None, definition("trials")),
        "Distinct trials": (trials.clustered if trials else None, definition("distinct_trials")),
        "Effective trials": (_effective_trials(verdict), definition("effective_trials")),
        "Runs": (trials.runs if trials else None, "Runs that the trials came from."),
        "Looks at the test": (verdict.looks, definition("looks")),
    }
    with st.container(horizontal=True):
        for label, (value, help_text) in metrics.items():
            shown = f"{value:.1f}" if isinstance(value, float) else theme.count(value)
            st.metric(label, shown, help=help_text, width=METRIC_WIDTH)
    headings = {"passed": "Result", "rule": "Rule", "sentence": "Explanation"}
    alt = "The promotion rules: result, name and explanation of each."
    show_text_table(checks.rules_table(verdict), headings, alt=alt)
    overfitting = verdict.statistics.overfitting
    if overfitting and overfitting.logits:
        st.markdown("Probability of backtest overfitting", help=definition("pbo"))
        alt = "Out-of-sample rank of the in-sample best trial: bars left of zero are below the median."
        RUN_FIGURES.show(_logits_figure, (run,), f"logits of {run.name}", alt=alt, height=240)
        st.caption("Left of 0, the best trial of one half of the period ranks below the median on the other half.")


def paragraph_of(run: runs.RunFiles, verdict: Verdict) -> list[str]:
    """The first paragraph of a run's verdict."""
    return verdict_paragraph(cached.report(run).model_copy(update={"verdict": verdict}))


def _effective_trials(verdict: Verdict) -> float | None:
    return verdict.edge.tests.deciding.effective_trials if verdict.edge else None


def _logits_figure(run: runs.RunFiles) -> Any:
    from finrl_pod_app.dashboard.figures.comparison import pbo_logits

    verdict = cached.verdict(run)
    overfitting = verdict.statistics.overfitting if verdict else None
    return pbo_logits(overfitting.logits) if overfitting and overfitting.logits else None
