"""Profit and loss of the paper page against arithmetic on the rows of the journal."""

from __future__ import annotations

import sqlite3
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pytest
from finrl_pod_app.dashboard.figures import paper as figures
from finrl_pod_app.dashboard.queries import paper_account, paper_journal, paper_state
from finrl_pod_app.dashboard.queries.paper_journal import Journal
from finrl_pod_app.dashboard.queries.paper_period import Period, first_session, in_period
from finrl_pod_app.dashboard.queries.paper_prices import price_history
from finrl_pod_app.dashboard.queries.paper_profit import (
    UNASSIGNED,
    Interval,
    profit_and_loss,
    profit_by_interval,
    profit_by_part,
)

from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.settings import StrategyConfig
from tests.dashboard import journal_arithmetic
from tests.dashboard.synthetic_journal import SyntheticJournal, settings, write_account


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two strategies that trade five weeks, with fees, a deposit, a withdrawal, dividends and a split."""
    file = tmp_path_factory.mktemp("profit") / "journal.sqlite"
    write_account(file)
    return file


@pytest.fixture(scope="module")
def journal(path: Path) -> Journal:
    return paper_journal.load(path)


def test_profit_by_day_is_the_change_of_equity_without_flows(path: Path, journal: Journal) -> None:
    days = journal_arithmetic.days(path)
    assert sum(day.flow != 0 for day in days) == 2
    frame = profit_by_interval(profit_and_loss(journal), Interval.DAY)
    assert frame.label.tolist() == [day.session for day in days]
    assert frame.profit.tolist() == pytest.approx([float(day.profit) for day in days], abs=1e-6)
    assert frame["return"].tolist() == pytest.approx([float(day.rate) for day in days])
    assert frame.flow.tolist() == [float(day.flow) for day in days]
    assert frame.equity.tolist() == pytest.approx([float(day.end) for day in days])
    for place, name in enumerate(("prices", "dividends", "costs")):
        expected = [float(sum(amounts[place] for amounts in day.profits.values())) for day in days]
        assert frame[name].tolist() == pytest.approx(expected, abs=1e-6)
    assert frame.dividends.sum() > 10
    assert frame.costs.sum() < -10


@pytest.mark.parametrize("period", list(Period))
@pytest.mark.parametrize(("column", "place"), [("strategy", 0), ("symbol", 1)])
def test_profit_by_part_adds_up_to_the_return(
    path: Path, journal: Journal, period: Period, column: str, place: int
) -> None:
    days = journal_arithmetic.days(path)
    days = days[first_session(journal.equity.session, period) :]
    profit = profit_and_loss(journal, period)
    frame = profit_by_part(profit, column).set_index(column)  # type: ignore[arg-type]
    expected = journal_arithmetic.profits(days, place)
    contributions = journal_arithmetic.contributions(days, place)
    assert UNASSIGNED not in frame.index
    assert len(frame) >= 2
    for name, row in frame.iterrows():
        key = f"test/{name}" if column == "strategy" else name
        amounts = [float(amount) for amount in expected[key]]
        assert [row.prices, row.dividends, row.costs] == pytest.approx(amounts, abs=1e-6)
        assert row.profit == pytest.approx(sum(amounts), abs=1e-6)
        assert row.contribution == pytest.approx(float(contributions[key]), abs=1e-12)
    total = float(journal_arithmetic.time_weighted_return(days))
    assert profit.total_return == pytest.approx(total)
    assert frame.contribution.sum() == pytest.approx(total, abs=1e-9)


def test_return_without_flows_is_the_growth_of_equity(journal: Journal) -> None:
    """The equity scaled by later flows has the same return."""
    total = profit_and_loss(journal).total_return
    assert total == pytest.approx(journal.equity.equity.iloc[-1] / journal.capital - 1)
    assert total != pytest.approx(journal.equity.recorded.iloc[-1] / journal.allocated - 1, abs=0.05)


def test_no_fees_are_shown_without_a_sign(tmp_path: Path) -> None:
    account = settings(strategies=(StrategyConfig("one", "equal_weight", share=1.0),))
    writer = SyntheticJournal(tmp_path / "journal.sqlite", account, date(2024, 1, 9))
    writer.fee_rate = Decimal(0)
    writer.trade(2)
    writer.store.close()
    frame = profit_by_interval(profit_and_loss(paper_journal.load(tmp_path / "journal.sqlite")), Interval.DAY)
    assert [f"{cost:.2f}" for cost in frame.costs] == ["0.00", "0.00"]


def test_weeks_and_months_sum_their_sessions(journal: Journal) -> None:
    profit = profit_and_loss(journal)
    sessions = profit.sessions
    weeks = profit_by_interval(profit, Interval.WEEK)
    assert weeks.label.tolist() == ["2024-01-08", "2024-01-15", "2024-01-22", "2024-01-29", "2024-02-05"]
    in_week = sessions[(sessions.session >= "2024-01-15") & (sessions.session < "2024-01-22")]
    assert weeks.profit[1] == pytest.approx(in_week.profit.sum())
    assert weeks["return"][1] == pytest.approx((1 + in_week["return"]).prod() - 1)
    months = profit_by_interval(profit, Interval.MONTH)
    assert months.label.tolist() == ["2024-01", "2024-02"]
    assert months.profit.sum() == pytest.approx(sessions.profit.sum())


@pytest.mark.parametrize(
    ("period", "first"),
    [
        (Period.DAY, "2024-03-28"),
        (Period.WEEK, "2024-03-22"),
        (Period.MONTH, "2024-02-29"),
        (Period.YEAR_TO_DATE, "2024-01-02"),
        (Period.ALL, "2023-12-01"),
    ],
)
def test_first_session_of_a_period(period: Period, first: str) -> None:
    day = date(2023, 12, 1)
    days = [day + timedelta(days=n) for n in range(119)]  # to 2024-03-28, a Thursday
    sessions = pd.Series([str(d) for d in days if d.weekday() < 5 and str(d) != "2024-01-01"])
    assert sessions[first_session(sessions, period)] == first


@pytest.mark.parametrize("period", list(Period))
def test_journal_of_a_period_has_its_return_and_trades(path: Path, journal: Journal, period: Period) -> None:
    days = journal_arithmetic.days(path)
    first = first_session(journal.equity.session, period)
    part = in_period(journal, period)
    summary = paper_state.summary(part)
    assert summary.total == pytest.approx(float(journal_arithmetic.time_weighted_return(days[first:])))
    assert summary.day == pytest.approx(float(days[-1].rate))
    count = "SELECT count(*) FROM fills WHERE at > (SELECT coalesce(max(at), '') FROM equity WHERE session < ?)"
    with sqlite3.connect(path) as base:
        assert len(part.fills) == base.execute(count, (days[first].session,)).fetchone()[0] > 0
    assert part.cash == journal.cash
    assert in_period(journal, period) is part


def test_empty_journal_has_no_profit(tmp_path: Path) -> None:
    Store.create_or_open(tmp_path / "journal.sqlite").close()
    profit = profit_and_loss(paper_journal.load(tmp_path / "journal.sqlite"), Period.WEEK)
    assert profit.sessions.empty
    assert profit.total_return == 0.0


def test_books_of_the_strategies_add_up_to_the_account(path: Path, journal: Journal) -> None:
    frame = paper_account.books(journal).set_index("strategy")
    assert frame.index.tolist() == ["one", "two"]
    last = journal_arithmetic.days(path)[-1]
    assert frame.value.tolist() == pytest.approx([float(last.values[f"test/{name}"]) for name in frame.index])
    assert frame.cash.sum() == pytest.approx(float(last.cash))
    assert frame.equity.sum() == pytest.approx(float(last.end))
    assert journal.cash == pytest.approx(float(last.cash))
    assert frame.share.sum() == pytest.approx(1.0)
    assert paper_account.positions(journal).value.sum() == pytest.approx(frame.value.sum())


def test_targets_are_weighted_by_shares_of_equity(journal: Journal) -> None:
    one, two = paper_account.books(journal).share
    expected = {"AA": 0.3 * one + 0.6 * two, "BB": 0.5 * one, "CC": 0.1 * one + 0.2 * two}
    assert paper_account.target_weights(journal) == pytest.approx(expected)
    frame = paper_account.positions(journal).set_index("symbol")
    assert frame.target.to_dict() == pytest.approx(expected)
    assert frame.distance.to_dict() == pytest.approx((frame.weight - frame.target).to_dict())


def test_price_history_is_in_the_shares_of_today(path: Path, journal: Journal) -> None:
    history = price_history(journal, Period.ALL, "BB")
    with sqlite3.connect(path) as base:
        ((split,),) = base.execute("SELECT at FROM corporate_actions WHERE kind = 'split'").fetchall()
        closes = base.execute("SELECT at, price FROM closes WHERE symbol = 'BB' AND at != ? ORDER BY id", (split,))
        prices = [float(price) / (2 if at < split else 1) for at, price in closes]
        query = (
            "SELECT f.at, i.side, f.quantity, f.price FROM fills f JOIN orders o ON f.order_id = o.id "
            "JOIN intents i ON o.intent_id = i.id WHERE i.symbol = 'BB' ORDER BY f.id"
        )
        fills = [(at, side, float(quantity), float(price)) for at, side, quantity, price in base.execute(query)]
    assert history.closes.price.tolist() == pytest.approx(prices)
    factors = [2 if at < split else 1 for at, *_ in fills]
    assert set(factors) == {1, 2}
    quantities = [factor * quantity for factor, (_, _, quantity, _) in zip(factors, fills, strict=True)]
    assert history.fills.quantity.tolist() == quantities
    assert history.fills.price.tolist() == pytest.approx(
        [price / factor for factor, (*_, price) in zip(factors, fills, strict=True)]
    )
    signed = sum(q if side == "buy" else -q for q, (_, side, *_) in zip(quantities, fills, strict=True))
    assert history.closes.shares.iloc[-1] == pytest.approx(signed)
    assert history.closes.shares.iloc[-1] == pytest.approx(
        paper_account.positions(journal).set_index("symbol").shares["BB"]
    )
    week = price_history(journal, Period.WEEK, "BB")
    assert week.closes.session.iloc[0] == "2024-01-30"
    assert len(week.fills) < len(history.fills)


def test_figures_draw_profit_and_contributions(journal: Journal) -> None:
    profit = profit_and_loss(journal)
    figure = figures.profit(profit, Interval.WEEK)
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert [bar.name for bar in bars] == ["one", "two"]
    weeks = profit_by_interval(profit, Interval.WEEK)
    assert list(figure.data[-1].y) == pytest.approx(weeks.profit.cumsum().tolist())
    assert sum(bar.y.sum() for bar in bars) == pytest.approx(weeks.profit.sum())
    drawn = figures.contributions(profit).data
    assert sum(bar.x.sum() for bar in drawn) == pytest.approx(profit.total_return)
    history = price_history(journal, Period.ALL, "BB")
    closes, purchases, sales, shares = figures.prices(history).data
    assert len(purchases.x) + len(sales.x) == len(history.fills)
    assert list(closes.y) == history.closes.price.tolist()
    assert list(shares.y) == history.closes.shares.tolist()
