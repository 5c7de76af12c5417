"""The paper account: what it holds, what it did, and how to stop it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import streamlit as st

from finrl_pod.errors import FinrlPodError
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.definitions import definition
from finrl_pod_app.dashboard.figures import paper as figures
from finrl_pod_app.dashboard.pages import paper_columns as columns
from finrl_pod_app.dashboard.pages import paper_commands, paper_replay
from finrl_pod_app.dashboard.pages.parts import show_figure
from finrl_pod_app.dashboard.pages.tables import show_table
from finrl_pod_app.dashboard.queries import paper_account, paper_costs, paper_journal, paper_state, paper_tracking
from finrl_pod_app.dashboard.settings import Settings

STATUS_EVERY, ACCOUNT_EVERY = 2.0, 10.0  # seconds between two looks at the journal, while the page is open
SIGN = 171  # pixels of a sign: two stand side by side on a telephone
NEWEST = 500  # orders and fills that are sent to the browser at each look
_COLOURS = {"good": "green", "warning": "orange", "bad": "red", "unknown": "gray"}
_ICONS = {"good": "check_circle", "warning": "warning", "bad": "error", "unknown": "help"}
_LABELS = {"good": "well", "warning": "late", "bad": "look here", "unknown": "not known"}
_STATES = {"active": "good", "reducing": "warning", "halted": "bad"}
_STATE_WORDS = {
    "active": "orders are sent within the limits",
    "reducing": "only orders that make a position smaller are sent",
    "halted": "no orders are sent",
}


def render(settings: Settings) -> None:
    """Draw the page."""
    st.title("Paper trading")
    path = settings.find_journal()
    if path is None or not path.is_file():
        _empty(path)
        return
    _status(path)
    paper_commands.controls(path)
    _account(path)


def _empty(path: Path | None) -> None:
    if path is not None:
        st.warning(f"There is no journal at {theme.plain(path)} yet.", icon=":material/hourglass_empty:")
    st.markdown(
        "No paper account is traded here yet. See it at work without an account, against a stand-in for a broker:"
    )
    st.code("finrl-pod paper demo", language="bash")
    st.markdown("Or trade a paper account at Alpaca unattended; `docs/paper-trading.md` says how to write the config:")
    st.code("finrl-pod paper run paper.toml", language="bash")


def _told(draw: Callable[[Path], None]) -> Callable[[Path], None]:
    """A part that is drawn again by itself says its errors itself."""

    @functools.wraps(draw)
    def drawn(path: Path) -> None:
        try:
            draw(path)
        except FinrlPodError as error:
            st.error(theme.plain(error), icon=":material/error:")

    return drawn


@st.fragment(run_every=STATUS_EVERY)
@_told
def _status(path: Path) -> None:
    """Whether it trades, is alive, sees fresh prices, and agrees with the broker; what waits for the daemon."""
    journal, now = paper_journal.load(path), paper_state.now()
    state, reason = journal.state
    because = f" ({reason})" if reason else ""
    trading = paper_state.Sign("Trading", _STATES.get(state, "unknown"), f"{_STATE_WORDS.get(state, state)}{because}")  # type: ignore[arg-type]
    signs = (trading, *paper_state.signs(journal, now))
    with st.container(horizontal=True, key="signs"):
        for sign in signs:
            with st.container(border=True, width=SIGN, height="stretch", key=f"sign-{sign.title.lower()}"):
                label = state if sign is trading else _LABELS[sign.level]
                st.badge(f"{sign.title}: {label}", icon=f":material/{_ICONS[sign.level]}:", color=_COLOURS[sign.level])  # type: ignore[arg-type]
                st.caption(theme.plain(sign.words))
    waiting = paper_state.waiting(journal, now)
    if waiting:
        st.warning(theme.plain(waiting), icon=":material/hourglass_top:")
    paper_commands.follow(journal)


@st.fragment(run_every=ACCOUNT_EVERY)
@_told
def _account(path: Path) -> None:
    journal = paper_journal.load(path)
    track = paper_tracking.tracking(journal)
    costs = paper_costs.slippage(journal)
    _figures_of_merit(journal, track, costs)
    sections: dict[str, Callable[[], None]] = {
        "Account": lambda: _show_account(journal, track),
        "Orders and fills": lambda: _show_orders(journal),
        "Costs": lambda: _show_costs(journal, costs),
        "Risk": lambda: _show_risk(journal),
        "Log": lambda: _show_log(journal),
    }
    # Only the open one is drawn: a year's orders need not travel to a browser that shows something else.
    for tab, draw in zip(st.tabs(list(sections), key="sections", on_change="rerun"), sections.values(), strict=True):
        if tab.open:
            with tab:
                draw()
    st.caption(theme.plain(paper_state.footer(journal)))


def _figures_of_merit(
    journal: paper_journal.Journal, track: paper_tracking.Tracking, costs: paper_costs.Slippage
) -> None:
    summary = paper_state.summary(journal)
    with st.container(horizontal=True):
        st.metric(
            "Equity", theme.money(summary.equity), None if summary.day is None else theme.percent(summary.day, 2),
            help=f"At the close of {summary.session or 'no session yet'}; below, the change since the session before.",
            width=145,
        )  # fmt: skip
        st.metric(
            "Since the start", theme.percent(summary.total, 2), help="Equity over the capital, less one.", width=140
        )
        st.metric("Cash", theme.money(journal.cash), help="Own cash: capital less purchases, plus sales.", width=140)
        st.metric("Drawdown", theme.percent(summary.drawdown, 2), help=definition("max_drawdown"), width=140)
        st.metric("Tracking", theme.points(track.end), help=definition("tracking_difference"), width=140)
        st.metric(
            "Slippage", theme.points(costs.realised), help=f"{definition('slippage')} Modelled: "
            f"{theme.points(costs.modelled)}. Standard error: {theme.points(costs.error)}.", width=140,
        )  # fmt: skip


def _show_account(journal: paper_journal.Journal, track: paper_tracking.Tracking) -> None:
    if len(journal.equity) > 1:
        words = "Equity of the paper account, and of the replayed backtest where one was made."
        height = 430 if track.known else 320
        show_figure(figures.equity(track, journal.capital), "paper-equity", describes=words, height=height)
    else:
        st.info(f"{len(journal.equity)} of the two sessions that a curve needs have been marked, one a decision.")
    paper_replay.offer(journal, track)
    st.subheader("Positions", anchor=False)
    held = paper_account.positions(journal)
    if held.empty:
        st.info("Nothing is held.")
    else:
        show_table(held, columns.positions(), "paper-positions", describes="Positions of the paper account")
        st.caption(theme.plain(f"Prices at the close of {journal.priced}, as the last decision saw them."))
    others = paper_account.foreign(journal)
    if len(others):
        st.subheader("On the account, and not ours", anchor=False)
        st.caption("What the account held before, or what others trade on it, is never touched.")
        show_table(others, columns.foreign(), "paper-foreign", describes="Shares that are not ours")


def _show_orders(journal: paper_journal.Journal) -> None:
    open_ = paper_account.under_way(journal)
    st.subheader(f"Under way: {len(open_)}", anchor=False)
    if len(open_):
        show_table(open_, columns.under_way(), "paper-under-way", describes="Orders under way")
    else:
        st.caption("Nothing is wanted that has not filled or been given up.")
    sent, filled = paper_account.orders(journal), paper_account.fills(journal)
    st.subheader(f"Orders: {len(sent):,}", anchor=False)
    if len(sent):
        show_table(sent.head(NEWEST), columns.orders(), "paper-orders", describes="Orders, the newest first")
    st.subheader(f"Fills: {len(filled):,}", anchor=False)
    if max(len(sent), len(filled)) > NEWEST:
        st.caption(f"The newest {NEWEST:,} of each are shown; `finrl-pod paper orders --json` gives all.")
    if len(filled):
        show_table(filled.head(NEWEST), columns.fills(), "paper-fills", describes="Fills, the newest first")


def _show_costs(journal: paper_journal.Journal, costs: paper_costs.Slippage) -> None:
    if not costs.fills:
        st.info("Nothing has filled yet.")
        return
    st.markdown(theme.plain(paper_costs.words(costs)))
    words = "Slippage of each session, its mean so far, and what was modelled."
    show_figure(figures.slippage(paper_costs.by_session(journal), costs), "paper-slippage", describes=words)
    show_table(paper_costs.by_symbol(journal), columns.costs(), "paper-costs", describes="Slippage by symbol")


def _show_risk(journal: paper_journal.Journal) -> None:
    limits = paper_state.limits(journal)
    if limits.empty:
        st.info("The daemon that wrote this journal did not keep its limits in it: start it once with this version.")
    else:
        show_table(limits, columns.limits(), "paper-limits", describes="Risk limits and how much of each is used")
    stopped = paper_state.halted_symbols(journal)
    if len(stopped):
        st.subheader("Symbols that are not traded", anchor=False)
        show_table(stopped, columns.halts(), "paper-halts", describes="Symbols that are halted")
        st.caption("finrl-pod paper reconcile --acknowledge frees them once you have looked.")
    st.subheader("Risk state", anchor=False)
    if journal.risk.empty:
        st.caption("It has been active from the start.")
    else:
        show_table(journal.risk.iloc[::-1], columns.risk(), "paper-risk", describes="Changes of the risk state")


def _show_log(journal: paper_journal.Journal) -> None:
    for title, frame, shape in (
        ("Alerts", journal.alerts.iloc[::-1], columns.alerts()),
        ("Commands", paper_state.commands(journal), columns.commands()),
        ("Decisions", paper_state.decisions(journal), columns.decisions()),
    ):
        st.subheader(f"{title}: {len(frame):,}", anchor=False)
        if len(frame):
            show_table(frame, shape, f"paper-{title.lower()}", describes=f"{title}, the newest first")
