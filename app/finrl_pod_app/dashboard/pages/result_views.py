"""Views of a finished run: verdict with its rules, mandate, sources of its profit, and reasons of its trades."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from finrl_pod.evaluate.active_management import COMPARISON_METRICS
from finrl_pod.promotion.verdict import Verdict
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.columns import definition
from finrl_pod_app.dashboard.pages.widgets import RUN_FIGURES, show_looks, show_metrics, show_text_table
from finrl_pod_app.dashboard.queries import checks, runs
from finrl_pod_app.report import contribution, score_attribution
from finrl_pod_app.report.columns import champion_first, display_name
from finrl_pod_app.report.headline import key_figures
from finrl_pod_app.report.mandate_text import METHODS, added_rows, mandate_settings, usage_periods, usage_rows
from finrl_pod_app.report.records import Added, MandateUsage, RunReport

METRIC_WIDTH = 150  # pixels; two fit side by side on a phone


def show_key_figures(report: RunReport) -> None:
    """Draw the key figures as cards, and of how many looks they are the best."""
    with st.container(horizontal=True, key="key-figures"):
        for figure in key_figures(report):
            with st.container(border=True, height="stretch", gap="xsmall"):
                st.metric(figure.label, figure.text, help=figure.definition)
                if figure.below:
                    st.caption(theme.escape_markdown(figure.below))
    show_looks(report)


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
    paragraph = [theme.escape_markdown(line) for line in cached.paragraph_of(run, verdict)]
    if verdict.promoted and not (verdict.edge and verdict.edge.is_demonstration):
        st.success("\n\n".join(paragraph), icon=":material/verified:")
        return
    failed_rules = [rule for rule in verdict.rules if not rule.passed]
    if failed_rules:
        paragraph.append(f"{len(failed_rules)} of {len(verdict.rules)} promotion rules failed:")
        paragraph.append("\n".join(f"- {theme.escape_markdown(rule.sentence)}" for rule in failed_rules))
    st.warning("\n\n".join(paragraph), icon=":material/gavel:")


def show_rules(run: runs.RunFiles, verdict: Verdict) -> None:
    """Draw the counted trials, each rule with its outcome, and the histogram of overfitting."""
    trials = verdict.trials
    effective_trials = verdict.edge.tests.deciding.effective_trials if verdict.edge else None
    metrics: dict[str, tuple[float | None, str]] = {
        "Trials": (trials.raw if trials else None, definition("trials")),
        "Distinct trials": (trials.clustered if trials else None, definition("distinct_trials")),
        "Effective trials": (effective_trials, definition("effective_trials")),
        "Runs": (trials.runs if trials else None, "Runs that the trials came from."),
        "Looks at the test": (verdict.looks, definition("looks")),
    }
    with st.container(horizontal=True):
        for label, (value, help_text) in metrics.items():
            text = f"{value:.1f}" if isinstance(value, float) else theme.count(value)
            st.metric(label, text, help=help_text, width=METRIC_WIDTH)
    headings = {"passed": "Result", "rule": "Rule", "sentence": "Explanation"}
    alt = "The promotion rules: result, name and explanation of each."
    show_text_table(checks.rules_table(verdict), headings, alt=alt)
    overfitting = verdict.statistics.overfitting
    if overfitting and overfitting.logits:
        st.markdown("Probability of backtest overfitting", help=definition("pbo"))
        alt = "Out-of-sample rank of the in-sample best trial: bars left of zero are below the median."
        RUN_FIGURES.show(_logits_figure, (run,), f"logits of {run.name}", alt=alt, height=240)
        st.caption("Left of 0, the best trial of one half of the period ranks below the median on the other half.")


def _logits_figure(run: runs.RunFiles) -> Any:
    from finrl_pod_app.report.charts import logits_figure

    verdict = cached.verdict(run)
    overfitting = verdict.statistics.overfitting if verdict else None
    return logits_figure(overfitting.logits) if overfitting and overfitting.logits else None


def show_mandate(run: runs.RunFiles) -> None:
    """Draw a section with the comparison with the base and the tables of the mandate, if the run has them."""
    report = cached.report(run)
    if not report.mandate:
        return
    with st.expander("Mandate", expanded=True):
        if report.added:
            _show_added(report.added)
            st.caption(theme.escape_markdown(METHODS))
        if report.mandate_usage:
            _show_usage(report.mandate_usage)
        settings = mandate_settings(report.mandate)
        st.caption(theme.escape_markdown(", ".join(f"{name} {value}" for name, value in settings.items())))


def _show_added(comparison: Added) -> None:
    base = display_name(comparison.base)
    rows = [
        {"statistic": measure.label, "value": value, "interval": interval, "note": measure.note}
        for measure, value, interval in added_rows(comparison)
    ]
    headings = {
        "statistic": f"Against {base}",
        "value": "Value",
        "interval": f"{100 * comparison.level:.0f}% interval",
        "note": "Definition",
    }
    show_text_table(pd.DataFrame(rows), headings, alt=f"Test returns of the champion compared with {base}.")


def _show_usage(usage: Mapping[str, MandateUsage]) -> None:
    periods = usage_periods(usage)
    rows = [
        {"measure": measure.label, **dict(zip(periods, cells, strict=True)), "note": measure.note}
        for measure, cells in usage_rows(usage)
    ]
    headings = {"measure": "Use of the mandate", **{name: name.capitalize() for name in periods}, "note": "Definition"}
    alt = "How much of the mandate was used on validation and test."
    show_text_table(pd.DataFrame(rows), headings, alt=alt)


def show_profit(run: runs.RunFiles, report: RunReport) -> None:
    """Draw the parts of a report on the profit."""
    _show_benchmark(report)
    _show_attribution(run, report)
    _show_capacity(run, report)


def _show_benchmark(report: RunReport) -> None:
    base = report.test.benchmark
    strategies = report.test.strategies
    rows = [{"strategy": name, **strategies[name]} for name in champion_first(strategies) if name != base]
    table = pd.DataFrame(rows)
    if base is None or "beta" not in table.columns:
        return
    label = display_name(base)
    show_metrics(table, COMPARISON_METRICS, alt=f"Statistics of each strategy against {label}.")
    st.caption(theme.escape_markdown(f"Against {label}, on the test period."))


def _show_attribution(run: runs.RunFiles, report: RunReport) -> None:
    if report.attribution is None:
        return
    alt = "Profit of the champion by asset, before costs."
    key = f"profit of {run.name} by asset, {' to '.join(report.splits.test)}"
    RUN_FIGURES.show(_profit_figure, (run,), key, alt=alt, height=None)
    heads = {"year": "Year", **{key: head.capitalize() for key, head in contribution.YEAR_COLUMNS.items()}}
    rows = [
        dict(zip(heads, (str(row.year), *cells), strict=True))
        for row, cells in zip(report.attribution.by_year, contribution.year_cells(report.attribution), strict=True)
    ]
    show_text_table(pd.DataFrame(rows), heads, alt="Profit, costs and return of the champion by year.")
    st.caption("Profit before costs: the change in value of a holding with its dividends, less what was paid for it.")


def _show_capacity(run: runs.RunFiles, report: RunReport) -> None:
    if report.capacity is None:
        st.caption("How much money the strategy can manage, with market impact, takes a minute to measure:")
        command = f"finrl-pod backtest {shlex.quote(str(run.path))} --capacity --out reports/capacity"
        st.code(command, language=None, wrap_lines=True)
        return
    alt = "Active growth by account size, with its interval."
    RUN_FIGURES.show(_capacity_figure, (run,), f"capacity of {run.name}", alt=alt, height=340)
    st.caption(theme.escape_markdown(contribution.capacity_sentence(report.capacity)))


def _profit_figure(run: runs.RunFiles) -> Any:
    attribution = cached.report(run).attribution
    if attribution is None:
        return None
    return contribution.profit_figure(attribution)


def _capacity_figure(run: runs.RunFiles) -> Any:
    capacity = cached.report(run).capacity
    return None if capacity is None else contribution.capacity_figure(capacity)


def show_reasons(run: runs.RunFiles, report: RunReport) -> None:
    """Draw the features in the scores of the champion, over time and by asset."""
    attribution = report.score_attribution
    if attribution is None:
        st.caption("The report of this run has no scores.")
        return
    st.markdown(theme.escape_markdown(score_attribution.score_sentence(report)))
    alt = f"{score_attribution.SHARES_LABEL}."
    RUN_FIGURES.show(_shares_figure, (run,), "shares of features", alt=alt, height=340)
    alt = f"{score_attribution.SCORES_LABEL}."
    RUN_FIGURES.show(_scores_figure, (run,), "scores by asset", alt=alt, height=None)
    st.caption(f"Scores of {theme.escape_markdown(attribution.last_date)}, the highest and the lowest. Of another day:")
    st.code(f"finrl-pod orders {shlex.quote(str(run.path))} --why --date DAY", language=None, wrap_lines=True)


def _shares_figure(run: runs.RunFiles) -> Any:
    attribution = cached.report(run).score_attribution
    return None if attribution is None else score_attribution.shares_figure(attribution)


def _scores_figure(run: runs.RunFiles) -> Any:
    attribution = cached.report(run).score_attribution
    if attribution is None:
        return None
    return score_attribution.scores_figure(attribution)
