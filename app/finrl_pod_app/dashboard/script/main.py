"""The script that Streamlit runs for every visit and interaction: login, navigation and the selected page."""

from __future__ import annotations

import functools
import importlib
import os
import threading

import streamlit as st

from finrl_pod.errors import FinrlPodError
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.access import require_login
from finrl_pod_app.dashboard.settings import Settings

# Inline, because an icon by name would be fetched from another server.
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="32" height="32">'
    '<rect width="32" height="32" rx="6" fill="#0b6bcb"/>'
    '<path d="M5 23l7-8 5 4 9-11" fill="none" stroke="#fff" stroke-width="3"/></svg>'
)
WARM_UP_DELAY = 3.0  # seconds; the first page is drawn by then
# Title and icon of each page in menu order, by the name of its module, which is also its URL path.
PAGES = {
    "overview": ("Overview", ":material/home:"),
    "data": ("Data", ":material/database:"),
    "train": ("Train", ":material/model_training:"),
    "compare": ("Backtest and compare", ":material/query_stats:"),
    "audit": ("Audit", ":material/fact_check:"),
    "paper": ("Paper trading", ":material/receipt_long:"),
    "system": ("System", ":material/memory:"),
}


def draw_page(name: str, settings: Settings) -> None:
    """Draw one page; errors raised by finrl_pod are shown as their message."""
    # Imported here, so that unopened pages cost nothing.
    page = importlib.import_module(f"finrl_pod_app.dashboard.pages.{name}")
    try:
        page.render(settings)
    except FinrlPodError as error:
        st.error(theme.escape_markdown(error), icon=":material/error:")


@st.cache_resource(max_entries=1, show_spinner=False)
def warm_up() -> None:
    """Import what comparisons need in the background, once per server: it takes seconds."""
    timer = threading.Timer(WARM_UP_DELAY, importlib.import_module, ("finrl_pod_app.dashboard.queries.comparison",))
    timer.daemon = True
    timer.start()


def main() -> None:
    """Draw the application."""
    st.set_page_config(page_title="finrl_pod", page_icon=ICON, layout="wide")
    if not require_login():
        return
    settings = Settings.from_environment(os.environ)
    pages = {}
    for name, (title, icon) in PAGES.items():
        draw = functools.partial(draw_page, name, settings)
        pages[name] = st.Page(draw, title=title, icon=icon, url_path=name, default=name == "overview")
    st.session_state["pages"] = pages  # for links between pages
    warm_up()
    st.navigation(list(pages.values())).run()


if __name__ == "__main__":
    main()
