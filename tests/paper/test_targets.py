"""A decision's target is kept until it is reached: what a session left undone is ordered again in the next ones."""

from __future__ import annotations

import itertools
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finrl_pod.data.panel import make_panel
from finrl_pod.data.tensor import build_market
from finrl_pod.evaluate.paper_backtest import TradedPrices, backtest_paper
from finrl_pod.market.orders import PositionTarget, SizingRules, distance_to_target, missing_shares
from finrl_pod.paper.domain.records import ActionKind, CorporateAction, Reason, Rejected
from finrl_pod.paper.execution.sizing import current_targets, sizing_rules
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.commands import CommandName, enqueue
from finrl_pod.paper.journal.decision_state import KeptTarget, largest_distance
from finrl_pod.paper.journal.ledger import Ledger
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.monitoring.status import orders
from finrl_pod.paper.runtime.replay import replay
from finrl_pod.paper.settings import OrderSettings
from finrl_pod.types import Floats, Positions, Window
from tests.paper.factories import FixedSource, FunctionStrategy, PartialFillBroker, SimulatedDaemon, config, prices

FIRST = date(2024, 1, 8)
TIGHT = config(orders=OrderSettings(collar=0.002))  # most orders do not fill in their first auction


class MonthlyStrategy:
    """Decides on the first bar and on the tenth after it, and keeps its positions otherwise."""

    name = "monthly"
    feature_names: tuple[str, ...] = ()
    lookback = 2

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        day = str(window.times[-1].astype("datetime64[D]"))
        return {"2024-01-08": np.array([0.4, 0.3, 0.3]), "2024-01-23": np.array([0.1, 0.6, 0.3])}.get(day)


def rows(sim: SimulatedDaemon) -> list[tuple[str, str, float]]:
    return [(row.session, row.state, float(row.distance)) for row in sim.store.rows(schema.targets)]


@pytest.mark.slow
def test_unfilled_orders_are_sent_again_until_the_target_is_reached(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, TIGHT, MonthlyStrategy(), prices(seed=1))
    sim.day(date(2024, 1, 9))
    wanted = {i.symbol: Decimal(i.quantity) for i in sim.intents()}
    first = dict(sim.daemon.trader.positions)
    assert any(first.get(symbol, 0) < shares for symbol, shares in wanted.items()), "all filled at once"
    assert "expired" in sim.alert_kinds()
    sim.restart()  # the target is read from the journal
    sim.day(date(2024, 1, 19))
    held = sim.daemon.trader.positions
    # Where prices rose, the target's weight buys a little less than on the day of the decision.
    assert all(0 <= shares - held[symbol] <= shares * Decimal("0.1") for symbol, shares in wanted.items())
    assert [state for _, state, _ in rows(sim)][-1] == "reached"
    assert current_targets(Ledger(sim.store), TIGHT)["test"].distance == 0
    outcomes = [row.outcome for row in sim.store.rows(schema.decisions)]
    assert outcomes[0] == "orders"
    assert "target" in outcomes
    assert outcomes[-1] == "hold", "a target that was reached is not opened again by later prices"
    sim.assert_journal_matches_broker()


@pytest.mark.slow
def test_rest_of_a_partial_fill_is_ordered_the_next_session(tmp_path: Path) -> None:
    settings = config(orders=OrderSettings(fractional=True, collar=0.2))
    sim = SimulatedDaemon(tmp_path, settings, MonthlyStrategy(), kind=PartialFillBroker)
    sim.day(date(2024, 1, 17))
    distances = [distance for _, _, distance in rows(sim)]
    assert len(distances) > 4
    assert all(later < 0.7 * before for before, later in itertools.pairwise(distances))


@pytest.mark.slow
def test_target_is_given_up_with_an_alert_after_its_sessions(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, config(orders=OrderSettings(collar=0.2, target_sessions=2)), MonthlyStrategy())

    def refuse(original: Any, request: Any) -> Any:
        return Rejected(Reason.OTHER, "no") if request.symbol == "BB" else original(request)

    sim.broker.overrides["submit"] = refuse
    sim.day(date(2024, 1, 19))
    assert [state for _, state, _ in rows(sim)] == ["open", "open", "open", "missed"]
    [(_, _, message)] = [alert for alert in sim.alerts if alert[1] == "target"]
    assert message.startswith("the target of 2024-01-08 was not reached in time: 2")
    assert largest_distance(sim.store) == pytest.approx(0.29, abs=0.02)
    assert sum(intent.symbol == "BB" for intent in sim.intents()) == 3  # the first session and two more


@pytest.mark.slow
def test_flatten_ends_a_target(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, TIGHT, MonthlyStrategy(), prices(seed=1))
    sim.day(date(2024, 1, 9))
    enqueue(sim.store, CommandName.FLATTEN, sim.clock.now())
    sim.day(date(2024, 1, 10), hour=13)
    enqueue(sim.store, CommandName.RESUME, sim.clock.now())
    sim.day(date(2024, 1, 19))
    assert [state for _, state, _ in rows(sim)] == ["open", "dropped"]
    assert not any(sim.daemon.trader.positions.values())


@pytest.mark.slow
@pytest.mark.parametrize("mode_settings", [TIGHT, config(orders=OrderSettings(collar=0.002, target_sessions=0))])
def test_backtest_orders_again_as_the_daemon_does(tmp_path: Path, mode_settings: Any) -> None:
    panel, journal, last = prices(seed=1), tmp_path / "j.sqlite", date(2024, 2, 2)
    replayed = replay(mode_settings, panel, [FixedSource(MonthlyStrategy())], FIRST, last, journal)
    days = [str(day) for day in panel.times.astype("datetime64[D]")]
    terms = (days.index(str(FIRST)), days.index(str(last)), sizing_rules(mode_settings), mode_settings.capital)
    tested = backtest_paper(MonthlyStrategy(), panel, build_market(panel, (), (0, 10)), *terms, "open")
    assert [equity for _, equity in replayed.equity] == list(tested.equity)
    store = Store.open(journal)
    sent = {(o.bar, o.symbol): o.filled for o in orders(store)}
    store.close()
    assert sent == {(str(o.bar.astype("datetime64[D]")), o.symbol): abs(o.filled) for o in tested.orders}
    bars = {bar for bar, _ in sent}
    assert (len(bars) == 2) == (mode_settings.orders.target_sessions == 0)


@pytest.mark.slow
def test_strategy_that_decides_daily_replaces_its_target(tmp_path: Path) -> None:
    sim = SimulatedDaemon(tmp_path, TIGHT, FunctionStrategy(lambda _: np.array([0.3, 0.3, 0.3])))
    sim.day(date(2024, 1, 12))
    states = [state for _, state, _ in rows(sim)]
    assert "replaced" in states
    assert set(states) <= {"open", "replaced", "reached"}
    assert {row.outcome for row in sim.store.rows(schema.decisions)} == {"orders"}


def test_target_follows_a_split() -> None:
    target = KeptTarget(FIRST, date(2024, 1, 15), {"AA": PositionTarget(Decimal(10), 0.5)})
    split = CorporateAction("s", ActionKind.SPLIT, "AA", date(2024, 1, 10), new=Decimal(4))
    adjusted = target.adjusted([split], date(2024, 1, 9), date(2024, 1, 10))
    assert adjusted.positions["AA"] == PositionTarget(Decimal(40), 0.5)
    for since, today in ((date(2024, 1, 10), date(2024, 1, 11)), (date(2024, 1, 8), date(2024, 1, 9))):
        assert target.adjusted([split], since, today) == target


class BuyOnce:
    name, feature_names, lookback = "buy once", (), 1

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        return np.array([0.5]) if window.times[-1] == np.datetime64("2020-01-01") else None


def test_kept_target_of_a_backtest_follows_a_split() -> None:
    """The opening price of the second bar is beyond the limit; the split follows, and twice the shares are bought."""
    times = np.datetime64("2020-01-01", "ns") + np.arange(4) * np.timedelta64(1, "D")
    columns = {"open": np.array([[50.0], [55.0], [50.0], [50.0]]), "close": np.full((4, 1), 50.0)}
    panel = make_panel(times, ("A",), columns)
    traded = TradedPrices(
        close=np.array([[100.0], [50.0], [50.0], [50.0]]),
        splits=np.array([[1.0], [2.0], [1.0], [1.0]]),
        dividends=np.zeros((4, 1)),
    )
    rules = SizingRules(cash_buffer=Decimal(0), collar=Decimal("0.05"))
    tested = backtest_paper(
        BuyOnce(), panel, build_market(panel, (), (0, 3)), 0, 3, rules, 1000.0, "open", traded_prices=traded
    )
    assert [(int(o.quantity), int(o.filled), o.price) for o in tested.orders] == [(5, 0, None), (10, 10, Decimal(50))]


def test_missing_shares_follow_the_weight_where_prices_rise() -> None:
    rules, nothing = SizingRules(cash_buffer=Decimal(0)), [Decimal(0)]
    target = [PositionTarget(Decimal(100), 0.5)]
    assert missing_shares(target, Decimal(2000), nothing, [Decimal(10)], rules) == [Decimal(100)]
    assert missing_shares(target, Decimal(2000), nothing, [Decimal(20)], rules) == [Decimal(50)]
    assert missing_shares(target, Decimal(2000), nothing, [Decimal(5)], rules) == [Decimal(100)]
    assert missing_shares(target, Decimal(1000), [Decimal(130)], [Decimal(10)], rules) == [Decimal(-30)]
    assert missing_shares([None], Decimal(1000), [Decimal(130)], [Decimal(10)], rules) == [Decimal(0)]
    assert distance_to_target([Decimal(-30)], Decimal(2300), [Decimal(10)]) == Decimal(300) / 2300
