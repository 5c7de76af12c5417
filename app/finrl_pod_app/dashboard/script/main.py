"""The script that Streamlit runs for every visit and every click: the list of pages, and the one that was asked for."""

from __future__ import annotations

import functools
import importlib
import os
import threading

import streamlit as st

from finrl_pod.errors import FinrlPodError
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.access import admitted
from finrl_pod_app.dashboard.settings import Settings

# An icon by name would be fetched from a server elsewhere.
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="32" height="32">'
    '<rect width="32" height="32" rx="6" fill="#0b6bcb"/>'
    '<path d="M5 23l7-8 5 4 9-11" fill="none" stroke="#fff" stroke-width="3"/></svg>'
)
WARM_UP_AFTER = 3.0  # seconds: the first page is drawn by then
# Heading and icon of each page in the order of the menu, by the name of its module, which its address has too.
PAGES = {
    "overview": ("Overview", ":material/home:"),
    "data": ("Data", ":material/database:"),
    "train": ("Train", ":material/model_training:"),
    "compare": ("Backtest and compare", ":material/query_stats:"),
    "audit": ("Audit", ":material/fact_check:"),
    "paper": ("Paper trading", ":material/receipt_long:"),
    "system": ("System", ":material/memory:"),
}


def draw(name: str, settings: Settings) -> None:
    """One page. An error that was raised on purpose is shown as its sentence."""
    # Imported here: a page that is not asked for costs nothing.
    page = importlib.import_module(f"finrl_pod_app.dashboard.pages.{name}")
    try:
        page.render(settings)
    except FinrlPodError as error:
        st.error(theme.plain(error), icon=":material/error:")


@st.cache_resource(max_entries=1, show_spinner=False)
def warm_up() -> None:
    """Load what comparisons need, once a server and behind the first visitor's back: it takes seconds."""
    timer = threading.Timer(WARM_UP_AFTER, importlib.import_module, ("finrl_pod_app.dashboard.queries.comparison",))
    timer.daemon = True
    timer.start()


def main() -> None:
    """The whole application."""
    st.set_page_config(page_title="finrl_pod", page_icon=ICON, layout="wide")
    if not admitted():
        return
    settings = Settings.read(os.environ)
    pages = {}
    for name, (title, icon) in PAGES.items():
        shown = functools.partial(draw, name, settings)
        pages[name] = st.Page(shown, title=title, icon=icon, url_path=name, default=name == "overview")
    st.session_state["pages"] = pages  # for links from one page to another
    warm_up()
    st.navigation(list(pages.values())).run()


if __name__ == "__main__":
    main()
