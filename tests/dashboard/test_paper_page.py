"""The paper page of an account of two strategies: figures, periods and filters against the rows of its journal."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store
from tests.dashboard import journal_arithmetic
from tests.dashboard.page_figures import table
from tests.dashboard.synthetic_journal import write_account

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with one paper account."""
    folder = tmp_path_factory.mktemp("paper page") / "runs" / "paper" / "own"
    folder.mkdir(parents=True)
    write_account(folder / "journal.sqlite")
    return folder.parents[1]


def journal_of(runs: Path) -> Path:
    return runs / "paper" / "own" / "journal.sqlite"


def test_profit_of_each_session(visit: Callable[..., Any], runs: Path) -> None:
    app = visit("paper", runs)
    assert not app.exception
    days = journal_arithmetic.days(journal_of(runs))
    frame = table(app, "Day", "Profit", "Deposits")
    assert frame.Day.tolist() == [day.session for day in days[::-1]]
    assert frame.Profit.tolist() == pytest.approx([float(day.profit) for day in days[::-1]], abs=1e-6)
    by_asset = table(app, "Asset", "Profit", "Contribution")
    expected = journal_arithmetic.contributions(days, 1)
    shown = dict(zip(by_asset.Asset, by_asset.Contribution, strict=True))
    assert shown == pytest.approx({symbol: 100 * float(value) for symbol, value in expected.items()})


def test_all_figures_follow_the_period(visit: Callable[..., Any], runs: Path) -> None:
    days = journal_arithmetic.days(journal_of(runs))
    last = days[-1]
    week = [day for day in days if day.session > "2024-01-30"]  # the last session is 2024-02-06
    app = visit("paper", runs, period="1W")
    assert table(app, "Day", "Profit").Day.tolist() == [day.session for day in week[::-1]]
    figures = {metric.label: metric.value for metric in app.metric}
    total = float(journal_arithmetic.time_weighted_return(week))
    assert figures["Return"] == f"{100 * total:+.2f}%"
    assert figures["Equity"] == f"${last.end:,.0f}"
    assert figures["Cash"] == f"${last.cash:,.0f}"
    orders = table(visit("paper", runs, period="1W", view="Orders and fills"), "Symbol", "Side", "State")
    with sqlite3.connect(journal_of(runs)) as base:
        start = base.execute("SELECT at FROM equity WHERE session = '2024-01-30'").fetchone()
        assert len(orders) == base.execute("SELECT count(*) FROM orders WHERE at > ?", start).fetchone()[0]


def test_only_fields_choose_in_a_single_view(visit: Callable[..., Any], runs: Path) -> None:
    app = visit("paper", runs, by="Week")
    assert [control.label for control in app.segmented_control] == ["Period"]  # as in the other views
    assert app.selectbox(key="by").value == "Week"
    assert len(table(app, "Week", "Profit"))


def test_orders_and_fills_are_filtered(visit: Callable[..., Any], runs: Path) -> None:
    app = visit("paper", runs, view="Orders and fills")
    tables = [table(app, "Strategy", "Symbol", "Side", heading) for heading in ("State", "Fee")]
    assert all(set(frame.Strategy) == {"one", "two"} for frame in tables)
    query = {"strategy": "two", "symbol": "BB", "from": "2024-01-16", "to": "2024-01-31"}
    app = visit("paper", runs, view="Orders and fills", **query)
    with sqlite3.connect(journal_of(runs)) as base:
        expected = base.execute(
            "SELECT count(*) FROM fills f JOIN orders o ON f.order_id = o.id JOIN intents i ON o.intent_id = i.id "
            "WHERE i.run = 'test/two' AND i.symbol = 'BB' AND f.time BETWEEN '2024-01-16' AND '2024-02-01'"
        ).fetchone()[0]
    for heading in ("State", "Fee"):
        frame = table(app, "Strategy", "Symbol", "Side", heading)
        assert (set(frame.Strategy), set(frame.Symbol)) == ({"two"}, {"BB"})
        assert len(frame) == expected > 0


def test_title_reports_a_halt_and_a_mismatch(
    visit: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import streamlit as st

    titles: list[str] = []
    monkeypatch.setattr(st, "set_page_config", lambda page_title: titles.append(page_title))
    path = tmp_path / "runs" / "paper" / "own" / "journal.sqlite"
    path.parent.mkdir(parents=True)
    store = Store.create_or_open(path)
    visit("paper", tmp_path / "runs")
    store.add(schema.risk_states, datetime.now(UTC), state="halted", reason="by hand")
    visit("paper", tmp_path / "runs")
    store.add(schema.alerts, datetime.now(UTC), level="critical", kind="mismatch", message="AA differs")
    visit("paper", tmp_path / "runs")
    store.add(schema.risk_states, datetime.now(UTC), state="active", reason="by hand")
    store.close()
    visit("paper", tmp_path / "runs")
    ending = "Paper trading · finrl_pod"
    assert titles == [ending, f"Halted · {ending}", f"Halted, mismatch · {ending}", f"Mismatch · {ending}"]


def test_prices_have_own_fills(visit: Callable[..., Any], runs: Path) -> None:
    app = visit("paper", runs, view="Prices", chart="BB")
    assert not app.exception
    assert not app.error
    with sqlite3.connect(journal_of(runs)) as base:
        count = base.execute(
            "SELECT count(*) FROM fills f JOIN orders o ON f.order_id = o.id JOIN intents i ON o.intent_id = i.id "
            "WHERE i.symbol = 'BB'"
        ).fetchone()[0]
    assert len(table(app, "Time", "Side", "Price")) == count
