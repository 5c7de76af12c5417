"""Paper trading page: status, commands, performance, positions, orders, costs, risk and log of the account."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamlit as st

from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.figures import paper as figures
from finrl_pod_app.dashboard.pages import columns, paper_commands, paper_profit, paper_trades
from finrl_pod_app.dashboard.pages.address import BOUND, default_to
from finrl_pod_app.dashboard.pages.columns import definition
from finrl_pod_app.dashboard.pages.widgets import (
    PAPER_FIGURES,
    show_badge,
    show_equity,
    show_errors,
    show_table,
)
from finrl_pod_app.dashboard.queries import paper_account, paper_journal, paper_performance, paper_period, paper_state
from finrl_pod_app.dashboard.queries.paper_period import Period
from finrl_pod_app.dashboard.settings import Settings

TITLE = "Paper trading"
STATUS_INTERVAL, ACCOUNT_INTERVAL = 2.0, 10.0  # seconds between refreshes of an open page
BADGE_WIDTH, METRIC_WIDTH = 171, 137  # pixels; two fit side by side on a phone


def render(settings: Settings) -> None:
    """Draw the page."""
    st.title(TITLE)
    path = _choose_account(settings)
    if path is None or not path.is_file():
        _show_instructions(path)
        return
    _show_status(path)
    paper_commands.show_command_buttons(path)
    _show_performance(path)


def _choose_account(settings: Settings) -> Path | None:
    """Draw the choice of an account where there are several, and keep it in the address; None if there is none."""
    accounts = settings.accounts()
    if len(accounts) < 2:
        return next(iter(accounts.values()), None)
    first = next(iter(accounts))
    default_to("account", first, accounts)
    help_text = "One per journal."
    account = st.selectbox("Account", list(accounts), index=None, help=help_text, key="account", bind=BOUND)
    return accounts[account or first]


def _show_instructions(path: Path | None) -> None:
    if path is not None:
        st.warning(f"No journal at {theme.escape_markdown(path)} yet.", icon=":material/hourglass_empty:")
    st.markdown("No paper account yet. Try a simulated month with a fake broker, no account needed:")
    st.code("finrl-pod paper demo", language="bash", wrap_lines=True)
    st.markdown("Or trade a paper account at Alpaca; `docs/paper-trading.md` describes the config:")
    st.code("finrl-pod paper run paper.toml", language="bash", wrap_lines=True)


@st.fragment(run_every=STATUS_INTERVAL)
@show_errors
def _show_status(path: Path) -> None:
    """Status badges, pending commands, and the outcome of the last command of this visitor."""
    journal = paper_journal.load(path)
    now = paper_state.utc_now()
    alarm = paper_state.title_alarm(journal)
    st.set_page_config(page_title=" · ".join([*([alarm] if alarm else []), TITLE, theme.PRODUCT]))
    with st.container(horizontal=True, key="statuses"):
        for badge in paper_state.statuses(journal, now):
            with st.container(border=True, width=BADGE_WIDTH, height="stretch", key=f"status-{badge.name}"):
                show_badge(badge)
                st.caption(theme.escape_markdown(badge.detail))
    if pending := paper_state.pending_commands(journal, now):
        st.warning(theme.escape_markdown(pending), icon=":material/hourglass_top:")
    paper_commands.show_command_outcome(journal)


@st.fragment(run_every=ACCOUNT_INTERVAL)
@show_errors
def _show_performance(path: Path) -> None:
    journal = paper_journal.load(path)
    st.caption(theme.escape_markdown(paper_state.as_of(journal)))
    period = _choose_period(journal)
    part = paper_period.in_period(journal, period)
    difference = paper_performance.backtest_difference(part)
    slippage = paper_performance.slippage(part)
    _show_metrics(part, difference, slippage)
    sections: dict[str, Callable[[], None]] = {
        "Account": lambda: _show_account(journal, period, difference),
        "Orders and fills": lambda: paper_trades.show_orders(journal, part),
        "Next orders": lambda: paper_trades.show_next_orders(journal),
        "Prices": lambda: paper_trades.show_prices(journal, period),
        "Costs": lambda: _show_costs(part, slippage),
        "Risk": lambda: _show_risk(journal, part),
        "Log": lambda: _show_log(part),
    }
    # Only the open tab is drawn: a year of orders need not travel to a browser that shows another one.
    tabs = st.tabs(list(sections), key="view", on_change="rerun", bind=BOUND)
    for tab, draw in zip(tabs, sections.values(), strict=True):
        if tab.open:
            with tab:
                draw()
    st.caption(theme.escape_markdown(paper_state.journal_caption(journal)))


def _choose_period(journal: paper_journal.Journal) -> Period:
    """Draw the choice of the period of all figures, with its first and last session."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        names = [period.value for period in Period]
        help_text = "All figures of the page are of this period, up to the last session."
        name = st.segmented_control(
            "Period", names, default=Period.ALL.value, required=True, help=help_text, key="period", bind=BOUND
        )
        period = Period(name)
        st.caption(theme.escape_markdown(paper_period.period_text(journal, period)))
    return period


def _show_metrics(
    journal: paper_journal.Journal,
    difference: paper_performance.BacktestDifference,
    slippage: paper_performance.Slippage,
) -> None:
    summary = paper_state.summary(journal)
    with st.container(horizontal=True):
        show_equity(summary, METRIC_WIDTH)
        cash = f"At the close of {summary.session or 'no session yet'}, like the equity."
        st.metric("Cash", theme.money(summary.cash), help=cash, width=METRIC_WIDTH)
    with st.container(horizontal=True):  # seven in a row would leave one alone at 1280 pixels
        help_text = "Decline from the highest equity of the period to the last close."
        st.metric("Current drawdown", theme.percent(summary.drawdown, 2), help=help_text, width=METRIC_WIDTH)
        largest = theme.percent(summary.max_drawdown, 2)
        st.metric("Largest drawdown", largest, help=definition("max_drawdown"), width=METRIC_WIDTH)
        help_text = definition("backtest_difference")
        st.metric("Against backtest", theme.signed_bp(difference.end), help=help_text, width=METRIC_WIDTH)
        st.metric(
            "Shortfall",
            theme.signed_bp(slippage.realised),
            help=f"{definition('implementation_shortfall')} Modelled: {theme.signed_bp(slippage.modelled)}. "
            f"Standard error: {theme.signed_bp(slippage.error)}.",
            width=METRIC_WIDTH,
        )


def _show_account(
    journal: paper_journal.Journal, period: Period, difference: paper_performance.BacktestDifference
) -> None:
    part = paper_period.in_period(journal, period)
    if len(part.equity) > 1:
        alt = "Equity of the paper account, a benchmark and the replayed backtest if there is one; drawdown beneath."
        height = 520 if difference.is_available else 430
        contents = (difference, part.capital)
        PAPER_FIGURES.show(figures.equity, contents, "paper-equity", alt=alt, height=height)
        if part.equity.flow.any():
            st.caption("Equity before a deposit or withdrawal is scaled, so that neither is a gain or a loss.")
    else:
        st.info("The equity curve appears after two sessions.")
    paper_profit.show_profit(journal, period)
    st.header("Positions", anchor=False)
    positions = paper_account.positions(journal)
    if positions.empty:
        st.info("No positions.")
    else:
        show_table(positions, columns.POSITIONS, "paper-positions", alt="Positions of the paper account")
    note = f"{paper_account.totals(journal)} Prices at the close of {journal.priced or 'no session yet'}."
    st.caption(theme.escape_markdown(note))
    books = paper_account.books(journal)
    if len(books) > 1:
        st.header("Strategies", anchor=False)
        alt = "Equity, cash and value of the positions of each strategy, at the same closes."
        show_table(books, columns.STRATEGIES, "paper-books", alt=alt)
    external = paper_account.external_holdings(journal)
    if len(external):
        st.header("External holdings", anchor=False)
        st.caption("Shares on the account that the strategy did not buy. They are never traded.")
        show_table(external, columns.EXTERNAL, "paper-external", alt="External holdings")
    _show_day(part)
    paper_commands.show_replay(journal, paper_performance.backtest_difference(journal))


def _show_day(journal: paper_journal.Journal) -> None:
    """Draw the summary of a day, at first of the last one."""
    days = paper_account.day_summaries(journal)
    if not days:
        return
    st.header("Day's summary", anchor=False)
    day = st.selectbox("Session", list(days), key="paper: day")
    headline, *lines = days[day].splitlines()
    st.markdown(theme.escape_markdown(headline))
    st.markdown("\n".join(f"- {theme.escape_markdown(line[:1].upper() + line[1:])}" for line in lines))


def _show_costs(journal: paper_journal.Journal, slippage: paper_performance.Slippage) -> None:
    if not slippage.fills:
        st.info("No fills yet.")
        return
    st.markdown(theme.escape_markdown(paper_performance.slippage_summary(slippage)))
    alt = "Implementation shortfall by session, its cumulative mean, and the modelled cost."
    PAPER_FIGURES.show(_slippage_figure, (journal,), "paper-slippage", alt=alt)
    for group, label in (("symbol", "Symbol"), ("size", "Order size")):
        table = paper_performance.slippage_by(journal, group)
        headings = {"group": columns.label_column(label), **columns.SLIPPAGE}
        show_table(table, headings, f"paper-costs-{group}", alt=f"Implementation shortfall by {group}")
    st.caption(
        "Paper fills are no evidence of real costs: no order moves a price there. The break-even cost of a promotion "
        "never uses them."
    )


def _slippage_figure(journal: paper_journal.Journal) -> Any:
    return figures.slippage(paper_performance.slippage_by_session(journal), paper_performance.slippage(journal))


def _show_risk(journal: paper_journal.Journal, part: paper_journal.Journal) -> None:
    """Draw the limits of the account as it is now, and the changes of the risk state in a period."""
    limits = paper_state.risk_limits(journal)
    if limits.empty:
        st.info("This journal has no risk limits. Restart the daemon with this version to record them.")
    else:
        show_table(limits, columns.LIMITS, "paper-limits", alt="Risk limits and how much of each is used")
        if "largest position" not in set(limits["limit"]):
            st.caption("The largest position is limited for each strategy separately, by its mandate.")
    halted_symbols = paper_state.halted_symbols(journal)
    if len(halted_symbols):
        st.header("Halted symbols", anchor=False)
        show_table(halted_symbols, columns.HALTS, "paper-halts", alt="Halted symbols")
        st.caption("Check them, then resume trading them with `finrl-pod paper reconcile --acknowledge`.")
    st.header("Risk state", anchor=False)
    if journal.risk.empty:
        st.caption("Active since the start.")
    elif part.risk.empty:
        st.caption(f"{journal.state[0].capitalize()}; no change in the period.")
    else:
        show_table(part.risk.iloc[::-1], columns.RISK, "paper-risk", alt="Changes of the risk state")


def _show_log(journal: paper_journal.Journal) -> None:
    for title, frame, configuration in (
        ("Alerts", journal.alerts.iloc[::-1], columns.ALERTS),
        ("Commands", paper_state.commands_table(journal), columns.COMMANDS),
        ("Decisions", paper_state.decisions_table(journal), columns.DECISIONS),
    ):
        st.header(f"{title}: {len(frame):,}", anchor=False)
        if len(frame):
            show_table(frame, configuration, f"paper-{title.lower()}", alt=f"{title}, newest first")
