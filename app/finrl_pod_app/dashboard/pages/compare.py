"""Runs, strategies and baselines side by side under the same rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any

import streamlit as st

from finrl_pod.errors import FinrlPodError
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.compare_gate import gate
from finrl_pod_app.dashboard.pages.compare_views import show
from finrl_pod_app.dashboard.pages.parts import told
from finrl_pod_app.dashboard.queries import runs
from finrl_pod_app.dashboard.settings import Settings

DEFAULT_STRATEGIES = ("equal_weight", "index")
EARLIEST = date(1900, 1, 1)
MOST = 12  # curves: more cannot be told apart


def render(settings: Settings) -> None:
    """Draw the page."""
    from finrl_pod_app.dashboard.queries.comparison import SLOW, STRATEGIES

    st.title("Backtest and compare")
    found = [run for run in cached.found_runs(settings) if run.has_champion]
    by_name = {run.name: run for run in found}
    wanted = [name for name in st.query_params.get_all("run") if name in by_name]
    first, second = st.columns(2)
    chosen = first.multiselect(
        "Champions of runs", list(by_name), default=wanted or list(by_name)[:1], placeholder="none", key="compare: runs"
    )
    strategies = second.multiselect(
        "Strategies and baselines",
        STRATEGIES,
        default=DEFAULT_STRATEGIES,
        format_func=lambda name: name.replace("_", " "),
        help=f"{', '.join(SLOW).replace('_', ' ')} solve a problem at every rebalancing and take some seconds once.",
        key="compare: strategies",
    )
    champions = [by_name[name] for name in chosen]
    period = _period(champions)
    st.query_params["run"] = chosen
    if not chosen and not strategies:
        st.info("Choose a run or a strategy to begin with.")
        return
    if len(chosen) + len(strategies) > MOST:
        st.warning(f"At most {MOST} can be told apart: leave some out.")
        return
    if not _agreed(champions, period):
        return
    asked = _ask(champions, strategies, period)
    if asked:
        order = [run.name for run in reversed(found)]
        looks = {name: theme.style_of(name, order) for name in asked}
        st.fragment(told(show))(asked, looks)
    gate(champions)


@dataclass(frozen=True)
class Period:
    """first, last: the days that are compared. own: they are the test years of `base`, the run whose prices and rules
    hold for strategies; None without a run. data: the prices where no run says them, None for the default ones."""

    first: str
    last: str
    own: bool
    base: runs.RunFiles | None
    data: str | None

    def dates(self, run: runs.RunFiles | None) -> tuple[str | None, str | None]:
        """Start and end to test a run, or a strategy (None), on; None where they are its own test years."""
        known = None if self.base is None else cached.config(self.base).splits
        same = run is None or cached.config(run).splits == known
        return (None, None) if self.own and same and self.data is None else (self.first, self.last)

    def counted(self, run: runs.RunFiles) -> bool:
        """Whether the look at a run's champion is in the register."""
        return self.dates(run)[0] is None and runs.is_counted(run)


def _period(champions: Sequence[runs.RunFiles]) -> Period:
    """Prices and days, as the visitor chooses them."""
    base = champions[0] if champions else None
    columns = st.columns([2, 1, 1, 2], vertical_alignment="bottom")
    usual = cached.default_config()
    if base is None:
        panels = {one.name: one for one in cached.catalogue() if not one.fault}
        name = columns[0].selectbox("Prices", list(panels), key="compare: data")
        data = None if name == usual.data.name else name
        test = usual.splits.test if data is None else (panels[name].start[:10], panels[name].end[:10])
    else:
        data, config = None, cached.config(base)
        columns[0].text_input("Prices", config.data.name, disabled=True, help="Those of the first run, and its rules.")
        test = config.splits.test
    scope = base.name if base else data
    first = columns[1].date_input("From", date.fromisoformat(test[0]), EARLIEST, key=f"from {scope}").isoformat()
    last = columns[2].date_input("To", date.fromisoformat(test[1]), EARLIEST, key=f"to {scope}").isoformat()
    seen = [run.name for run in champions if first < cached.config(run).splits.test[0]]
    if seen:
        columns[3].warning(
            f"The period reaches into days that {theme.plain(', '.join(seen))} was trained on or chosen by: what was "
            "earned there says nothing about other days.",
            icon=":material/warning:",
        )
    return Period(first, last, (first, last) == tuple(test), base, data)


def _agreed(champions: list[runs.RunFiles], period: Period) -> bool:
    """Whether all may be tested: those whose look is in the register, and those for which the visitor said yes."""
    agreed = st.session_state.setdefault("compare: agreed", set())
    new = {(run, *period.dates(run)): run for run in champions if not period.counted(run)}
    waiting = {key: run for key, run in new.items() if key not in agreed}
    if not waiting:
        return True
    names = ", ".join(theme.plain(run.name) for run in waiting.values())
    st.info(
        f"A backtest of {names} in this period is a look at it. It is counted once: whoever looks often has to see "
        "more before a champion is promoted.",
        icon=":material/visibility:",
    )
    if not st.button("Look at it", type="primary", key="compare: look"):
        return False
    agreed.update(waiting)
    st.rerun()


def _ask(champions: list[runs.RunFiles], strategies: list[str], period: Period) -> dict[str, Any]:
    """What each decides; one that cannot be tested here is named and left out."""
    asked: dict[str, Any] = {}
    place, count = st.empty(), len(champions) + len(strategies)

    def ask(name: str, get: Callable[[], Any]) -> None:
        place.progress(len(asked) / count, f"Asking {theme.plain(name.replace('_', ' '))}")
        try:
            asked[name] = get()
        except FinrlPodError as error:
            st.error(f"{theme.plain(name)}: {theme.plain(error)}", icon=":material/error:")

    for run in champions:
        ask(run.name, partial(cached.asked, run, *period.dates(run), None, None, period.counted(run)))
    for name in strategies:
        ask(name, partial(cached.asked, name, *period.dates(None), period.base, period.data, True))
    place.empty()
    return asked
