"""Profit and loss on the paper page: by day, week or month, by strategy and by asset."""

from __future__ import annotations

import streamlit as st

from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.figures import paper as figures
from finrl_pod_app.dashboard.pages import columns
from finrl_pod_app.dashboard.pages.address import BOUND
from finrl_pod_app.dashboard.pages.widgets import PAPER_FIGURES, show_table
from finrl_pod_app.dashboard.queries.paper_journal import Journal
from finrl_pod_app.dashboard.queries.paper_period import Period
from finrl_pod_app.dashboard.queries.paper_profit import (
    CENT,
    Interval,
    ProfitAndLoss,
    profit_and_loss,
    profit_by_interval,
    profit_by_part,
)

FIELD_WIDTH = 160  # pixels


def show_profit(journal: Journal, period: Period) -> None:
    """Draw profit and loss of a period."""
    st.header("Profit and loss", anchor=False)
    profit = profit_and_loss(journal, period)
    if profit.sessions.empty:
        st.info("Profit and loss appear after the first session.")
        return
    total = float(profit.sessions.profit.sum())
    text = f"{theme.signed_money(total, 2)} in the period, a return of {theme.signed_percent(profit.total_return)}."
    st.markdown(theme.escape_markdown(text))
    # Buttons of the page stay in every view; what one view chooses is a field.
    names = [interval.value for interval in Interval]
    interval = Interval(st.selectbox("By", names, key="by", bind=BOUND, width=FIELD_WIDTH))
    alt = f"Profit of each {interval.value.lower()} by strategy, and its sum from the start of the period."
    PAPER_FIGURES.show(figures.profit, (profit, interval), "paper-profit", alt=alt)
    frame = profit_by_interval(profit, interval).iloc[::-1].reset_index(drop=True)
    frame["return"] *= 100
    headings = {"label": columns.label_column(interval.value), **columns.PROFIT}
    has_flows = bool(profit.sessions.flow.any())
    if not has_flows:
        del headings["flow"]
    show_table(frame, headings, "paper-profit-table", alt=f"Profit by {interval.value.lower()}, latest first")
    _show_notes(profit, has_flows=has_flows)
    _show_parts(profit)


def _show_notes(profit: ProfitAndLoss, *, has_flows: bool) -> None:
    notes = []
    if has_flows:
        notes.append("Deposits and withdrawals are no profit, and returns are time-weighted.")
    unpaid = float(profit.sessions.unpaid.sum())
    if abs(unpaid) >= CENT:
        notes.append(
            f"Dividends of {theme.money(unpaid, 2)} that the paper account was not credited with are left out."
        )
    if notes:
        st.caption(theme.escape_markdown(" ".join(notes)))


def _show_parts(profit: ProfitAndLoss) -> None:
    """Draw profit and contribution of each strategy and each asset."""
    for column, title in (("strategy", "Strategy"), ("symbol", "Asset")):
        frame = profit_by_part(profit, column)  # type: ignore[arg-type]
        if frame.empty:
            continue
        frame["contribution"] *= 100
        st.subheader(f"By {title.lower()}", anchor=False)
        if column == "symbol":
            alt = "Contribution of each asset to the return of the period, by strategy."
            PAPER_FIGURES.show(figures.contributions, (profit,), "paper-contributions", alt=alt, height=None)
        headings = {
            column: columns.label_column(title),
            "profit": columns.PROFIT["profit"],
            "contribution": columns.CONTRIBUTION,
            **columns.PROFIT_AMOUNTS,
        }
        show_table(frame, headings, f"paper-profit-{column}", alt=f"Profit by {title.lower()}, the largest first")
