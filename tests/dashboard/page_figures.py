"""Draws pages without a browser, and compares the figures of the paper page with the rows of its journal."""

from __future__ import annotations

import json
import math
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd

from tests.dashboard import journal_arithmetic

# What `script.main` does for one page; the folder of runs comes from the environment.
SCRIPT = """
import os
import streamlit as st
from finrl_pod_app.dashboard.script.main import PAGES, draw_page
from finrl_pod_app.dashboard.settings import Settings
pages = {name: st.Page(lambda: None, title=title, url_path=name) for name, (title, _) in PAGES.items()}
st.session_state["pages"] = pages
st.navigation(list(pages.values()), position="hidden")
draw_page("NAME", Settings.from_environment(os.environ))
"""
TIMEOUT = 60.0  # seconds
CENT = 0.005
TINY = 1e-6  # of shares and of percent


def open_page(page: str, **query: str) -> Any:
    """Draw a page without a browser, with the settings of the environment. query: parameters of its address."""
    from streamlit.testing.v1 import AppTest

    app = AppTest.from_string(SCRIPT.replace("NAME", page), default_timeout=TIMEOUT)
    for name, value in query.items():
        app.query_params[name] = value
    main = sys.modules["__main__"]
    try:
        return app.run()
    finally:
        sys.modules["__main__"] = main  # a process that is spawned later would import the script


def table(app: Any, *columns: str) -> pd.DataFrame:
    """The first table of a page that has these headings, with the headings that the browser shows."""
    for element in app.dataframe:
        labels = {name: config.get("label") for name, config in json.loads(element.proto.columns).items()}
        headings = [labels.get(name) or name for name in element.value.columns]
        if set(columns) <= set(headings):
            return element.value.set_axis(headings, axis=1)
    raise AssertionError(f"no table has the columns {columns}")


class Comparison:
    """Collects the figures of a page that differ from the expected ones."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.count = 0

    def equal(self, name: str, shown: object, expected: object) -> None:
        """Compare two values of any type."""
        self.count += 1
        if shown != expected:
            self.faults.append(f"{name}: the page shows {shown}, the journal has {expected}")

    def close(self, name: str, shown: float, expected: Decimal | float, tolerance: float = CENT) -> None:
        """Compare two numbers."""
        self.count += 1
        if not math.isclose(shown, float(expected), rel_tol=0, abs_tol=tolerance):
            self.faults.append(f"{name}: the page shows {shown}, the journal has {expected}")


def compare_account(app: Any, journal: Path, shares: dict[str, float]) -> Comparison:
    """Compare the view Account with the journal. shares: parts of the capital by name of the strategy."""
    comparison = Comparison()
    books = journal_arithmetic.books(journal)
    _compare_profit(comparison, app, books)
    _compare_positions(comparison, app, journal, books, shares)
    return comparison


def _compare_profit(comparison: Comparison, app: Any, books: journal_arithmetic.Books) -> None:
    days = books.days
    last = days[-1]
    metrics = {metric.label: metric.value for metric in app.metric}
    total = 100 * float(journal_arithmetic.time_weighted_return(days))
    comparison.equal("equity", metrics["Equity"], f"${last.end:,.0f}")
    comparison.equal("cash", metrics["Cash"], f"${last.cash:,.0f}")
    comparison.close("return", float(metrics["Return"].rstrip("%")), total, 0.0051)
    frame = table(app, "Day", "Profit").set_index("Day")
    comparison.equal("sessions", list(frame.index), [day.session for day in reversed(days)])
    for day in days:
        row = frame.loc[day.session]
        comparison.close(f"profit of {day.session}", row["Profit"], day.profit)
        comparison.close(f"return of {day.session}", row["Return"], 100 * day.rate, TINY)
        comparison.close(f"equity of {day.session}", row["Equity"], day.end)
        for place, name in enumerate(("Prices", "Dividends", "Costs")):
            amount = sum(amounts[place] for amounts in day.profits.values())
            comparison.close(f"{name} of {day.session}", row[name], amount)
        if "Deposits" in frame.columns:
            comparison.close(f"deposits of {day.session}", row["Deposits"], day.flow)
    comparison.equal("deposits are shown", "Deposits" in frame.columns, any(day.flow for day in days))
    if not any(any(amounts) for day in days for amounts in day.profits.values()):
        return
    for place, heading in enumerate(("Strategy", "Asset")):
        parts = table(app, heading, "Profit", "Contribution").set_index(heading)
        contributions = journal_arithmetic.contributions(days, place)
        for name, amounts in journal_arithmetic.profits(days, place).items():
            if not any(amounts):
                continue
            row = parts.loc[name.partition("/")[2] if place == 0 else name]
            comparison.close(f"profit of {name}", row["Profit"], sum(amounts))
            comparison.close(f"contribution of {name}", row["Contribution"], 100 * contributions[name], TINY)
        comparison.close(f"contributions by {heading}", float(parts["Contribution"].sum()), total, 1e-3)


def _compare_positions(
    comparison: Comparison, app: Any, journal: Path, books: journal_arithmetic.Books, shares: dict[str, float]
) -> None:
    if not books.symbols:
        return
    positions = table(app, "Symbol", "Weight", "Target", "Distance").set_index("Symbol")
    weights = dict(journal_arithmetic.rows(journal, _LAST_WEIGHTS))
    names = {run: run.partition("/")[2] for run in books.cash}
    equities = {
        run: books.equity_of(run, Decimal(str(round(float(books.capital) * shares[name], 2))))
        for run, name in names.items()
    }
    for symbol in books.symbols:
        row = positions.loc[symbol]
        weight = 100 * books.value(symbol) / books.equity
        target = sum(
            100 * float(equities[run] / books.equity) * json.loads(text).get(symbol, 0.0)
            for run, text in weights.items()
        )
        comparison.close(f"shares of {symbol}", row["Shares"], books.held(symbol), TINY)
        comparison.close(f"value of {symbol}", row["Value"], books.value(symbol))
        comparison.close(f"weight of {symbol}", row["Weight"], weight, TINY)
        comparison.close(f"target of {symbol}", row["Target"], target, 1e-4)
        comparison.close(f"distance of {symbol}", row["Distance"], float(weight) - target, 1e-4)
    strategies = table(app, "Strategy", "Equity", "Share", "Cash").set_index("Strategy")
    for run, name in names.items():
        comparison.close(f"equity of {name}", strategies.loc[name]["Equity"], equities[run])
        comparison.close(f"share of {name}", strategies.loc[name]["Share"], 100 * equities[run] / books.equity, 1e-4)


_LAST_WEIGHTS = """
SELECT run, weights FROM decisions WHERE id IN (SELECT max(id) FROM decisions WHERE weights IS NOT NULL GROUP BY run)
"""


def compare_orders(app: Any, journal: Path) -> Comparison:
    """Compare the view Orders and fills with the journal."""
    comparison = Comparison()
    query = "SELECT i.run, i.symbol, {} FROM {} JOIN intents i ON o.intent_id = i.id ORDER BY {} DESC"
    for heading, column, source, key in (
        ("Limit price", "o.quantity", "orders o", "o.id"),
        ("Fee", "f.quantity", "fills f JOIN orders o ON f.order_id = o.id", "f.id"),
    ):
        rows = journal_arithmetic.rows(journal, query.format(column, source, key))
        if rows:
            frame = table(app, "Strategy", "Symbol", "Side", heading)
            shown = list(zip(frame["Strategy"], frame["Symbol"], frame["Shares"], strict=True))
            expected = [(run.partition("/")[2], symbol, float(quantity)) for run, symbol, quantity in rows]
            comparison.equal(heading, shown, expected)
    return comparison
