"""The script that Streamlit runs for every visit and interaction: navigation and the selected page."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import threading
from pathlib import Path

import streamlit as st

from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.actions.access import show_logout
from finrl_pod_app.dashboard.pages.address import start_page
from finrl_pod_app.dashboard.pages.widgets import first_view, is_dark, show_as_of, show_errors
from finrl_pod_app.dashboard.settings import Settings
from finrl_pod_app.dashboard.theme import ICON, LOGO, PRODUCT

WARM_UP_DELAY = 3.0  # seconds; the first page is drawn by then
WARM_UP_MODULES = ("plotly.graph_objects", "plotly.subplots", "finrl_pod_app.dashboard.queries.comparison")
# Title and icon of each page in menu order, by the name of its module, also its URL path.
PAGES = {
    "overview": ("Overview", ":material/home:"),
    "run": ("Run", ":material/monitoring:"),
    "compare": ("Backtest and compare", ":material/query_stats:"),
    "audit": ("Audit", ":material/fact_check:"),
    "train": ("Train", ":material/model_training:"),
    "data": ("Data", ":material/database:"),
    "paper": ("Paper trading", ":material/receipt_long:"),
    "system": ("System", ":material/memory:"),
}
REFRESHED_PAGES = ("overview", "paper")  # they draw the time of their data at every refresh
SECTIONS = {
    "Results": ("overview", "run", "compare", "audit"),
    "Research": ("train", "data"),
    "Trading": ("paper",),
    "Machine": ("system",),
}
HISTORY_SCRIPT = Path(__file__).with_name("history.js")


def draw_page(name: str, settings: Settings) -> None:
    """Draw one page."""
    # Imported here, so that unopened pages cost nothing.
    page = importlib.import_module(f"finrl_pod_app.dashboard.pages.{name}")
    if name not in REFRESHED_PAGES:
        show_as_of()
    show_errors(page.render)(settings)


@st.cache_resource(max_entries=1, show_spinner=False)
def warm_up() -> None:
    """Import what figures and comparisons need in the background, once per server: it takes seconds."""
    timer = threading.Timer(WARM_UP_DELAY, _import_modules)
    timer.daemon = True
    timer.start()


def _import_modules() -> None:
    for name in WARM_UP_MODULES:
        importlib.import_module(name)
    # A collection then skips the many objects of pandas, plotly and torch; Streamlit runs one after each visit.
    gc.collect()
    gc.freeze()


def main() -> None:
    """Draw the application."""
    st.set_page_config(page_title=PRODUCT, page_icon=ICON, layout="wide")
    st.logo(LOGO, size="large", icon_image=ICON)
    settings = Settings.from_environment(os.environ)
    pages = {}
    for name, (title, icon) in PAGES.items():
        draw = functools.partial(draw_page, name, settings)
        pages[name] = st.Page(draw, title=title, icon=icon, url_path=name, default=name == "overview")
    st.session_state["pages"] = pages  # for links between pages
    warm_up()
    current = st.navigation(list(pages.values()), position="hidden")
    start_page(current.url_path)
    # The menu of Streamlit with sections is an invalid list for screen readers.
    for section, names in SECTIONS.items():
        st.sidebar.markdown(f"**{section}**")
        for name in names:
            st.sidebar.page_link(pages[name], width="stretch", query_params=first_view(name, settings))
    with st.sidebar:
        show_logout()
    st.html(theme.control_css(dark=is_dark()))
    st.html(f"<script>{HISTORY_SCRIPT.read_text()}</script>", unsafe_allow_javascript=True)
    st.set_page_config(page_title=f"{current.title} · {PRODUCT}", page_icon=ICON, layout="wide")
    current.run()


if __name__ == "__main__":
    main()
