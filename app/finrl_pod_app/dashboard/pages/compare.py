"""Backtest and compare page: champions of runs, strategies and baselines under the same rules, and their verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import TYPE_CHECKING

import streamlit as st

from finrl_pod.settings.run import RunConfig
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.compare_views import show_comparison
from finrl_pod_app.dashboard.pages.result_views import show_rules
from finrl_pod_app.dashboard.pages.widgets import damaged_note, error_messages, runs_with_champion, show_errors
from finrl_pod_app.dashboard.queries import runs
from finrl_pod_app.dashboard.settings import Settings
from finrl_pod_app.report.columns import display_name

if TYPE_CHECKING:
    from finrl_pod_app.evaluation.sweeps import DecisionTable

DEFAULT_STRATEGIES = ("equal_weight", "index")  # drawn alone where no run has a verdict
MIN_DATE = date(1900, 1, 1)
MAX_CURVES = 12  # more curves cannot be distinguished


def render(settings: Settings) -> None:
    """Draw the page."""
    from finrl_pod_app.dashboard.queries.comparison import SLOW_STRATEGIES, STRATEGIES

    st.title("Backtest and compare")
    damaged_note(settings)
    by_name = runs_with_champion(settings)
    requested_names = [name for name in st.query_params.get_all("run") if name in by_name]
    first, second = st.columns(2)
    run_names = first.multiselect(
        "Champions of runs",
        list(by_name),
        default=requested_names or [name for name, run in by_name.items() if run.has(runs.VERDICT)][:1],
        placeholder="none",
        key="compare: runs",
    )
    strategies = second.multiselect(
        "Strategies and baselines",
        STRATEGIES,
        default=DEFAULT_STRATEGIES,
        format_func=display_name,
        help=f"{display_name(', '.join(SLOW_STRATEGIES))} optimise at every rebalancing and take some seconds.",
        key="compare: strategies",
    )
    champions = [by_name[name] for name in run_names]
    period = _choose_period(champions)
    st.query_params["run"] = run_names
    if not run_names and not strategies:
        st.info("Choose a run or a strategy.")
        return
    if len(run_names) + len(strategies) > MAX_CURVES:
        st.warning(f"Choose at most {MAX_CURVES} runs and strategies.")
        return
    if not _confirm_new_looks(champions, period):
        return
    decisions = _decisions(champions, strategies, period)
    if decisions:
        names = list(reversed(by_name))
        styles = {name: theme.style_of(name, names) for name in decisions}
        st.fragment(show_errors(show_comparison))(decisions, styles)
    _show_verdicts(champions)


@dataclass(frozen=True)
class Period:
    """The period of a comparison.

    first, last: ISO dates. is_test: they are the test period of `base`. base: the first run; its data and rules apply
    to strategies; None without runs. data: the panel without a base, None for the default one.
    """

    first: str
    last: str
    is_test: bool
    base: runs.RunFiles | None
    data: str | None

    def dates(self, run: runs.RunFiles | None) -> tuple[str | None, str | None]:
        """Start and end for a run, or for a strategy (None); (None, None) for its own test period."""
        splits = None if self.base is None else cached.config(self.base).splits
        has_base_splits = run is None or cached.config(run).splits == splits
        return (None, None) if self.is_test and has_base_splits and self.data is None else (self.first, self.last)

    def is_look_recorded(self, run: runs.RunFiles) -> bool:
        """True if the look at this period with the champion of a run is recorded already."""
        return self.dates(run)[0] is None and runs.is_test_look_recorded(run)


def _choose_period(champions: Sequence[runs.RunFiles]) -> Period:
    """Draw the choice of prices and dates."""
    base = champions[0] if champions else None
    columns = st.columns([2, 1, 1, 2], vertical_alignment="bottom")
    default = RunConfig()
    if base is None:
        panels = {manifest.name: manifest for manifest in cached.catalogue() if not manifest.fault}
        name = columns[0].selectbox("Prices", list(panels), key="compare: data")
        data = None if name == default.data.name else name
        test = default.splits.test if data is None else (panels[name].start[:10], panels[name].end[:10])
    else:
        data = None
        config = cached.config(base)
        columns[0].text_input("Prices", config.data.name, disabled=True, help="Prices and rules of the first run.")
        test = config.splits.test
    scope = base.name if base else data
    first = columns[1].date_input("From", date.fromisoformat(test[0]), MIN_DATE, key=f"from {scope}").isoformat()
    last = columns[2].date_input("To", date.fromisoformat(test[1]), MIN_DATE, key=f"to {scope}").isoformat()
    in_sample = [run.name for run in champions if first < cached.config(run).splits.test[0]]
    if in_sample:
        columns[3].warning(
            f"In sample: {theme.escape_markdown(', '.join(in_sample))} was trained or selected on part of this period.",
            icon=":material/warning:",
        )
    return Period(first, last, (first, last) == tuple(test), base, data)


def _confirm_new_looks(champions: list[runs.RunFiles], period: Period) -> bool:
    """Whether every look at the period is recorded or confirmed; draws the confirmation if not."""
    confirmed_looks = st.session_state.setdefault("compare: confirmed", set())
    new_looks = {(run, *period.dates(run)): run for run in champions if not period.is_look_recorded(run)}
    unconfirmed_looks = {key: run for key, run in new_looks.items() if key not in confirmed_looks}
    if not unconfirmed_looks:
        return True
    names = ", ".join(theme.escape_markdown(run.name) for run in unconfirmed_looks.values())
    st.info(
        f"A backtest of {names} in this period is a new look at it and is recorded once. The promotion rules become "
        "stricter with every look.",
        icon=":material/visibility:",
    )
    if not st.button("Record the look and continue", type="primary", key="compare: look"):
        return False
    confirmed_looks.update(unconfirmed_looks)
    st.rerun()


def _decisions(champions: list[runs.RunFiles], strategies: list[str], period: Period) -> dict[str, DecisionTable]:
    """Decisions by name, with a progress bar; errors are shown and their strategies omitted."""
    decisions: dict[str, DecisionTable] = {}
    progress_bar = st.empty()
    count = len(champions) + len(strategies)

    def add(name: str, compute: Callable[[], DecisionTable]) -> None:
        progress_bar.progress(len(decisions) / count, f"Computing {theme.escape_markdown(display_name(name))}")
        with error_messages(prefix=f"{name}: "):
            decisions[name] = compute()

    for run in champions:
        dates = period.dates(run)
        is_recorded = period.is_look_recorded(run)
        add(run.name, partial(cached.decisions, run, *dates, None, None, is_recorded))
    for name in strategies:
        add(name, partial(cached.decisions, name, *period.dates(None), period.base, period.data, True))
    progress_bar.empty()
    return decisions


def _show_verdicts(champions: Sequence[runs.RunFiles]) -> None:
    """Draw the promotion rules of each run with a verdict."""
    if not champions:
        return
    st.header("Promotion rules", help="The rules that a champion must pass before it may trade.")
    for run in champions:
        name = theme.escape_markdown(run.name)
        verdict = cached.verdict(run)
        if verdict is None:
            st.caption(f"{name}: not evaluated yet.")
            continue
        paragraph = " ".join(cached.paragraph_of(run, verdict))
        st.markdown(f"{name}: {theme.escape_markdown(paragraph)}")
        outcome = "promoted" if verdict.promoted else "not promoted"
        with st.expander(f"{name}: {outcome}", expanded=len(champions) == 1):
            show_rules(run, verdict)
