"""Differences between an account and its backtest have causes that add up; only unexplained ones are an alarm."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finrl_pod_app.paper import backtest_difference
from finrl_pod_app.paper.attribution import Cause
from finrl_pod_app.paper.backtest_difference import TrackReport, compare_with_backtest, difference_file, save_difference

from finrl_pod.files import read_json
from finrl_pod.paper.brokers.simulated import SimulatedBroker
from finrl_pod.paper.domain.port import Adjustment, BarTable
from finrl_pod.paper.domain.records import ActionKind, Ambiguous, CorporateAction, Order
from finrl_pod.paper.journal.commands import CommandName, enqueue
from finrl_pod.paper.settings import BrokerSettings, OrderSettings, PaperConfig, StrategyConfig
from finrl_pod.types import Panel
from tests.paper.factories import FixedSource, RotatingStrategy, SimulatedDaemon, config, prices

pytestmark = pytest.mark.slow

EX_DATE, SPLIT_DATE, END = date(2024, 1, 18), date(2024, 1, 25), date(2024, 2, 9)
DIVIDEND = CorporateAction("d", ActionKind.CASH_DIVIDEND, "AA", EX_DATE, cash=Decimal("1.50"))
SPLIT = CorporateAction("s", ActionKind.SPLIT, "BB", SPLIT_DATE, new=Decimal(2))


@dataclasses.dataclass
class Balanced:
    """Keeps (0.5, 0.3, 0.1) by orders on every day."""

    name: str = "balanced"
    feature_names: tuple[str, ...] = ()
    lookback: int = 2

    def target_weights(self, window: Any, positions: Any) -> Any:
        return np.array([0.5, 0.3, 0.1])


class Holding(Balanced):
    """Buys once."""

    def target_weights(self, window: Any, positions: Any) -> Any:
        return None if np.any(positions.weights) else np.array([0.5, 0.3, 0.1])


def factors(days: np.ndarray, on: date) -> np.ndarray:
    """[T, 3] of raw to adjusted prices, as they stand on a day."""
    found = np.ones((len(days), 3))
    raw = prices().close
    for action, n in ((DIVIDEND, 0), (SPLIT, 1)):
        if action.ex_date <= on:
            before = days < np.datetime64(action.ex_date)
            last = raw[np.flatnonzero(prices().times.astype("datetime64[D]") < np.datetime64(action.ex_date))[-1], n]
            factor = 1 - float(action.cash) / last if action.cash else 0.5
            found[before, n] *= factor
    return found


def scaled(table: Any, scale: np.ndarray) -> Any:
    names = ("open", "high", "low", "close")
    return dataclasses.replace(table, **{name: getattr(table, name) * scale for name in names})


def raw_panel() -> Panel:
    """Prices as they stood: the split halves those of BB."""
    panel = prices()
    after = panel.times.astype("datetime64[D]") >= np.datetime64(SPLIT_DATE)
    scale = np.ones_like(panel.close)
    scale[after, 1] = 0.5
    return scaled(panel, scale)


def adjusted_panel() -> Panel:
    """The same history as it stands at the end, as a data vendor has it then."""
    panel = raw_panel()
    scale = factors(panel.times.astype("datetime64[D]"), END)
    return scaled(panel, scale)


class MarketWithActions(SimulatedBroker):
    """A split and a dividend. Adjusted bars exclude actions that are not effective yet; no dividend is paid."""

    def _effective(self) -> list[CorporateAction]:
        today = self._clock.now().date()
        return [a for a in (DIVIDEND, SPLIT) if a.ex_date <= today]

    def corporate_actions(self, symbols: Sequence[str], start: date, end: date) -> tuple[CorporateAction, ...]:
        found = tuple(a for a in self._effective() if start <= a.ex_date <= end)
        if SPLIT in found and not hasattr(self, "split"):
            self.split = True
            self._shares["BB"] *= 2
        return found

    def bars(self, symbols: Sequence[str], start: date, end: date, adjustment: Adjustment) -> BarTable:
        table = super().bars(symbols, start, end, adjustment)
        if adjustment == "raw":
            return table
        scale = factors(table.times.astype("datetime64[D]"), self._clock.now().date())
        return scaled(table, scale)


UNPAID = config(broker=BrokerSettings(kind="alpaca"))


def track(
    sim: SimulatedDaemon, monkeypatch: pytest.MonkeyPatch, panel: Panel | None = None, strategy: Any = None
) -> TrackReport:
    sources = [FixedSource(strategy)] if strategy else sim.sources or [sim.source]
    monkeypatch.setattr(backtest_difference, "strategy_sources", lambda *_, **__: sources)
    found = compare_with_backtest(sim.config, sim.store, panel or sim.panel)
    for part in found.strategies.values():
        assert sum(part.attribution.values()) == pytest.approx(part.equity - part.backtest, abs=1e-6)
        by_symbol = [row[c] for row in part.by_symbol.values() for c in Cause if c is not Cause.UNEXPLAINED]
        explained = sum(v for c, v in part.attribution.items() if c != Cause.UNEXPLAINED)
        assert sum(by_symbol) == pytest.approx(explained, abs=0.05)
    return found


def nonzero(found: TrackReport) -> set[str]:
    return {cause for cause, value in found.attribution.items() if abs(value) >= 0.01}


def start(folder: Path, strategy: Any = None, settings: PaperConfig | None = None, **named: Any) -> SimulatedDaemon:
    return SimulatedDaemon(folder, settings or config(), strategy=strategy or Balanced(), **named)


def test_an_undisturbed_account_has_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = start(tmp_path)
    sim.day(END)
    found = track(sim, monkeypatch)
    assert found.differences == []
    assert nonzero(found) == set()
    assert not found.alarm


@pytest.mark.parametrize("strategy", [Balanced(), Holding(), RotatingStrategy()], ids=lambda s: type(s).__name__)
def test_dividends_that_were_not_paid_explain_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: Any
) -> None:
    sim = start(tmp_path, strategy, UNPAID, panel=raw_panel(), kind=MarketWithActions)
    sim.day(EX_DATE, 10)
    held = float(sim.daemon.trader.positions["AA"])
    sim.day(END)
    assert not [a for a in sim.alerts if a[0] == "critical"]
    found = track(sim, monkeypatch, adjusted_panel())
    growth = found.equity[-1] / found.equity[list(found.sessions).index(str(EX_DATE))]
    assert found.attribution["dividends"] == pytest.approx(-1.5 * held * growth, rel=0.1)
    assert abs(found.attribution["unexplained"]) < 1e-6
    assert abs(found.attribution["rounding"]) < 0.1 * 1.5 * held + 20
    assert nonzero(found) <= {"dividends", "rounding", "missed_fills"}
    assert abs(found.attribution["missed_fills"]) < 10  # purchases cut to the cash at the auction's prices
    assert not found.alarm


def test_readjusted_history_without_a_position_compares_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutAA(Balanced):
        def target_weights(self, window: Any, positions: Any) -> Any:
            return np.array([0.0, 0.6, 0.3])

    sim = start(tmp_path, WithoutAA(), UNPAID, panel=raw_panel(), kind=MarketWithActions)
    sim.day(END)
    found = track(sim, monkeypatch, adjusted_panel())
    assert sim.daemon.trader.positions["BB"] > 0
    assert found.differences == []
    assert nonzero(found) == set()


def test_worse_fills_are_fill_price(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Worse(SimulatedBroker):
        def _book_fill(self, order: Order, quantity: Decimal, price: Decimal, at: datetime) -> None:
            super()._book_fill(order, quantity, price + order.side.sign * Decimal("0.05"), at)

    sim = start(tmp_path, Holding(), kind=Worse)
    sim.day(END)
    found = track(sim, monkeypatch)
    shares = float(sum(sim.daemon.trader.positions.values()))
    assert found.attribution["fill_price"] == pytest.approx(-0.05 * shares, rel=1e-6)
    assert nonzero(found) == {"fill_price"}


def test_orders_that_never_arrive_are_missed_fills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = start(tmp_path, RotatingStrategy(), config(orders=OrderSettings(collar=0.2, target_sessions=0)))
    sim.day(date(2024, 1, 12), 10)
    sim.broker.overrides["submit"] = lambda original, request: Ambiguous("timeout")
    sim.day(date(2024, 1, 16))
    del sim.broker.overrides["submit"]
    sim.day(END)
    found = track(sim, monkeypatch)
    assert abs(found.attribution["missed_fills"]) > 50
    # Purchases that the missed sales should have paid for are cut to the cash.
    assert nonzero(found) <= {"missed_fills", "rounding", "limits"}
    assert abs(found.attribution["rounding"]) < 100
    assert not found.alarm


def test_positions_that_cannot_be_sold_are_missed_fills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what their money cannot buy in other symbols."""
    sim = start(tmp_path, RotatingStrategy(), config(orders=OrderSettings(fractional=True)))
    sim.day(date(2024, 1, 12), 10)

    def assets(original: Any, symbols: Any) -> Any:
        found = original(symbols)
        return {**found, "AA": dataclasses.replace(found["AA"], fractionable=False)}

    sim.broker.overrides["assets"] = assets
    sim.day(END)
    found = track(sim, monkeypatch)
    assert abs(found.attribution["missed_fills"]) > 50
    assert abs(found.attribution["unexplained"]) < 0.01
    assert not found.alarm


def test_a_halt_is_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = start(tmp_path, RotatingStrategy())
    sim.day(date(2024, 1, 12), 10)
    enqueue(sim.store, CommandName.HALT, sim.clock.now())
    sim.day(date(2024, 1, 17), 10)
    enqueue(sim.store, CommandName.RESUME, sim.clock.now())
    sim.day(END)
    found = track(sim, monkeypatch)
    assert abs(found.attribution["limits"]) > 50
    assert nonzero(found) <= {"limits", "rounding", "missed_fills"}
    assert abs(found.attribution["missed_fills"]) < 0.2 * abs(found.attribution["limits"])
    assert not found.alarm


def test_a_flatten_is_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = start(tmp_path, Holding())
    sim.day(date(2024, 1, 17))
    enqueue(sim.store, CommandName.FLATTEN, sim.clock.now())
    sim.day(END)
    found = track(sim, monkeypatch)
    assert abs(found.attribution["limits"]) > 50
    assert abs(found.attribution["unexplained"]) < 0.01
    assert not found.alarm


def test_another_strategy_than_the_one_traded_is_unexplained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Changed(Balanced):
        def target_weights(self, window: Any, positions: Any) -> Any:
            return np.array([0.1, 0.3, 0.5])

    sim = start(tmp_path)
    sim.day(END)
    found = track(sim, monkeypatch, strategy=Changed())
    assert abs(found.attribution["unexplained"]) > 0.9 * abs(sum(found.attribution.values()))
    assert found.alarm
    monkeypatch.setattr(backtest_difference, "MAX_UNEXPLAINED", 1.0)
    assert not track(sim, monkeypatch, strategy=Changed()).alarm


def test_several_strategies_are_tracked_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = (StrategyConfig("slow", "x", share=0.6), StrategyConfig("other", "x", share=0.3))
    settings = dataclasses.replace(UNPAID, strategy="", strategies=parts)
    sim = SimulatedDaemon(
        tmp_path, settings, strategies=[Holding(), RotatingStrategy()], panel=raw_panel(), kind=MarketWithActions
    )
    sim.day(END)
    found = track(sim, monkeypatch, adjusted_panel())
    assert list(found.strategies) == ["slow", "other"]
    assert found.attribution["dividends"] < -100
    assert nonzero(found) <= {"dividends", "rounding", "missed_fills"}  # opposite orders wait for each other
    assert not found.alarm
    assert found.attribution == {
        cause: pytest.approx(sum(part.attribution[cause] for part in found.strategies.values())) for cause in Cause
    }
    gap = found.equity[-1] - found.backtest[-1]
    assert sum(found.attribution.values()) == pytest.approx(gap, abs=0.01)
    assert len(found.strategies["slow"].by_session["dividends"]) == len(found.sessions)
    save_difference(sim.journal, found)
    assert read_json(difference_file(sim.journal))["attribution"] == found.attribution
