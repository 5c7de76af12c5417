"""Streamlit elements shared by the pages: cached figures, tables, and error messages of self-refreshing parts."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pandas as pd
import streamlit as st
from streamlit.elements.lib.column_types import ColumnConfig

from finrl_pod.errors import FinrlPodError
from finrl_pod.evaluate.export import escape_formula
from finrl_pod.evaluate.metrics import Metric
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.pages import cached
from finrl_pod_app.dashboard.pages.address import BOUND, default_to
from finrl_pod_app.dashboard.queries import runs
from finrl_pod_app.dashboard.queries.paper_state import StatusBadge, Summary
from finrl_pod_app.dashboard.settings import Settings
from finrl_pod_app.report.columns import display_name, format_metric
from finrl_pod_app.report.records import RunReport
from finrl_pod_app.report.verdict_text import best_of_looks

Columns = Mapping[str, ColumnConfig | str]  # heading or configuration by column of a frame, in their order
ROW_HEIGHT = 35  # pixels
DEFAULT_HEIGHT = 380  # pixels of a figure
BAR_HEIGHT, BARS_MARGIN = 26, 90  # pixels of a horizontal bar, and above and below all
# Colour and icon of each level of a status.
LEVELS = {
    "good": ("green", "check_circle"),
    "warning": ("orange", "warning"),
    "bad": ("red", "error"),
    "unknown": ("gray", "help"),
}
MAX_VISIBLE_ROWS = 12  # the others are reached by scrolling


def show_figure(figure: Any, key: str, *, alt: str, height: int | None = DEFAULT_HEIGHT) -> None:
    """Draw a figure as wide as its column.

    key: unique on the page. alt: description for screen readers. height: pixels, None for the height that the
    horizontal bars of the figure need.
    """
    draw_figure(finish_figure(figure, dark=is_dark(), height=height), key, alt=alt)


def finish_figure(figure: Any, *, dark: bool, height: int | None) -> Any:
    """Set template and height of a figure, and return it. Parameters are described in `show_figure`."""
    if height is None:
        height = BARS_MARGIN + BAR_HEIGHT * max(len(bars.y) for bars in figure.data)
    figure.update_layout(template=theme.template(dark=dark), height=height)
    return figure


def draw_figure(figure: Any, key: str, *, alt: str) -> None:
    """Draw a figure from `finish_figure` without changing it. Parameters are described in `show_figure`."""
    toolbar = {
        "displaylogo": False,
        "displayModeBar": "hover",  # not without a mouse, see `theme.CONTROL_CSS`
        "modeBarButtonsToRemove": ["lasso2d", "select2d"],
        "toImageButtonOptions": {"filename": key, "scale": 2},
    }
    # The theme of Streamlit would replace the template.
    st.plotly_chart(figure, key=key, theme=None, config=toolbar, alt=alt)


def show_table(
    frame: pd.DataFrame, columns: Columns, key: str, *, alt: str, max_rows: int = MAX_VISIBLE_ROWS, **options: Any
) -> Any:
    """Draw the configured columns of a frame, in their order. alt: description for screen readers.

    Text that a spreadsheet would execute is escaped, since the table can be saved as CSV. options: further arguments of
    `st.dataframe`. Returns its result.
    """
    visible_frame = frame[list(columns)].copy()
    for name in visible_frame.select_dtypes(exclude=["number", "datetime", "datetimetz"]):
        visible_frame[name] = [
            escape_formula(value) if isinstance(value, str) else value for value in visible_frame[name]
        ]
    columns = dict(columns)
    for name, column in columns.items():
        # The format of Streamlit has up to two decimals, a different number in each row.
        if isinstance(column, dict) and (settings := column.get("type_config")) and settings.get("format") == "percent":
            visible_frame[name] = 100 * visible_frame[name].astype(float)
            columns[name] = {**column, "type_config": {**settings, "format": "%.1f%%"}}  # type: ignore[assignment]
    # Headings that come from files are saved with the table as well.
    safe = {name: escape_formula(name) for name in visible_frame.columns if isinstance(name, str)}
    visible_frame = visible_frame.rename(columns=safe)
    columns = {
        safe.get(name, name): escape_formula(column) if isinstance(column, str) else column
        for name, column in columns.items()
    }
    return st.dataframe(
        visible_frame,
        hide_index=True,
        column_config=columns,
        height=ROW_HEIGHT * (1 + min(len(visible_frame), max_rows)) + 3,
        row_height=ROW_HEIGHT,
        placeholder=theme.MISSING,
        key=key,
        alt=alt,
        **options,
    )


def show_text_table(frame: pd.DataFrame, headings: Mapping[str, str], *, alt: str) -> None:
    """Draw a frame of sentences that wrap on narrow pages. headings: heading of each column, in order."""
    text = {head: [theme.escape_markdown(cell) for cell in frame[name]] for name, head in headings.items()}
    st.table(pd.DataFrame(text, dtype=object), border="horizontal", hide_index=True, alt=alt)


def show_metrics(table: pd.DataFrame, metrics: Sequence[Metric], *, alt: str) -> None:
    """Draw metrics of strategies as a table that does not sort: results on test are no ranking.

    table: column strategy, and one for each of the metrics that it has.
    """
    metrics = [metric for metric in metrics if metric.name in table.columns]
    cells = {"Strategy": [display_name(name) for name in table["strategy"]]}
    for metric in metrics:
        heading = f"{metric.label}, {metric.unit.heading}" if metric.unit.heading else metric.label
        cells[heading] = [format_metric(metric, value) for value in table[metric.name]]
    show_static_table(pd.DataFrame(cells), alt=alt)
    with st.expander("Definitions"):
        lines = [f"- **{metric.label}**: {theme.escape_markdown(metric.explanation)}." for metric in metrics]
        st.markdown("\n".join(lines))


def show_static_table(cells: pd.DataFrame, *, alt: str) -> None:
    """Draw a table of texts that does not sort, headed by its first column; it scrolls on narrow pages."""
    heads = "".join(f'<th scope="col">{theme.escape_html(head)}</th>' for head in cells.columns)
    rows = "".join(
        f'<tr><th scope="row">{theme.escape_html(first)}</th>'
        f"{''.join(f'<td>{theme.escape_html(cell)}</td>' for cell in others)}</tr>"
        for first, *others in cells.itertuples(index=False)
    )
    # A region that scrolls must be reachable by keyboard.
    st.html(
        f'<div class="static-table" tabindex="0" role="region" aria-label="{theme.escape_html(alt)}"><table><thead>'
        f"<tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


@contextmanager
def error_messages(icon: str = "error", prefix: str = "") -> Iterator[None]:
    """Draw an error of finrl_pod that ends the block as a message. prefix: text before it."""
    try:
        yield
    except FinrlPodError as error:
        st.error(theme.escape_markdown(f"{prefix}{error}"), icon=f":material/{icon}:")


def show_errors(draw: Callable[..., None]) -> Callable[..., None]:
    """Wrap a page or a fragment, which no caller handles in a refresh: its failure leaves the other parts usable.

    Errors of finrl_pod show as their message, others as a sentence and in the log.
    """

    @functools.wraps(draw)
    def draw_with_messages(*arguments: Any) -> None:
        try:
            with error_messages():
                draw(*arguments)
        except Exception as error:
            logging.getLogger(__name__).exception("%s of the dashboard failed", draw.__name__)
            message = (
                f"This part of the page failed ({type(error).__name__}). The log of the dashboard has the details."
            )
            st.error(message, icon=":material/error:")

    return draw_with_messages


def show_badge(status: StatusBadge) -> None:
    """Draw the label of a status in the colour of its level."""
    colour, icon = LEVELS[status.level]
    st.badge(theme.escape_markdown(status.label), icon=f":material/{icon}:", color=colour)  # type: ignore[arg-type]


def show_equity(summary: Summary, width: int) -> None:
    """Draw equity, with the change of the last session, and the return of a paper account in a period."""
    st.metric(
        "Equity",
        theme.money(summary.equity),
        None if summary.day is None else theme.percent(summary.day, 2),
        help=f"At the close of {summary.session or 'no session yet'}, with the change since the session before.",
        width=width,
        delta_color="off",  # red is for what stops trading
    )
    help_text = "Time-weighted: deposits and withdrawals are no returns."
    st.metric("Return", theme.signed_percent(summary.total), help=help_text, width=width)


def show_looks(report: RunReport) -> None:
    """Draw of how many looks at the test period its figures may be the best; nothing for other periods."""
    if looks := best_of_looks(report):
        st.caption(f"Figures on test {theme.escape_markdown(' to '.join(report.splits.test))}: {looks} at these bars.")


def page_of(name: str) -> Any:
    """A page for links, by its name. Raises KeyError if there is none."""
    return st.session_state["pages"][name]


def choose_run(settings: Settings) -> runs.RunFiles | None:
    """Draw the choice of a run, the newest first, and keep it in the address as `name`. None if there are no runs."""
    by_name = {run.name: run for run in cached.found_runs(settings)}
    if not by_name:
        return None
    newest = next((run.name for run in own_runs(settings)), next(iter(by_name)))
    requested_name = st.query_params.get("name")
    if requested_name is not None and requested_name not in by_name:
        st.warning(
            f"There is no run {theme.escape_markdown(requested_name)}: choose one.", icon=":material/search_off:"
        )
    default_to("name", newest, by_name)
    help_text = "Latest change first."
    name = st.selectbox("Run", list(by_name), index=None, help=help_text, key="name", bind=BOUND)
    return by_name[name or newest]


def runs_with_champion(settings: Settings) -> dict[str, runs.RunFiles]:
    """Undamaged runs that have a champion, by name, the newest first."""
    candidates = cached.found_runs(settings)
    return {run.name: run for run in candidates if run.has_champion and not cached.summary(run).error}


def own_runs(settings: Settings) -> list[runs.RunFiles]:
    """The runs that a page may choose by itself, the newest first: all but the one of `paper demo`."""
    return [run for run in cached.found_runs(settings) if not run.is_temporary]


def newest_result(settings: Settings) -> runs.RunFiles | None:
    """The newest undamaged run with a report and a recorded look, without champions of `paper demo`; else None."""
    candidates = (run for run in own_runs(settings) if runs.is_test_look_recorded(run) and run.has(runs.REPORT))
    return next((run for run in candidates if not cached.summary(run).error), None)


def first_view(page: str, settings: Settings) -> dict[str, str]:
    """Parameters of the link to a page in the menu: what it shows first, so that its address names it at once."""
    if page == "paper":
        accounts = list(settings.accounts())
        return {"account": accounts[0]} if len(accounts) > 1 else {}
    if page == "run":
        newest = next(iter(own_runs(settings)), None)
        return {} if newest is None else {"name": newest.name}
    if page == "audit":
        result = next((run for run in runs_with_champion(settings).values() if not run.is_temporary), None)
    else:
        result = newest_result(settings) if page == "compare" else None
    return {} if result is None else {"run": result.name}


def damaged_note(settings: Settings) -> None:
    """Draw which runs cannot be chosen on a page because they are damaged, with the reasons, collapsed."""
    reasons = {run.name: error for run in cached.found_runs(settings) if (error := cached.summary(run).error)}
    if not reasons:
        return
    with st.expander(f"Damaged runs: {len(reasons)}", icon=":material/broken_image:"):
        lines = [
            f"- {theme.escape_markdown(name)}: {theme.escape_markdown(reason)}" for name, reason in reasons.items()
        ]
        st.markdown("\n".join(lines))


def visitor_zone() -> ZoneInfo:
    """The time zone of the browser; UTC if it did not report one that is known here."""
    try:
        return ZoneInfo(st.context.timezone or "UTC")
    except (ValueError, OSError, ZoneInfoNotFoundError):  # the name comes from the browser
        return ZoneInfo("UTC")


def show_as_of() -> None:
    """Draw the time at which the page read its data, in the zone of the visitor."""
    st.caption(f"As of {theme.escape_markdown(theme.zoned_time(datetime.now(UTC), visitor_zone()))}")


def is_dark() -> bool:
    """True if the page of the visitor is dark; False if the browser did not report it."""
    return st.context.theme.type == "dark"


class FigureCache:
    """The figures shown last, at most `max_entries`. All sessions share them: do not modify them."""

    def __init__(self, max_entries: int) -> None:
        self._figure = lru_cache(maxsize=max_entries)(
            lambda make, contents, dark, height: finish_figure(make(*contents), dark=dark, height=height)
        )

    def show(
        self,
        make: Callable[..., Any],
        contents: tuple[Hashable, ...],
        key: str,
        *,
        alt: str,
        height: int | None = DEFAULT_HEIGHT,
    ) -> None:
        """Draw make(*contents). It is called once per contents, height and scheme of colours.

        make: a function of a module, since a new function has no entries. contents: all that the figure depends on, as
        records that are equal only if what they stand for is, such as `RunFiles`. Other parameters are described in
        `show_figure`.
        """
        draw_figure(self._figure(make, contents, is_dark(), height), key, alt=alt)


RUN_FIGURES = FigureCache(48)
# Figures of an account keep its journal in memory: some MB for a year.
PAPER_FIGURES = FigureCache(16)
