"""Decisions within the session: cycles, bars made from minutes, and orders."""

from __future__ import annotations

import dataclasses
import itertools
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finrl_pod.errors import ConfigError, DataError
from finrl_pod.paper.brokers.simulated import SimulatedBroker
from finrl_pod.paper.domain.intents import client_order_id
from finrl_pod.paper.domain.port import BarTable
from finrl_pod.paper.domain.records import OrderStatus, Side, TimeInForce
from finrl_pod.paper.domain.schedule import Calendar, intraday_cycles
from finrl_pod.paper.execution.price_check import aggregate, check_minute_prices
from finrl_pod.paper.journal import schema
from finrl_pod.paper.runtime.replay import replay
from finrl_pod.paper.settings import DataSettings, IntradaySettings, parse
from finrl_pod.types import Panel
from tests.paper.factories import FixedSource, FunctionStrategy, SimulatedDaemon, config, own_orders, prices

DAY = date(2024, 1, 9)
OPENING = datetime(2024, 1, 9, 14, 30, tzinfo=UTC)
HALF_HOURS = IntradaySettings(30)
SETTINGS = config(intraday=HALF_HOURS, data=DataSettings(window=20))


class IntradayBroker(SimulatedBroker):
    """Serves minute bars and last trades on the line from open to close, on which it also fills DAY orders."""

    def minute_bars(self, symbols: Any, start: datetime, end: datetime, adjustment: Any) -> BarTable:
        times, rows = [], []
        for session in Calendar().sessions(start.date(), end.date()):
            at = session.open
            while at < session.close and at < end and at < self._clock.now():
                if at >= start:
                    times.append(np.datetime64(at.replace(tzinfo=None), "ns"))
                    rows.append([[self.at(s, session, at), self.at(s, session, at + MINUTE)] for s in symbols])
                at += MINUTE
        table = np.array(rows).reshape(len(times), len(symbols), 2)
        first, last = table[..., 0], table[..., 1]
        volume = np.full(first.shape, 100.0)
        ends = np.maximum(first, last), np.minimum(first, last)
        return BarTable(np.array(times, "datetime64[ns]"), tuple(symbols), first, *ends, last, volume, "line")

    def latest(self, symbols: Any) -> Any:
        now = self._clock.now()
        session = next(s for s in Calendar().sessions(now.date(), now.date()) if s.open <= now)
        return {s: (Decimal(repr(self.at(s, session, min(now, session.close)))), now) for s in symbols}

    def at(self, symbol: str, session: Any, moment: datetime) -> float:
        path = self._prices.session_path(symbol, session)
        assert path is not None
        return round(path[0] + (path[1] - path[0]) * ((moment - session.open) / (session.close - session.open)), 6)


MINUTE = timedelta(minutes=1)


def alternate(window: Any) -> Any:
    """Changes hands at every half hour."""
    bar = int(window.times[-1].astype("datetime64[m]").astype(int)) // 30
    return np.array([0.4, 0.2, 0.2] if bar % 2 else [0.1, 0.4, 0.4])


def hold(_: Any) -> Any:
    return np.full(3, 0.3)


# ---------------------------------------------------------------------- cycles and bars


def test_cycles_of_a_session() -> None:
    (session,) = Calendar().sessions(DAY, DAY)
    cycles = intraday_cycles(session, HALF_HOURS)
    assert [c.time for c in cycles] == [session.open + 30 * k * MINUTE for k in range(1, 13)]
    assert cycles[0].id == "2024-01-09T15:00"
    assert cycles[0].opens == session.open + timedelta(minutes=30, seconds=10)
    assert cycles[-1].ends == session.close
    assert all(a.ends == b.time for a, b in itertools.pairwise(cycles))


def test_half_day_has_fewer_cycles() -> None:
    (session,) = Calendar().sessions(date(2024, 11, 29), date(2024, 11, 29))
    assert len(intraday_cycles(session, HALF_HOURS)) == 6


def test_ids_of_decisions_within_a_session_are_readable_and_unique() -> None:
    found = {client_order_id("run", f"2024-01-09T15:{m:02}", "AA", Side.BUY, 0) for m in range(60)}
    assert "fp1.run.202401091500.AA.b0" in found
    assert len(found) == 60


def test_aggregated_bars_equal_a_plain_loop() -> None:
    (session,) = Calendar().sessions(DAY, DAY)
    draw = np.random.default_rng(0)
    minutes = np.sort(draw.choice(400, 250, replace=False)) - 5  # some before the open and after the close
    times = np.datetime64(session.open.replace(tzinfo=None), "ns") + minutes.astype("timedelta64[m]")
    columns = {name: draw.uniform(1, 2, (250, 2)) for name in ("open", "high", "low", "close", "volume")}
    missing = draw.random((250, 2)) < 0.3
    table = BarTable(
        times=times, symbols=("A", "B"), feed="f", **{k: np.where(missing, np.nan, v) for k, v in columns.items()}
    )
    found = aggregate(table, [session], timedelta(minutes=7))
    for row, start in enumerate(found.times):
        inside = (times >= start) & (times < start + np.timedelta64(7, "m"))
        inside &= times < np.datetime64(session.close.replace(tzinfo=None))
        for n in range(2):
            bars = [i for i in np.flatnonzero(inside) if not missing[i, n]]
            values = [
                found.open[row, n],
                found.high[row, n],
                found.low[row, n],
                found.close[row, n],
                found.volume[row, n],
            ]
            if not bars:
                assert np.isnan(values).all()
                continue
            expected = [
                columns["open"][bars[0], n], columns["high"][bars, n].max(), columns["low"][bars, n].min(),
                columns["close"][bars[-1], n], columns["volume"][bars, n].sum(),
            ]  # fmt: skip
            assert values == pytest.approx(expected)
    assert len(found.times) == len({int(m) // 7 for m in minutes if 0 <= m < 390})


def test_stale_missing_and_jumping_minutes() -> None:
    at = datetime(2024, 1, 9, 15, 0, tzinfo=UTC)
    times = np.array(["2024-01-09T14:30", "2024-01-09T15:00"], "datetime64[ns]")
    close = np.array([[10.0, 10.0, 10.0], [10.1, np.nan, 20.0]])
    table = BarTable(times, ("A", "B", "C"), close, close, close, close, close, "f")
    found = check_minute_prices(table, at, 30, 0.4)
    assert found.closes == {"A": Decimal("10.1"), "C": Decimal("20.0")}
    assert set(found.problems) == {"B", "C"}
    assert found.halted_symbols == {"C"}
    with pytest.raises(DataError, match="stale"):
        check_minute_prices(table, at + timedelta(minutes=30), 30, 0.4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"intraday": {"minutes": 5}, "orders": {"funding": "after_sales"}}, "send all orders at once"),
        ({"intraday": {"minutes": 5}, "data": {"window": 0}}, "data.window must be the number of bars"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse({"strategy": "buy_and_hold", "symbols": ["A"], **settings})


def test_replays_of_daily_bars_refuse_decisions_within_the_session(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a replay has daily bars"):
        replay(SETTINGS, prices(), [FixedSource(FunctionStrategy(hold))], DAY, date(2024, 1, 12), tmp_path / "j.sqlite")


# ---------------------------------------------------------------------- the daemon


def intraday(folder: Path, strategy: Any, panel: Panel | None = None, **settings: Any) -> SimulatedDaemon:
    changed = dataclasses.replace(SETTINGS, intraday=dataclasses.replace(HALF_HOURS, **settings))
    return SimulatedDaemon(folder, changed, FunctionStrategy(strategy), panel=panel, kind=IntradayBroker)


@pytest.mark.slow
def test_decides_on_every_bar_and_orders_at_once(tmp_path: Path) -> None:
    sim = intraday(tmp_path, alternate)
    sim.day(DAY)
    decisions = sim.store.rows(schema.decisions)
    assert [row.bar for row in decisions] == [
        c.id for c in intraday_cycles(Calendar().sessions(DAY, DAY)[0], HALF_HOURS)
    ]
    assert {row.outcome for row in decisions} == {"orders"}
    sent = own_orders(sim)
    assert len(sent) > 20
    assert {order.time_in_force for order in sent} == {TimeInForce.DAY}
    assert {order.status for order in sent} == {OrderStatus.FILLED}
    assert all(timedelta(0) <= (o.submitted_at - OPENING) % timedelta(minutes=30) < 2 * MINUTE for o in sent)
    sim.assert_journal_matches_broker()
    sim.day(date(2024, 1, 10))
    marks = sim.store.rows(schema.equity)
    assert [row.session for row in marks] == ["2024-01-08", "2024-01-09"]
    days = [str(day) for day in sim.panel.times.astype("datetime64[D]")]
    closes = dict(zip(sim.panel.symbols, sim.panel.close[days.index("2024-01-09")], strict=True))
    held: dict[str, float] = dict.fromkeys(closes, 0.0)
    cash = 100_000.0
    for order in sent:
        signed = float(order.side.sign * order.filled_quantity)
        held[order.symbol] += signed
        cash -= signed * float(order.filled_average_price)
    assert float(marks[1].equity) == pytest.approx(cash + sum(held[s] * closes[s] for s in held), rel=1e-6)


@pytest.mark.slow
def test_an_unfilled_order_is_cancelled_before_the_next_decision(tmp_path: Path) -> None:
    sim = intraday(tmp_path, alternate)
    sim.broker.broker.__class__ = type("Unfilled", (IntradayBroker,), {"_fill_within_session": lambda *_: None})
    sim.run_to(OPENING + timedelta(minutes=100))
    sent = own_orders(sim)
    assert len({o.client_order_id.split(".")[2] for o in sent}) == 3
    live = [order for order in sent if order.live]
    assert {o.client_order_id.split(".")[2] for o in live} == {"202401091600"}
    assert {order.status for order in sent if not order.live} == {OrderStatus.CANCELED}


@pytest.mark.slow
def test_restart_within_the_session_continues(tmp_path: Path) -> None:
    sim = intraday(tmp_path, alternate)
    sim.run_to(OPENING + timedelta(minutes=45))
    sim.clock.sleep(3600.0)
    sim.restart()
    sim.day(DAY)
    assert len(sim.store.rows(schema.decisions)) == 10
    assert [m for _, kind, m in sim.alerts if kind == "missed"] == ["2 decisions were missed while the daemon was down"]
    sim.assert_journal_matches_broker()
