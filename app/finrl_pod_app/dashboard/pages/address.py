"""The address of a page: its query parameters contain what the page shows.

A field with `key=NAME, bind=BOUND` keeps its value in the parameter NAME unless it is the default. Reload, Back and a
link then restore it. Streamlit writes the parameter; a changed field adds no step for Back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Any, Final, Literal

import streamlit as st
from streamlit.errors import StreamlitAPIException

BOUND: Final[Literal["query-params"]] = "query-params"
# Parameters of each page with their meaning. Names stay, since links to them exist. Passwords and names of persons have
# none.
PARAMETERS: Mapping[str, Mapping[str, str]] = {
    "overview": {
        "columns": "columns of the table of runs",
        "pick": "ticked runs",
        "curves": "`true` draws learning curves",
        "curve": "metric of the learning curves",
    },
    "run": {
        "name": "run",
        "view": "view",
        "baselines": "`true` draws all baselines",
        "curve": "metric of the learning curve",
        "with": "other runs in the learning curves",
        "hyperparameter": "hyperparameter drawn over the generations",
    },
    "compare": {
        "run": "runs, the first one sets prices and rules",
        "strategy": "strategies and baselines",
        "prices": "panel, if no run is chosen",
        "from": "first day",
        "to": "last day",
        "cost": "transaction cost in basis points",
        "view": "view",
        "of": "strategy of a view that shows one",
        "benchmark": "benchmark",
        "intervals": "`true` draws confidence intervals",
    },
    "audit": {"kind": "champion or strategy", "run": "run", "strategy": "strategy"},
    "train": {},
    "data": {"panel": "panel", "view": "view", "feature": "feature"},
    "paper": {
        "account": "account",
        "period": "period of all figures: 1D, 1W, 1M, YTD, All",
        "by": "rows of the profit: Day, Week, Month",
        "view": "view",
        "from": "first day of orders and fills",
        "to": "last day of orders and fills",
        "strategy": "strategies of orders and fills",
        "symbol": "symbols of orders and fills",
        "state": "states of orders",
        "chart": "symbol of the price chart",
    },
    "system": {},
}
_PAGE = "page of the address"


def start_page(page: str) -> None:
    """Forget the fields of the last page: fields of two pages may share a name, and only the address restores one."""
    if st.session_state.get(_PAGE) == page:
        return
    st.session_state[_PAGE] = page
    for name in {name for parameters in PARAMETERS.values() for name in parameters}:
        st.session_state.pop(name, None)


def default_to(key: str, value: str | list[str], options: Collection[str]) -> None:
    """Write what a page chooses by itself into the address, before its field is drawn.

    The choice depends on the time, as the newest run does; the address must not. No effect if the address contains one
    of the options or the visitor has chosen.
    """
    if (
        st.session_state.get(key) is not None
        or not options
        or any(name in options for name in st.query_params.get_all(key))
    ):
        return
    st.session_state[key] = value
    with contextlib.suppress(StreamlitAPIException):  # a field of the last page still has the parameter
        st.query_params[key] = value


def follow_default(key: str, source: object, default: Any) -> None:
    """Set a field to its default when `source` changes, on which the default depends, unless the address sets it."""
    last_source = f"source of {key}"
    if key not in st.query_params and st.session_state.get(last_source, source) != source:
        st.session_state[key] = default
    st.session_state[last_source] = source
