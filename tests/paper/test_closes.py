"""What is held is worth its last known close: without a bar, over restarts, and when its symbol left the config."""

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
from finrl_pod.paper.execution.order_plan import sizing_rules
from finrl_pod.paper.execution.risk import RiskState
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.closes import Closes
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.records import ActionKind, CorporateAction
from finrl_pod.paper.runtime.replay import replay
from finrl_pod.types import Floats, Panel, Window
from tests.paper.factories import FixedSource, FunctionStrategy, RotatingStrategy, SimulatedDaemon, config, prices

NOW = datetime(2024, 1, 9, 14, tzinfo=UTC)
TIGHT = config(risk=replace(config().risk, daily_loss=0.1, drawdown=0.1))


def even(window: Window) -> Floats:
    return np.full(len(window.symbols), 0.9 / len(window.symbols))


def without(panel: Panel, symbol: int, *days: str) -> Panel:
    """The panel with gaps."""
    gaps = np.isin(panel.times.astype("datetime64[D]"), np.array(days, dtype="datetime64[D]"))
    columns = {name: getattr(panel, name).copy() for name in ("open", "high", "low", "close", "volume")}
    for values in columns.values():
        values[gaps, symbol] = np.nan
    return make_panel(panel.times, list(panel.symbols), columns, name="made", source="made", allow_gaps=True)


def close_of(symbol: int, day: str) -> Decimal:
    panel = prices()
    (row,) = np.flatnonzero(panel.times.astype("datetime64[D]") == np.datetime64(day))
    return Decimal(repr(float(panel.close[row, symbol])))


def worth(sim: SimulatedDaemon, *days: str) -> Decimal:
    """Own equity with AA, BB and CC at their closes of those days."""
    held = zip(("AA", "BB", "CC"), range(3), days, strict=True)
    return sim.daemon.trader.cash + sum(sim.daemon.trader.positions[s] * close_of(n, day) for s, n, day in held)


def mark(sim: SimulatedDaemon, session: str) -> Decimal:
    return Decimal(sim.store.last(schema.equity, schema.equity.c.session == session).equity)


def test_two_days_without_a_bar_and_a_restart_are_no_loss_and_sell_nothing(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, TIGHT, FunctionStrategy(even), without(prices(), 0, "2024-01-10", "2024-01-11"))
    sim.day(date(2024, 1, 10))
    assert sim.daemon.trader.positions["AA"] > 0
    for day, bar in (("2024-01-11", "2024-01-10"), ("2024-01-12", "2024-01-11")):
        expected = worth(sim, "2024-01-09", bar, bar)
        sim.restart()
        sim.run_to(datetime.fromisoformat(f"{day}T14:10+00:00"))
        assert mark(sim, bar) == expected
        intents = [i for i in sim.intents() if i.bar == bar]
        assert "AA" not in {i.symbol for i in intents}
        assert all(Decimal(i.quantity) * Decimal(i.reference_price) < expected / 50 for i in intents)
        sim.day(date.fromisoformat(day))
    assert sim.daemon._c.risk.state is RiskState.ACTIVE
    sim.check_agreement()


def test_replay_and_backtest_agree_where_bars_are_missing(tmp_path: Path) -> None:
    panel = without(prices(), 0, "2024-01-11", "2024-01-12", "2024-01-18", "2024-01-25")
    first, last = date(2024, 1, 8), date(2024, 2, 2)
    played = replay(config(), panel, FixedSource(RotatingStrategy()), first, last, tmp_path / "j.sqlite")
    days = [str(day) for day in panel.times.astype("datetime64[D]")]
    market = build_market(panel, (), (0, 10))
    terms = (days.index(str(first)), days.index(str(last)), sizing_rules(config()), config().capital)
    tested = backtest_paper(RotatingStrategy(), panel, market, *terms, "open")
    assert [equity for _, equity in played.equity] == list(tested.equity)


def test_shares_of_a_symbol_removed_from_the_config_are_alerted_once_and_valued(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, TIGHT, FunctionStrategy(even))
    sim.day(date(2024, 1, 9))
    held = sim.daemon.trader.positions["CC"]
    assert held > 0
    sim.config = replace(TIGHT, symbols=("AA", "BB"))
    asked: list[Any] = []
    sim.broker.overrides["corporate_actions"] = lambda true, symbols, *days: asked.append(symbols) or ()
    sim.restart()
    expected = worth(sim, "2024-01-09", "2024-01-09", "2024-01-08")
    sim.day(date(2024, 1, 11))
    told = [message for _, kind, message in sim.alerts if kind == "left_out"]
    assert len(told) == 1
    assert told[0].startswith(f"{held} own shares of CC are held")
    assert "paper flatten" in told[0]
    assert mark(sim, "2024-01-09") == expected
    bought = [i for i in sim.intents() if i.bar == "2024-01-09" and i.side == "buy"]
    assert {i.symbol for i in bought} == {"AA", "BB"}  # what was CC's share of what is traded is theirs now
    assert {sim.state_of(i) for i in bought} == {"done"}
    assert sim.daemon.trader.positions["CC"] == held
    assert set(asked[-1]) == {"AA", "BB", "CC"}  # a split would change these shares as well
    assert sim.daemon._c.risk.state is RiskState.ACTIVE
    sim.check_agreement()


@pytest.fixture
def store(tmp_path: Path) -> Any:
    made = Store.create_or_open(tmp_path / "journal.sqlite")
    yield made
    made.close()


def test_closes_are_written_once_and_survive(store: Store) -> None:
    closes = Closes(store)
    for _ in range(2):
        closes.record("2024-01-08", {"A": Decimal("10.50"), "B": Decimal(7)}, NOW)
    closes.record("2024-01-09", {"A": Decimal(11)}, NOW)
    assert store.count(schema.closes) == 3
    assert Closes(store).prices == closes.prices == {"A": Decimal(11), "B": Decimal(7)}


@pytest.mark.parametrize(("ex_date", "price"), [("2024-01-09", "5"), ("2024-01-08", "10")])
def test_a_split_divides_a_close_from_before_it_alone(store: Store, ex_date: str, price: str) -> None:
    closes = Closes(store)
    closes.record("2024-01-08", {"A": Decimal(10), "B": Decimal(7)}, NOW)
    split = CorporateAction("s", ActionKind.SPLIT, "A", date.fromisoformat(ex_date), new=Decimal(2))
    changed = closes.adjusted_for(split)
    with store.write() as connection:
        closes.write(connection, changed, NOW)
    closes.apply(changed)
    assert Closes(store).prices == closes.prices == {"A": Decimal(price), "B": Decimal(7)}


def test_a_dividend_in_cash_leaves_a_close_as_it_is(store: Store) -> None:
    closes = Closes(store)
    closes.record("2024-01-08", {"A": Decimal(10)}, NOW)
    paid = CorporateAction("d", ActionKind.CASH_DIVIDEND, "A", date(2024, 1, 9), cash=Decimal(1))
    assert closes.adjusted_for(paid) == {}
