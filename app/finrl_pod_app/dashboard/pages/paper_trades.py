"""Orders, fills, prices and the orders of the next decision on the paper page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from functools import partial

import streamlit as st

from finrl_pod.errors import FinrlPodError
from finrl_pod_app.dashboard import theme
from finrl_pod_app.dashboard.figures import paper as figures
from finrl_pod_app.dashboard.pages import columns
from finrl_pod_app.dashboard.pages.address import BOUND
from finrl_pod_app.dashboard.pages.widgets import PAPER_FIGURES, show_table
from finrl_pod_app.dashboard.queries import paper_account, paper_prices, paper_state
from finrl_pod_app.dashboard.queries.paper_account import OrderFilter
from finrl_pod_app.dashboard.queries.paper_journal import Journal
from finrl_pod_app.dashboard.queries.paper_period import Period

FIELD_WIDTH, WIDE_FIELD_WIDTH = 150, 220  # pixels
MAX_ROWS = 500  # orders and fills sent to the browser per refresh


def show_orders(journal: Journal, part: Journal) -> None:
    """Draw open intents, and the orders and fills of a period that the visitor selects. part: part of the period."""
    all_orders = paper_account.orders(part)
    selection = _choose_orders(journal, sorted(set(all_orders.state)))
    intents = selection.select(paper_account.open_intents(journal), "at")
    st.header(f"Open intents: {len(intents)}", anchor=False)
    if len(intents):
        show_table(intents, columns.OPEN_INTENTS, "paper-intents", alt="Intents not yet filled or abandoned")
    else:
        st.caption("All intents are filled or abandoned.")
    orders = selection.select(all_orders, "at")
    fills = selection.select(paper_account.fills(part), "time")
    st.header(f"Orders: {len(orders):,}", anchor=False)
    if len(orders):
        show_table(orders.head(MAX_ROWS), columns.ORDERS, "paper-orders", alt="Orders, newest first")
    st.header(f"Fills: {len(fills):,}", anchor=False)
    if max(len(orders), len(fills)) > MAX_ROWS:
        st.caption(f"Showing the newest {MAX_ROWS:,} of each; `finrl-pod paper orders --json` prints all.")
    if len(fills):
        show_table(fills.head(MAX_ROWS), columns.FILLS, "paper-fills", alt="Fills, newest first")


def _choose_orders(journal: Journal, states: Sequence[str]) -> OrderFilter:
    """Draw the filters of orders and fills."""
    names = sorted({*journal.orders.strategy, *journal.intents.strategy})
    symbols = paper_prices.traded_symbols(journal)
    day = partial(st.date_input, value=None, format="YYYY-MM-DD", width=FIELD_WIDTH)
    choice = partial(st.multiselect, placeholder="all", width=WIDE_FIELD_WIDTH)
    with st.container(horizontal=True):
        return OrderFilter(
            first=_date(day("From", key="from", bind=BOUND)),
            last=_date(day("To", key="to", bind=BOUND)),
            strategies=tuple(choice("Strategy", names, key="strategy", bind=BOUND)),
            symbols=tuple(choice("Symbol", symbols, key="symbol", bind=BOUND)),
            states=tuple(choice("State of orders", states, key="state", bind=BOUND)),
        )


def _date(value: object) -> date | None:
    return value if isinstance(value, date) else None


def show_prices(journal: Journal, period: Period) -> None:
    """Draw the prices of a symbol with own fills."""
    symbols = paper_prices.traded_symbols(journal)
    if not symbols:
        st.info("No symbols yet.")
        return
    symbol = st.selectbox("Symbol", symbols, key="chart", bind=BOUND)
    history = paper_prices.price_history(journal, period, symbol)
    if history.closes.empty:
        st.info("No closes in the period.")
        return
    alt = f"Closes of {symbol} with own purchases and sales, and the shares held."
    PAPER_FIGURES.show(figures.prices, (history,), "paper-prices", alt=alt, height=460)
    text = (
        "Closes as the decisions used them and prices of own fills, in the shares of today: adjusted for splits only."
    )
    st.caption(text)
    fills = history.fills.iloc[::-1].reset_index(drop=True)
    if len(fills):
        alt = f"Fills of {symbol}, newest first"
        show_table(fills.head(MAX_ROWS), columns.PRICE_FILLS, "paper-price-fills", alt=alt)
    else:
        st.caption(theme.escape_markdown(f"No fills of {symbol} in the period."))


def show_next_orders(journal: Journal) -> None:
    """Draw the orders of the next decision of each strategy, and why."""
    now = paper_state.utc_now()
    if paper_state.is_simulated(journal) and journal.last is not None:
        now = journal.last.to_pydatetime()
    st.caption(
        "Decided as the daemon would after the last close, on stored prices; sized like a backtest on that close. The "
        "daemon decides again on the prices of its feed, and applies the limits of its config."
    )
    for name in paper_account.strategies_of(journal):
        st.subheader(theme.escape_markdown(name), anchor=False)
        try:
            with st.spinner("Deciding"):
                _show_orders_of(journal, name, now)
        except FinrlPodError as error:  # trading does not depend on it
            st.info(theme.escape_markdown(error), icon=":material/info:")


def _show_orders_of(journal: Journal, name: str, now: datetime) -> None:
    from finrl_pod_app.dashboard.queries.paper_next_orders import next_orders

    result = next_orders(journal, name, now)
    text = f"After the close of {result.date}"
    if result.is_repeated:
        text += ", on which the daemon has already decided: what is missing from its targets"
    st.caption(theme.escape_markdown(f"{text}. Cash left: {theme.money(result.cash_left)}."))
    if result.orders.empty:
        st.caption("Nothing is held, and nothing would be bought.")
        return
    has_reasons = bool(result.orders.score.notna().any())
    headings = columns.NEXT_ORDERS | (columns.REASONS if has_reasons else {})
    show_table(result.orders, headings, f"paper-next-{name}", alt=f"Next orders of {name}, the largest first")
    if not has_reasons:
        st.caption("This strategy has no scores that features would explain.")
