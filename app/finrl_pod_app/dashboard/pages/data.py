"""Data page: the catalogue of stored prices, their issues, charts and features, and the import of files."""

from __future__ import annotations

import pandas as pd
import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from finrl_pod.data.features import available as available_features
from finrl_pod.data.sources.read_options import DECIMALS, ReadOptions
from finrl_pod.errors import FinrlPodError, count_text
from finrl_pod.prices import read_as_sentence
from finrl_pod.types import Panel
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.figures import prices as figures
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.address import BOUND
from finrl_pod_app.dashboard.pages.widgets import error_messages, show_figure, show_table
from finrl_pod_app.dashboard.queries import prices
from finrl_pod_app.dashboard.queries.prices import ImportJob
from finrl_pod_app.dashboard.settings import Settings

DEFAULT_TICKERS, MAX_TICKERS = 6, 40  # drawn at first
CANDLES = 120  # bars drawn as candles; more are too narrow
QUICK_IMPORT = 2.0  # seconds that a page waits for a file before it shows progress
IMPORT_INTERVAL = 0.5  # seconds between refreshes of the progress
BAR_LENGTHS = ("1d", "1h", "15m", "1m")
ADJUSTMENTS = {"as the layout says": None, "yes": True, "no": False}
DECIMAL_SIGNS = {"from the numbers": None, **{sign: sign for sign in DECIMALS}}
SEPARATORS = {"from the header": None, "comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}


def render(settings: Settings) -> None:  # noqa: ARG001 - the interface of every page
    """Draw the page."""
    st.title("Data")
    panels = cached.catalogue()
    column = st.column_config
    table = prices.catalogue_table(panels)
    show_table(
        table,
        {
            "name": column.TextColumn("Name"),
            "source": column.TextColumn("Source"),
            "bar": column.TextColumn("Bar", help="Bar length; 1d is a day."),
            "tickers": column.NumberColumn("Tickers", format="localized"),
            "bars": column.NumberColumn("Bars", format="localized"),
            "start": column.TextColumn("From"),
            "end": column.TextColumn("To"),
            "columns": column.TextColumn("Columns"),
            "adjusted": column.TextColumn("Adjusted", help="For splits and dividends."),
            "flaws": column.NumberColumn("Issues", help="Known issues, listed below."),
            **({"fault": column.TextColumn("Error")} if table["fault"].any() else {}),
        },
        "catalogue",
        alt="The stored panels: name, source, tickers, bars, period, columns and number of known issues.",
    )
    with st.expander("Import a CSV or Parquet file", icon=":material/upload_file:"):
        _show_import()
    usable = [manifest.name for manifest in panels if not manifest.fault]
    name = st.selectbox("Panel", usable, key="panel", bind=BOUND)
    views = {
        "Issues": _show_issues,
        "Prices": _show_prices,
        "Availability of bars": _show_available_bars,
        "Correlations": _show_correlations,
        "Features": _show_features,
    }
    view = st.segmented_control("View", list(views), default="Issues", required=True, key="view", bind=BOUND)
    views[view](cached.panel(name, next(manifest.sha256 for manifest in panels if manifest.name == name)))


def _show_issues(panel: Panel) -> None:
    if not panel.flaws:
        st.success("No known issues.", icon=":material/check_circle:")
    st.markdown("\n".join(f"- {theme.escape_markdown(flaw)}" for flaw in panel.flaws))


def _show_prices(panel: Panel) -> None:
    symbols = _choose_tickers(panel, DEFAULT_TICKERS)
    if symbols:
        st.caption("Growth of 1, from closing prices.")
        show_figure(figures.growth(prices.growth(panel, symbols)), "growth", alt="Growth of 1 by ticker.", height=460)

    if panel.open is None or panel.high is None or panel.low is None:
        return
    symbol = st.selectbox("Candles of", panel.symbols, key=f"data: candles {panel.name}")
    show_figure(
        figures.candles(panel, symbol, CANDLES), f"candles of {symbol}", alt=f"Candles of {symbol}.", height=420
    )
    st.caption(f"The last {CANDLES} bars.")


def _show_available_bars(panel: Panel) -> None:
    height = 120 + 18 * len(panel.symbols)
    show_figure(figures.available_bars(panel), "gaps", alt="Availability of bars by ticker over time.", height=height)
    column = st.column_config
    columns = {
        "symbol": column.TextColumn("Symbol"),
        "first": column.DatetimeColumn("First", format="YYYY-MM-DD"),
        "last": column.DatetimeColumn("Last", format="YYYY-MM-DD"),
        "bars": column.NumberColumn("Bars", format="localized"),
        "missing": column.NumberColumn("Missing", help="Between the first and the last bar."),
        "share": column.NumberColumn("Share missing", format="percent"),
    }
    alt = "Each ticker with its first and last bar and the number of bars missing between them."
    show_table(prices.missing_bars(panel), columns, "missing", alt=alt)


def _show_correlations(panel: Panel) -> None:
    symbols = _choose_tickers(panel, len(panel.symbols))
    if len(symbols) > 1:
        figure = figures.correlations(prices.correlations(panel, symbols))
        alt = "Correlation of the returns of each pair of tickers."
        show_figure(figure, "correlations", alt=alt, height=200 + 22 * len(symbols))
        st.caption("Of log returns per bar, over the bars that each pair shares.")


def _choose_tickers(panel: Panel, default: int) -> list[str]:
    first = list(panel.symbols[: min(default, MAX_TICKERS)])
    return st.multiselect("Tickers", panel.symbols, default=first, key=f"data: symbols {panel.name} {default}")


def _import_job(upload: UploadedFile, options: ReadOptions) -> ImportJob:
    """The job that reads the file of this visitor with these options; an earlier one is cancelled."""
    key = (upload.file_id, options)
    job: ImportJob | None = st.session_state.get("import: job")
    if job is None or job.key != key:
        if job is not None:
            job.cancel()
        job = ImportJob(key, upload.name, upload.getvalue(), options)
        st.session_state["import: job"] = job
    return job


def _show_import_progress(job: ImportJob) -> None:
    """Draw how long a file has been read and the button that cancels it; draws the page again when it is read."""
    if job.wait(0.0):
        st.rerun()
    with st.status(f"Reading {theme.escape_markdown(job.name)}, {theme.duration(job.seconds)}", expanded=True):
        st.caption("In a separate process, limited in memory, time, rows, columns and uncompressed size.")
        if st.button("Cancel", icon=":material/close:", key="import: cancel"):
            job.cancel()
            st.rerun()


def _show_import() -> None:
    """Draw the upload, the result of its check, a preview, and the button that stores it."""
    st.caption(
        "Long format: columns time, symbol, close and optionally open, high, low, volume. Wide format: time, then one "
        "column of closes per ticker. Nothing is stored until you press Store."
    )
    upload = st.file_uploader("File", type=["csv", "gz", "txt", "parquet", "pq"], key="import: file")
    try:
        options = _choose_options()
    except FinrlPodError as error:
        st.error(theme.escape_markdown(error), icon=":material/error:")
        return
    if upload is None:
        return
    job = _import_job(upload, options)
    if not job.wait(QUICK_IMPORT):
        st.fragment(_show_import_progress, run_every=IMPORT_INTERVAL)(job)
        return
    try:
        panel = job.result()
    except FinrlPodError as error:
        st.error(theme.escape_markdown(error), icon=":material/error:")
        return
    first, last = (str(panel.times[i].astype("datetime64[D]")) for i in (0, -1))
    tickers = count_text(len(panel.symbols), "ticker")
    st.success(f"{tickers}, {count_text(len(panel.times), 'bar')} from {first} to {last}.")
    st.caption(f"Columns: {theme.escape_markdown(read_as_sentence(panel.read_as))}.")
    issues = prices.issues_table(panel)
    if len(issues):
        st.caption(f"{count_text(len(issues), 'possible issue')}:")
        headings = {name: name.capitalize() for name in issues.columns}
        show_table(issues, headings, "import: flaws", alt="Possible issues of the file.", max_rows=6)
    closes = prices.preview(panel)
    headings = {name: str(name) for name in closes.columns}
    show_table(closes, headings, "import: preview", alt="The last closes of the file, latest first.", max_rows=6)
    name = st.text_input("Name", max_chars=64, key="import: name", placeholder="my-prices")
    if st.button("Store", type="primary", disabled=not name, key="import: store"):
        with error_messages():
            prices.store_upload(panel, name, options.allow_gaps)
            cached.catalogue.clear()
            st.success(f"Stored as {theme.escape_markdown(name)}.", icon=":material/check_circle:")


def _choose_options() -> ReadOptions:
    """Draw the fields that say what a file contains and how its text is written."""
    left, middle, right = st.columns(3, vertical_alignment="bottom")
    bar = left.selectbox("Bar length", BAR_LENGTHS, key="import: bar")
    adjusted = middle.selectbox(
        "Adjusted prices", list(ADJUSTMENTS), key="import: adjusted", help="For splits and dividends."
    )
    gaps = right.checkbox("Allow gaps", help="Missing bars between a ticker's first and last become untradable.")
    ignore_unknown = right.checkbox("Leave out unknown columns", key="import: ignore unknown")
    columns = st.columns(5, vertical_alignment="bottom")
    symbol = columns[0].text_input(
        "Ticker", max_chars=32, key="import: symbol", help="Of a file without a column that names it."
    )
    date_format = columns[1].text_input(
        "Date format",
        max_chars=40,
        key="import: date format",
        placeholder="2020-01-31",
        help="Of dates that are unlike 2020-01-31: `%d.%m.%Y` for 31.01.2020, `%m/%d/%Y` for 01/31/2020.",
    )
    decimal = columns[2].selectbox(
        "Decimal sign", list(DECIMAL_SIGNS), key="import: decimal", help="As in 12.50 or 12,50."
    )
    separator = columns[3].selectbox(
        "Separator", list(SEPARATORS), key="import: separator", help="Between the cells of a CSV file."
    )
    names = columns[4].text_input(
        "Columns",
        max_chars=200,
        key="import: columns",
        placeholder="Last=close",
        help="What columns of the file are called here: `Last=close, Code=symbol`.",
    )
    return ReadOptions(
        bar=bar,
        adjusted=ADJUSTMENTS[adjusted],
        allow_gaps=gaps,
        symbol=symbol.strip() or None,
        decimal=DECIMAL_SIGNS[decimal],
        date_format=date_format.strip() or None,
        separator=SEPARATORS[separator],
        columns=names,
        ignore_unknown=ignore_unknown,
    )


DEFAULT = "momentum_252_21"


def _show_features(panel: Panel) -> None:
    """Draw the choice of a feature, its information coefficients, returns by quantile, and turnover."""
    names = list(available_features(panel))
    index = names.index(DEFAULT) if DEFAULT in names else 0
    name = st.selectbox("Feature", names, index=index, key="feature", bind=BOUND)
    try:
        document = cached.feature_analysis(panel.name, panel.sha256, name)
    except FinrlPodError as error:
        st.info(theme.escape_markdown(error), icon=":material/info:")
        return
    feature = document["features"][0]
    training = ", the training bars" * (document["split"] == "train")
    st.caption(
        f"{' to '.join(document['period'])}{training}. The feature is known on {feature['coverage']:.0%} of tradable "
        f"bars; its ranks of one bar and the next correlate with {feature['rank_autocorrelation']:.2f}, and "
        f"{feature['top_turnover']:.1%} of the highest quantile is new each bar."
    )
    if meaning := document.get("bars"):
        st.warning(theme.escape_markdown(meaning))
    left, right = st.columns(2)
    with left:
        meaning = "Mean rank correlation with the return from one fill to the fill of a decision so many bars later."
        st.markdown("Information coefficient, 90% interval", help=meaning)
        figure = figures.information_coefficients(feature)
        show_figure(figure, f"information coefficient of {name}", alt=f"Information coefficient of {name} by horizon.")
    with right:
        st.markdown("Returns by quantile", help="Assets sorted by the feature at each bar.")
        figure = figures.quantile_returns(feature)
        show_figure(figure, f"returns by quantile of {name}", alt=f"Returns by quantile of {name}.")
    column = st.column_config
    columns = {
        "horizon": column.NumberColumn("Bars ahead"),
        "information_coefficient": column.NumberColumn("IC", format="%+.3f", help="Information coefficient."),
        "low": column.NumberColumn("IC, low", format="%+.3f", help="90% interval, stationary bootstrap."),
        "high": column.NumberColumn("IC, high", format="%+.3f"),
        "risk_adjusted": column.NumberColumn("IC / std", format="%+.2f", help="Over its standard deviation by bar."),
        "positive": column.NumberColumn("Bars above 0", format="percent"),
        "spread": column.NumberColumn("Spread, bp a bar", format="%+.2f", help="Highest less lowest quantile."),
        "spread_low": column.NumberColumn("Spread, low", format="%+.2f"),
        "spread_high": column.NumberColumn("Spread, high", format="%+.2f"),
    }
    alt = f"Information coefficient and spread of {feature['feature']} by horizon, with intervals."
    show_table(pd.DataFrame(feature["horizons"]), columns, "data: feature horizons", alt=alt)
