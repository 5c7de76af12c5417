"""A file of prices from the visitor's machine: checked, shown, and stored when it is asked for."""

from __future__ import annotations

import streamlit as st

from finrl_pod.errors import FinrlPodError
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.tables import show_table

BARS = ("1d", "1h", "15m", "1m")


def take_in() -> None:
    """Draw the upload, the check's answer, a preview and the button that stores."""
    from finrl_pod_app.dashboard.queries import prices

    st.caption(
        "Long: columns time, symbol, close and any of open, high, low, volume. Wide: time, then a column of closes for "
        "each ticker. Nothing is stored before you say so."
    )
    upload = st.file_uploader("File", type=["csv", "gz", "txt", "parquet", "pq"], key="import: file")
    left, middle, right = st.columns(3, vertical_alignment="bottom")
    bar = left.selectbox("Bar", BARS, key="import: bar")
    adjusted = middle.checkbox("Prices are adjusted", value=True, help="For splits and dividends.")
    gaps = right.checkbox("Allow gaps", help="A bar that is missing inside a ticker's life becomes untradable.")
    if upload is None:
        return
    try:
        panel = prices.read_upload(upload.name, upload.getvalue(), bar=bar, adjusted=adjusted, allow_gaps=gaps)
    except FinrlPodError as error:
        st.error(theme.plain(error), icon=":material/error:")
        return
    first, last = (str(panel.times[place].astype("datetime64[D]")) for place in (0, -1))
    st.success(f"{len(panel.symbols)} tickers, {len(panel.times):,} bars from {first} to {last}.")
    found = prices.flaw_table(panel)
    if len(found):
        st.caption(f"{len(found):,} things deserve doubt:")
        flaws = {name: name.capitalize() for name in found.columns}
        show_table(found, flaws, "import: flaws", describes="What deserves doubt in the file.", most=6)
    closes = prices.preview(panel)
    names = {name: str(name) for name in closes.columns}
    show_table(closes, names, "import: preview", describes="The last closes of the file, the latest first.", most=6)
    name = st.text_input("Store it as", max_chars=64, key="import: name", placeholder="mine")
    if st.button("Store", type="primary", disabled=not name, key="import: store"):
        try:
            prices.store_upload(panel, name, gaps)
        except FinrlPodError as error:
            st.error(theme.plain(error), icon=":material/error:")
            return
        cached.catalogue.clear()
        st.success(f"Stored as {theme.plain(name)}.", icon=":material/check_circle:")
