"""Runs, strategies and baselines side by side under the same rules."""

from __future__ import annotations

from datetime import date
from typing import Any

import streamlit as st

from finrl_pod.errors import FinrlPodError
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.frames import runs
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.compare_gate import gate
from finrl_pod_app.dashboard.pages.compare_views import show
from finrl_pod_app.dashboard.settings import Settings

DEFAULT_STRATEGIES = ("equal_weight", "index")
MOST = 12  # curves: more cannot be told apart


def render(settings: Settings) -> None:
    """Draw the page."""
    from finrl_pod_app.dashboard.frames.comparison import SLOW, STRATEGIES

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
    base = by_name[chosen[0]] if chosen else None
    start, end, data = _period(base)
    st.query_params["run"] = chosen
    if not chosen and not strategies:
        st.info("Choose a run or a strategy to begin with.")
        return
    if len(chosen) + len(strategies) > MOST:
        st.warning(f"At most {MOST} can be told apart: leave some out.")
        return
    asked = _ask([by_name[name] for name in chosen], strategies, start, end, base, data)
    if asked:
        order = [run.name for run in reversed(found)]
        looks = {name: theme.style_of(name, order) for name in asked}
        st.fragment(show)(asked, looks)
    gate([by_name[name] for name in chosen])


def _period(base: runs.RunFiles | None) -> tuple[str | None, str | None, str | None]:
    """Start, end and, where no run says it, the data; None for the test years."""
    columns = st.columns([2, 1, 1, 2], vertical_alignment="bottom")
    if base is None:
        panels = [one.name for one in cached.catalogue() if not one.fault]
        data = columns[0].selectbox("Prices", panels, key="compare: data")
        config, bounds = cached.default_config(), next(one for one in cached.catalogue() if one.name == data)
        test = config.splits.test if data == config.data.name else (bounds.start[:10], bounds.end[:10])
    else:
        data, config = None, cached.config(base)
        columns[0].text_input("Prices", config.data.name, disabled=True, help="Those of the first run, and its rules.")
        test = config.splits.test
    scope = base.name if base else data
    first = columns[1].date_input("From", date.fromisoformat(test[0]), date(1900, 1, 1), key=f"from {scope}")
    last = columns[2].date_input("to", date.fromisoformat(test[1]), date(1900, 1, 1), key=f"to {scope}")
    start, end = first.isoformat(), last.isoformat()
    if base is not None and start < test[0]:
        columns[3].warning(
            "The period reaches into days that the champion was trained on or chosen by: what it earned there says "
            "nothing about other days.",
            icon=":material/warning:",
        )
    own = (start, end) == tuple(test)
    panel = None if data == cached.default_config().data.name else data
    return (None, None, panel) if own and panel is None else (start, end, panel)


def _ask(
    chosen: list[runs.RunFiles],
    strategies: list[str],
    start: str | None,
    end: str | None,
    base: runs.RunFiles | None,
    data: str | None,
) -> dict[str, Any]:
    """What each decides; one that cannot be tested here is named and left out."""
    asked: dict[str, Any] = {}
    targets: list[tuple[str, runs.RunFiles | str]] = [(run.name, run) for run in chosen]
    targets += [(name, name) for name in strategies]
    place = st.empty()
    for done, (name, target) in enumerate(targets):
        place.progress(done / len(targets), f"Asking {theme.plain(name.replace('_', ' '))}")
        try:
            asked[name] = cached.asked(target, start, end, base if isinstance(target, str) else None, data)
        except FinrlPodError as error:
            st.error(f"{theme.plain(name)}: {theme.plain(error)}", icon=":material/error:")
    place.empty()
    return asked
