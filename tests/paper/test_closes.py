"""Positions are valued at their last known close: without a bar, after restarts, and after a symbol was removed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finrl_pod.data.panel import make_panel
from finrl_pod.data.tensor import build_market
from finrl_pod.evaluate.paper_backtest import backtest_paper
from finrl_pod.paper.domain.records import ActionKind, CorporateAction
from finrl_pod.paper.execution.sizing import sizing_rules
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.closes import Closes
from finrl_pod.paper.journal.commands import RiskState
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.runtime.replay import replay
from finrl_pod.types import Floats, Panel, Window
from tests.paper.factories import FixedSource, FunctionStrategy, RotatingStrategy, SimulatedDaemon, config, prices

NOW = datetime(2024, 1, 9, 14, tzinfo=UTC)
TIGHT = config(risk=replace(config().risk, daily_loss=0.1, drawdown=0.1))


def equal_weights(window: Window) -> Floats:
    return np.full(len(window.symbols), 0.9 / len(window.symbols))


def with_gaps(panel: Panel, symbol: int, *days: str) -> Panel:
    """Set the bars of one symbol to NaN on the given days."""
    gaps = np.isin(panel.times.astype("datetime64[D]"), np.array(days, dtype="datetime64[D]"))
    columns = {name: getattr(panel, name).copy() for name in ("open", "high", "low", "close", "volume")}
    for values in columns.values():
        values[gaps, symbol] = np.nan
    return make_panel(panel.times, list(panel.symbols), columns, name="synthetic", source="synthetic", allow_gaps=True)


def close_of(symbol: int, day: str) -> Decimal:
    panel = prices()
    (row,) = np.flatnonzero(panel.times.astype("datetime64[D]") == np.datetime64(day))
    return Decimal(repr(float(panel.close[row, symbol])))


def equity_at_closes(sim: SimulatedDaemon, *days: str) -> Decimal:
    """Own equity with AA, BB and CC valued at their closes of the given days."""
    held = zip(("AA", "BB", "CC"), range(3), days, strict=True)
    return sim.daemon.trader.cash + sum(sim.daemon.trader.positions[s] * close_of(n, day) for s, n, day in held)


def recorded_equity(sim: SimulatedDaemon, session: str) -> Decimal:
    return Decimal(sim.store.last(schema.equity, schema.equity.c.session == session).equity)


@pytest.mark.slow
def test_missing_bars_and_restarts_cause_no_loss_and_no_sales(tmp_path: Path) -> None:
    sim = SimulatedDaemon(
        tmp_path, TIGHT, FunctionStrategy(equal_weights), with_gaps(prices(), 0, "2024-01-10", "2024-01-11")
    )
    sim.day(date(2024, 1, 10))
    assert sim.daemon.trader.positions["AA"] > 0
    for day, bar in (("2024-01-11", "2024-01-10"), ("2024-01-12", "2024-01-11")):
        expected = equity_at_closes(sim, "2024-01-09", bar, bar)
        sim.restart()
        sim.run_to(datetime.fromisoformat(f"{day}T14:10+00:00"))
        assert recorded_equity(sim, bar) == expected
        intents = [i for i in sim.intents() if i.bar == bar]
        assert "AA" not in {i.symbol for i in intents}
        assert all(Decimal(i.quantity) * Decimal(i.reference_price) < expected / 50 for i in intents)
        sim.day(date.fromisoformat(day))
    assert sim.daemon._c.risk.state is RiskState.ACTIVE
    sim.assert_journal_matches_broker()


@pytest.mark.slow
def test_replay_and_backtest_agree_where_bars_are_missing(tmp_path: Path) -> None:
    panel = with_gaps(prices(), 0, "2024-01-11", "2024-01-12", "2024-01-18", "2024-01-25")
    first, last = date(2024, 1, 8), date(2024, 2, 2)
    replayed = replay(config(), panel, [FixedSource(RotatingStrategy())], first, last, tmp_path / "j.sqlite")
    days = [str(day) for day in panel.times.astype("datetime64[D]")]
    market = build_market(panel, (), (0, 10))
    terms = (days.index(str(first)), days.index(str(last)), sizing_rules(config()), config().capital)
    backtested = backtest_paper(RotatingStrategy(), panel, market, *terms, "open")
    assert [equity for _, equity in replayed.equity] == list(backtested.equity)


@pytest.mark.slow
def test_shares_of_a_removed_symbol_are_alerted_once_and_valued(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, TIGHT, FunctionStrategy(equal_weights))
    sim.day(date(2024, 1, 9))
    held = sim.daemon.trader.positions["CC"]
    assert held > 0
    sim.config = replace(TIGHT, symbols=("AA", "BB"))
    requests: list[Any] = []
    sim.broker.overrides["corporate_actions"] = lambda original, symbols, *days: requests.append(symbols) or ()
    sim.restart()
    expected = equity_at_closes(sim, "2024-01-09", "2024-01-09", "2024-01-08")
    sim.day(date(2024, 1, 11))
    alerts = [message for _, kind, message in sim.alerts if kind == "left_out"]
    assert len(alerts) == 1
    assert alerts[0].startswith(f"{held} own shares of CC are held")
    assert "paper flatten" in alerts[0]
    assert recorded_equity(sim, "2024-01-09") == expected
    bought = [i for i in sim.intents() if i.bar == "2024-01-09" and i.side == "buy"]
    assert {i.symbol for i in bought} == {"AA", "BB"}  # the traded capital is divided among the remaining symbols
    assert {sim.intent_state(i) for i in bought} == {"done"}
    assert sim.daemon.trader.positions["CC"] == held
    assert set(requests[-1]) == {"AA", "BB", "CC"}  # corporate actions of CC still change its shares
    assert sim.daemon._c.risk.state is RiskState.ACTIVE
    sim.assert_journal_matches_broker()


@pytest.fixture
def store(tmp_path: Path) -> Any:
    store = Store.create_or_open(tmp_path / "journal.sqlite")
    yield store
    store.close()


def test_closes_are_written_once_and_read_after_reopening(store: Store) -> None:
    closes = Closes(store)
    for _ in range(2):
        closes.record("2024-01-08", {"A": Decimal("10.50"), "B": Decimal(7)}, NOW)
    closes.record("2024-01-09", {"A": Decimal(11)}, NOW)
    assert store.count(schema.closes) == 3
    assert Closes(store).prices == closes.prices == {"A": Decimal(11), "B": Decimal(7)}


@pytest.mark.parametrize(("ex_date", "price"), [("2024-01-09", "5"), ("2024-01-08", "10")])
def test_split_adjusts_only_closes_before_the_ex_date(store: Store, ex_date: str, price: str) -> None:
    closes = Closes(store)
    closes.record("2024-01-08", {"A": Decimal(10), "B": Decimal(7)}, NOW)
    split = CorporateAction("s", ActionKind.SPLIT, "A", date.fromisoformat(ex_date), new=Decimal(2))
    changed = closes.adjusted_for(split)
    with store.write() as connection:
        closes.write(connection, changed, NOW)
    closes.apply(changed)
    assert Closes(store).prices == closes.prices == {"A": Decimal(price), "B": Decimal(7)}


def test_cash_dividend_does_not_change_closes(store: Store) -> None:
    closes = Closes(store)
    closes.record("2024-01-08", {"A": Decimal(10)}, NOW)
    paid = CorporateAction("d", ActionKind.CASH_DIVIDEND, "A", date(2024, 1, 9), cash=Decimal(1))
    assert closes.adjusted_for(paid) == {}
