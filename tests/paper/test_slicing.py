"""Orders in slices: sizes, times, fallback, agreement of replay and backtest, and restarts between slices."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finrl_pod.data.tensor import build_market
from finrl_pod.errors import ConfigError
from finrl_pod.evaluate.paper_backtest import backtest_paper
from finrl_pod.market.optimal_execution import almgren_chriss_holdings
from finrl_pod.market.slicing import SlicePlan, even_profile, fill_on_path
from finrl_pod.paper.brokers.simulated import SimulatedBroker
from finrl_pod.paper.domain.port import BarTable
from finrl_pod.paper.domain.records import OrderType, TimeInForce
from finrl_pod.paper.domain.schedule import Calendar
from finrl_pod.paper.domain.slicing import SliceWindow, Slicing
from finrl_pod.paper.execution.modelled_slices import sliced_execution
from finrl_pod.paper.execution.sizing import sizing_rules
from finrl_pod.paper.execution.usual_volume import last_volumes, usual_volumes
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import CommandName, enqueue
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.monitoring.status import orders
from finrl_pod.paper.runtime.replay import replay
from finrl_pod.paper.settings import (
    BrokerSettings,
    OrderSettings,
    PaperConfig,
    ScheduleSettings,
    SlicingSettings,
    parse,
)
from tests.paper.factories import FixedSource, RotatingStrategy, SimulatedDaemon, config, own_orders, prices
from tests.paper.test_recovery import Killed, WriteKiller

TWAP = SlicingSettings("twap", minutes=30, interval_minutes=10)
OPENING = datetime(2024, 1, 9, 14, 30, tzinfo=UTC)
ONE = Decimal(1)


def run_plan(plan: SlicePlan, order: int) -> list[int]:
    left, sizes = Decimal(order), []
    for step in range(plan.steps):
        size = plan.quantity(step, Decimal(order), left, ONE)
        left -= size
        sizes.append(int(size))
    return sizes


# ---------------------------------------------------------------------- sizes


def test_twap_spreads_evenly_and_completes() -> None:
    assert run_plan(SlicePlan("twap", even_profile(4)), 100) == [25] * 4
    assert sorted(run_plan(SlicePlan("twap", even_profile(4)), 10)) == [2, 2, 3, 3]
    assert sum(run_plan(SlicePlan("twap", even_profile(12)), 5)) == 5


def test_vwap_follows_the_usual_volume() -> None:
    assert run_plan(SlicePlan("vwap", (0.5, 0.2, 0.3)), 1000) == [500, 200, 300]


def test_almgren_chriss_has_the_closed_form_of_its_holdings() -> None:
    sizes = run_plan(SlicePlan("almgren_chriss", even_profile(10), urgency=3.0), 100_000)
    holdings = almgren_chriss_holdings(100_000, 1.0, 10, 3.0)
    assert np.allclose(sizes, -np.diff(holdings), atol=1.0)
    assert sum(sizes) == 100_000


def test_participation_trades_its_share_of_the_volume_just_seen() -> None:
    plan = SlicePlan("participation", (0.5, 0.25, 0.25), volume=10_000, participation=0.1)
    assert plan.quantity(0, Decimal(5000), Decimal(5000), ONE) == 500
    # Twice the usual volume in the first slice: twice the usual volume is expected in the second.
    assert plan.quantity(1, Decimal(5000), Decimal(4500), ONE, last_volume=10_000) == 500
    assert plan.quantity(1, Decimal(5000), Decimal(4500), ONE) == 250
    assert run_plan(SlicePlan("participation", even_profile(4), volume=10_000), 100) == [25] * 4


@pytest.mark.parametrize("schedule", ["twap", "vwap", "almgren_chriss"])
def test_fractions_and_small_orders_complete(schedule: Any) -> None:
    plan = SlicePlan(schedule, even_profile(7))
    left, unit = Decimal("1.123456789"), Decimal("1e-9")
    for step in range(7):
        left -= plan.quantity(step, Decimal("1.123456789"), left, unit)
    assert left == 0
    assert sum(run_plan(plan, 1)) == 1


def test_unfilled_shares_move_to_later_slices() -> None:
    plan = SlicePlan("twap", even_profile(4))
    assert plan.quantity(2, Decimal(100), Decimal(100), ONE) == 50
    assert plan.quantity(3, Decimal(100), Decimal(100), ONE) == 100


# ---------------------------------------------------------------------- times


def test_window_and_due_slices() -> None:
    window = SliceWindow(OPENING, timedelta(minutes=10), 3)
    at = [OPENING + timedelta(minutes=m) for m in (-1, 0, 9, 10, 29, 30, 60)]
    assert [window.step(t) for t in at] == [-1, 0, 0, 1, 2, 3, 3]
    assert window.next_after(at[0]) == OPENING
    assert window.next_after(at[2]) == OPENING + timedelta(minutes=10)
    assert window.next_after(at[5]) is None
    rest, keep = (Slicing(window, SlicePlan("twap", even_profile(3)), f) for f in ("market", "next_session"))  # type: ignore[arg-type]
    assert [rest.due(t, None) for t in at] == [False, True, True, True, True, True, True]
    assert [keep.due(t, None) for t in at] == [False, True, True, True, True, False, False]
    assert not rest.due(at[2], at[1])  # sent in this slice already
    assert rest.due(at[3], at[1])
    assert not rest.due(at[6], at[5])  # the market order was sent
    assert Slicing.unpack(rest.pack()) == rest


def test_cycles_of_the_opening_and_the_closing_window() -> None:
    before, session = Calendar().sessions(date(2024, 1, 8), date(2024, 1, 9))
    opened = Calendar().cycle(session, before, ScheduleSettings("open", 30), TWAP)
    assert opened.window == SliceWindow(session.open, timedelta(minutes=10), 3)
    assert opened.opens == session.open - timedelta(minutes=30)
    assert opened.deadline == session.open + timedelta(minutes=20)
    closing = Calendar().cycle(session, before, ScheduleSettings("close", 30), TWAP)
    assert closing.window is not None
    assert closing.window.end == session.close - timedelta(minutes=5)
    assert closing.opens == closing.window.start - timedelta(minutes=30)


def test_half_day_shortens_the_window() -> None:
    before, session = Calendar().sessions(date(2024, 11, 27), date(2024, 11, 29))
    window = Calendar().cycle(session, before, ScheduleSettings("open"), SlicingSettings("twap", 380, 10)).window
    assert window is not None
    assert window.steps == 20
    assert window.end <= session.close - timedelta(minutes=5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slicing": {"schedule": "twap", "minutes": 60, "interval_minutes": 60}}, "2 to 80 slices"),
        ({"slicing": {"schedule": "twap", "minutes": 300, "interval_minutes": 1}}, "2 to 80 slices"),
        ({"slicing": {"schedule": "twap"}, "orders": {"funding": "after_sales"}}, "no effect on slices"),
        ({"orders": {"extended_hours": True, "collar": 0.0}}, "needs limit orders"),
        ({"orders": {"extended_hours": True}, "slicing": {"schedule": "vwap"}}, "sent before the open"),
        ({"orders": {"extended_hours": True}, "schedule": {"mode": "close"}}, "sent before the open"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse({"strategy": "buy_and_hold", "symbols": ["A"], **settings})


# ---------------------------------------------------------------------- the path within a session


@pytest.mark.parametrize(
    ("limit", "buys", "expected"),
    [
        (None, True, (0.25, 102.5)),
        (Decimal(105), True, (0.25, 102.5)),
        (Decimal(102), True, None),  # the price only rises
        (Decimal(105), False, (0.5, 105.0)),
        (Decimal(111), False, None),
    ],
)
def test_fill_on_a_line_from_open_to_close(limit: Decimal | None, *, buys: bool, expected: Any) -> None:
    assert fill_on_path(100.0, 110.0, 0.25, limit, buys=buys) == expected


# ---------------------------------------------------------------------- replay and backtest

SEVEN_BPS = BrokerSettings(kind="simulated", cost_bps=7)
FIRST, LAST = date(2024, 1, 8), date(2024, 1, 26)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        config(slicing=TWAP),
        config(slicing=SlicingSettings("almgren_chriss", 60, 5, urgency=3.0), schedule=ScheduleSettings("close")),
        config(slicing=SlicingSettings("vwap", 30, 10, fallback="next_session"), orders=OrderSettings(collar=0.003)),
        config(slicing=dataclasses.replace(TWAP, schedule="participation"), orders=OrderSettings(collar=0.003)),
        config(slicing=TWAP, orders=OrderSettings(fractional=True, collar=0.0), broker=SEVEN_BPS),
    ],
    ids=["twap", "almgren_chriss at the close", "limits, next session", "limits, market", "fractions at market"],
)  # fmt: skip
def test_replay_and_backtest_agree_exactly(tmp_path: Path, settings: PaperConfig) -> None:
    panel = prices()
    replayed = replay(settings, panel, [FixedSource(RotatingStrategy())], FIRST, LAST, tmp_path / "j.sqlite")
    days = [str(day) for day in panel.times.astype("datetime64[D]")]
    terms = (days.index(str(FIRST)), days.index(str(LAST)), sizing_rules(settings), settings.capital)
    tested = backtest_paper(
        RotatingStrategy(), panel, build_market(panel, (), (0, 10)), *terms, settings.schedule.mode,
        slicing=sliced_execution(settings, panel),
    )  # fmt: skip
    store = Store.open(tmp_path / "j.sqlite")
    filled: defaultdict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for order in orders(store):
        filled[order.bar, order.symbol] += order.filled
    store.close()
    assert filled == {(str(o.bar.astype("datetime64[D]")), o.symbol): abs(o.filled) for o in tested.orders}
    assert [equity for _, equity in replayed.equity] == pytest.approx(list(tested.equity), abs=Decimal("1e-6"))
    assert replayed.orders > 1.5 * len(filled)
    assert replayed.distance_to_target < 0.01 or settings.slicing.fallback == "next_session"


# ---------------------------------------------------------------------- the daemon


def slices(sim: SimulatedDaemon, bar: str = "2024-01-08") -> dict[str, list[Any]]:
    part = f".{bar.replace('-', '')}."
    found = [o for o in own_orders(sim) if part in o.client_order_id]
    return {s: list(group) for s, group in itertools.groupby(sorted(found, key=lambda o: o.symbol), lambda o: o.symbol)}


def test_slices_are_sent_at_their_times_under_ids_of_their_own(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, config(slicing=TWAP))
    sim.day(date(2024, 1, 9))
    sent = slices(sim)
    assert len(sent) == 2
    for symbol, group in sent.items():
        assert [o.submitted_at for o in group] == [OPENING + timedelta(minutes=m) for m in (0, 10, 20)]
        assert [o.client_order_id.rsplit(".", 1)[1] for o in group] == ["b0", "b1", "b2"]
        assert {o.time_in_force for o in group} == {TimeInForce.DAY}
        (intent,) = [i for i in sim.intents() if i.symbol == symbol]
        assert sum(o.filled_quantity for o in group) == Decimal(intent.quantity)
        assert sim.intent_state(intent) == "done"
    target = sim.store.last(schema.targets)
    assert target.state == "open"
    sim.assert_journal_matches_broker()
    sim.day(date(2024, 1, 10))
    states = [row.state for row in sim.store.rows(schema.targets) if row.bar == "2024-01-08"]
    assert states == ["open", "reached"]


@pytest.mark.parametrize(
    ("fallback", "types"), [("market", {OrderType.LIMIT, OrderType.MARKET}), ("next_session", {OrderType.LIMIT})]
)
def test_what_slices_leave_is_a_market_order_or_kept(tmp_path: Path, fallback: Any, types: set[OrderType]) -> None:
    slicing = dataclasses.replace(TWAP, fallback=fallback)
    panel = prices()
    opened = panel.open
    assert opened is not None
    rises = dataclasses.replace(panel, open=panel.close * 0.999)
    day = [str(d) for d in panel.times.astype("datetime64[D]")].index("2024-01-09")
    above = panel.close[day - 1] * 1.02
    rises.open[day], rises.close[day], rises.high[day], rises.low[day] = above, above * 1.001, above * 1.002, above  # type: ignore[index]
    sim = SimulatedDaemon(tmp_path, config(slicing=slicing, orders=OrderSettings(collar=0.01)), panel=rises)
    sim.day(date(2024, 1, 9))
    sent = [order for group in slices(sim).values() for order in group]
    assert {order.type for order in sent} == types
    filled = [order for order in sent if order.filled_quantity]
    states = {sim.intent_state(intent) for intent in sim.intents()}
    if fallback == "market":
        assert {order.submitted_at for order in filled} == {OPENING + timedelta(minutes=30)}
        assert states == {"done"}
    else:
        assert not filled
        assert states == {"expired"}
        assert "expired" in sim.alert_kinds()
        assert float(sim.store.last(schema.targets).distance) > 0.9
    sim.assert_journal_matches_broker()


class HalfFillBroker(SimulatedBroker):
    """Fills half of each order; the rest stays live until it is cancelled."""

    def _book_fill(self, order: Any, quantity: Decimal, price: Decimal, at: datetime) -> None:
        if order.status.value == "new":
            super()._book_fill(order, max((quantity / 2).to_integral_value(), Decimal(1)), price, at)


def test_a_partial_slice_is_cancelled_and_its_rest_sent_later(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, config(slicing=TWAP), kind=HalfFillBroker)
    sim.day(date(2024, 1, 9))
    for group in slices(sim).values():
        assert [o.status.value for o in group] == ["canceled"] * 3 + ["expired"]
        assert sum(o.quantity for o in group) > sum(o.filled_quantity for o in group)
    sim.assert_journal_matches_broker()


def test_halt_ends_the_slices(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, config(slicing=TWAP))
    sim.run_to(OPENING + timedelta(minutes=5))
    enqueue(sim.store, CommandName.HALT, sim.clock.now())
    sim.run_to(OPENING + timedelta(minutes=15))
    enqueue(sim.store, CommandName.RESUME, sim.clock.now())
    sim.day(date(2024, 1, 9))
    assert all(len(group) == 1 for group in slices(sim).values())
    assert {sim.intent_state(intent) for intent in sim.intents()} == {"canceled"}


def test_daemon_that_starts_within_the_window_spreads_what_is_left(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, config(slicing=TWAP))
    sim.run_to(OPENING + timedelta(minutes=1))
    sim.clock.sleep(300.0)  # down until the middle of the second slice
    sim.restart()
    sim.day(date(2024, 1, 9))
    for group in slices(sim).values():
        assert [o.submitted_at - OPENING for o in group] == [timedelta(minutes=m) for m in (0, 15, 20)]
        assert sum(o.filled_quantity for o in group) == sum(o.quantity for o in group)


@pytest.mark.slow
def test_a_kill_at_any_write_repeats_no_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = datetime(2024, 1, 9, 15, 30, tzinfo=UTC)

    def trades(sim: SimulatedDaemon) -> list[tuple[str, str]]:
        return [(o.client_order_id, str(o.filled_quantity)) for o in sim.account.orders("all")]

    killer = WriteKiller(monkeypatch)
    sim = SimulatedDaemon(tmp_path / "plain", config(slicing=TWAP))
    sim.run_to(end)
    expected, writes = trades(sim), killer.count
    assert len(expected) == 6
    for at in range(4, writes + 1, 2):
        for before in (True, False):
            folder = tmp_path / f"{at}{before}"
            folder.mkdir()
            killer.count, killer.at, killer.before = 0, at, before
            sim = SimulatedDaemon(folder, config(slicing=TWAP))
            try:
                sim.run_to(end)
            except Killed:
                sim.restart()
                sim.run_to(end)
            assert trades(sim) == expected, (at, before)
            sim.assert_journal_matches_broker()


# ---------------------------------------------------------------------- volume


class MinuteFeed:
    """Volume of 2 a minute in the first ten minutes of each session, of 1 in the next twenty; AA alone."""

    name = "minutes"

    def minute_bars(self, symbols: Any, start: datetime, end: datetime, adjustment: str) -> BarTable:
        times, volumes = [], []
        for session in Calendar().sessions(start.date(), end.date()):
            for minute in range(30):
                at = session.open + timedelta(minutes=minute)
                if start <= at < end:
                    times.append(np.datetime64(at.replace(tzinfo=None), "ns"))
                    volumes.append([2.0 if minute < 10 else 1.0, *[np.nan] * (len(symbols) - 1)])
        column = np.array(volumes).reshape(len(times), len(symbols))
        return BarTable(np.array(times), tuple(symbols), column, column, column, column, column, "minutes")


def test_usual_volume_by_slice() -> None:
    before, session = Calendar().sessions(date(2024, 1, 8), date(2024, 1, 9))
    window = Calendar().cycle(session, before, ScheduleSettings(), TWAP).window
    assert window is not None
    found = usual_volumes(MinuteFeed(), config(slicing=TWAP), session.date, window)  # type: ignore[arg-type]
    assert set(found) == {"AA"}
    assert found["AA"].profile == (0.5, 0.25, 0.25)
    assert found["AA"].shares == 40
    assert last_volumes(MinuteFeed(), ["AA"], window, 0) == {}  # type: ignore[arg-type]
    assert last_volumes(MinuteFeed(), ["AA"], window, 1) == {"AA": 20}  # type: ignore[arg-type]


def test_vwap_without_minute_bars_is_alerted_once(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, config(slicing=dataclasses.replace(TWAP, schedule="vwap")))
    sim.day(date(2024, 1, 10))
    assert [kind for _, kind, _ in sim.alerts].count("volume") == 1


# ---------------------------------------------------------------------- extended hours


def test_extended_hours_are_off_unless_set(tmp_path: Path) -> None:
    for folder, expected in (("off", False), ("on", True)):
        (tmp_path / folder).mkdir()
        settings = config(orders=OrderSettings(collar=0.2, extended_hours=expected))
        sim = SimulatedDaemon(tmp_path / folder, settings)
        sim.day(date(2024, 1, 9))
        requests = [arguments[0] for name, arguments in sim.broker.calls if name == "submit"]
        assert {r.extended_hours for r in requests} == {expected}
        assert {r.time_in_force for r in requests} == {TimeInForce.DAY if expected else TimeInForce.OPG}
        assert {r.type for r in requests} == {OrderType.LIMIT}
