"""The daemon measures its active return over the mandate's base and warns when it leaves the backtest's band."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finrl_pod_app.paper.status_view import show_status
from finrl_pod_strategies.mandate_account import BasePortfolio

from finrl_pod.data.panel import make_panel
from finrl_pod.errors import InputError
from finrl_pod.evaluate.active_management import ActiveBand
from finrl_pod.paper.domain.records import ActionKind, CorporateAction
from finrl_pod.paper.execution import stop_rule
from finrl_pod.paper.execution.reconcile import book_action
from finrl_pod.paper.execution.trader import LoadedStrategy
from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.decision_state import ActiveReturn, DecisionState
from finrl_pod.paper.journal.ledger import Booking, Ledger
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.monitoring.status import ActiveReturnStatus, status
from finrl_pod.paper.settings import OrderSettings, ScheduleSettings
from finrl_pod.settings.run import MandateConfig
from finrl_pod.types import Floats, Positions, Window
from tests.paper.factories import FixedSource, FunctionStrategy, SimulatedDaemon, config, prices

pytestmark = pytest.mark.slow

WITHDRAWAL = 120  # day of the synthetic year
SLOW = MandateConfig(trade_speed=0.1)
LAST = date(2024, 1, 25)


def simulation(folder: Path, strategy: Any, band: ActiveBand | None, mode: Any = "open") -> SimulatedDaemon:
    orders = OrderSettings(fractional=mode == "open", collar=0.2, cash_buffer=0.02)
    sim = SimulatedDaemon(folder, config(orders=orders, schedule=ScheduleSettings(mode)), strategy)
    sim.source = FixedSource(strategy)
    sim.source.loaded = LoadedStrategy(strategy, "synthetic", "", BasePortfolio(SLOW), band)
    sim.restart()
    return sim


def measured(sim: SimulatedDaemon) -> list[dict[str, Any]]:
    bases = [json.loads(row.state)["base"] for row in sim.store.rows(schema.decisions) if row.state]
    return [base["active_return"] for base in bases]


@pytest.mark.parametrize("mode", ["open", "close"])
def test_account_that_holds_the_base_has_no_active_return(tmp_path: Path, mode: str) -> None:
    sim = simulation(tmp_path, BasePortfolio(SLOW), ActiveBand(0.05, (-0.01,)), mode)
    sim.day(date(2024, 1, 16))
    sim.restart()  # the base account continues from the journal
    sim.day(LAST)
    found = measured(sim)
    assert found[0] is None
    assert [m["bars"] for m in found[1:]] == list(range(1, len(found)))
    assert len(found) >= 12
    largest = max(abs(m["value"]) for m in found[1:])
    assert largest < (1e-4 if mode == "open" else 3e-3)  # whole shares at the close leave some cash
    marks = [float(row.equity) for row in sim.store.rows(schema.equity)]
    assert np.ptp(np.log(marks)) > 0.01  # while the market moved
    assert "stop_rule" not in sim.alert_kinds()


def test_account_that_leaves_the_band_is_alerted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    band = ActiveBand(0.05, tuple(-0.004 - 0.0002 * bars for bars in range(20)))
    cash = FunctionStrategy(lambda window: np.zeros(len(window.symbols)), lookback=12)
    sim = simulation(tmp_path, cash, band)
    sim.day(LAST)
    found = [m for m in measured(sim) if m]
    assert any(m["left"] for m in found)
    assert all(m["left"] == (m["value"] < m["lower"]) for m in found)
    left = [m["left"] for m in found]
    entries = sum(now and not before for before, now in zip([False, *left], left, strict=False))
    alerts = [message for _, kind, message in sim.alerts if kind == "stop_rule"]
    assert len(alerts) == entries
    assert "below the -0." in alerts[0]
    assert "5% of histories leave within a year" in alerts[0]
    document = status(sim.store, sim.config)
    assert document.active_return == ActiveReturnStatus(bar=sim.store.last(schema.decisions).bar, **found[-1])
    show_status(document)
    assert "active return" in capsys.readouterr().out


@dataclasses.dataclass
class EqualBase:
    """Holds equal weights, bought at every close."""

    name: str = "equal"
    feature_names: tuple[str, ...] = ()
    lookback: int = 2
    mandate: None = None

    def state(self) -> None:
        return None

    def restore(self, state: object, symbols: object) -> None:
        pass

    def target_weights(self, window: Window, positions: Positions) -> Floats:
        return np.full(len(window.symbols), 1 / len(window.symbols))


def measured_year(folder: Path, daily_loss: float, cost_rate: float = 0.0) -> list[ActiveReturn]:
    """Active return of an account of the base's weights that gets no dividends of 3%, which adjusted bars contain.

    A fifth of it is withdrawn in between.
    """
    raw = prices(date(2023, 1, 3), date(2024, 1, 3))
    days = [str(day) for day in raw.times.astype("datetime64[D]")]
    quarterly = range(20, len(days), 63)
    yields = np.array([0.0075 if t in quarterly else 0.0 for t in range(len(days))])  # of the close after
    adjusted = raw.close * np.cumprod(1 + yields)[:, None]
    band = ActiveBand(0.05, tuple(-0.013 * np.sqrt(np.arange(1, 254) / 252)))
    found = []
    equity = 100_000.0
    weights = np.zeros(3)
    base = None
    with contextlib.closing(Store.create_or_open(folder / "journal.sqlite")) as store, store.batch():
        ledger = Ledger(store)
        for t, day in enumerate(days):
            now = datetime.fromisoformat(day).replace(tzinfo=UTC)
            if t:
                equity *= (1 + float(weights @ (raw.close[t] / raw.close[t - 1] - 1))) * (1 - daily_loss)
                held, bought = (w * adjusted[t] / adjusted[t - 1] for w in (weights, np.full(3, 0.98 / 3)))
                held = held / (1 + (held - weights).sum())
                weights = bought / (1 + (bought - 0.98 / 3).sum())
                equity -= equity * cost_rate * float(np.abs(weights - held).sum())
                for n, symbol in enumerate(raw.symbols if t in quarterly else ()):
                    shares = ledger.books["test"].positions[symbol] = Decimal(
                        str(equity * weights[n] / raw.close[t, n])
                    )
                    ledger.positions[symbol] = shares
                    cash = Decimal(str(raw.close[t, n] * yields[t]))
                    action = CorporateAction(f"{symbol}{t}", ActionKind.CASH_DIVIDEND, symbol, now.date(), cash=cash)
                    book_action(ledger, action, now, pays_dividends=False)
            if t == WITHDRAWAL:
                amount = Decimal(str(equity)) / 5
                ledger.book(Booking("w", ActionKind.TRANSFER, "", now.date(), cash=-amount), now)
                equity -= float(amount)
            rows = slice(max(t - 1, 0), t + 1)
            panel = make_panel(raw.times[rows], list(raw.symbols), {"close": adjusted[rows]}, name="x", source="x")
            base = stop_rule.advance(EqualBase(), base, panel, 0.02, "close", cost_rate)
            if t % 25 == 24 and (active_return := stop_rule.measure(store, "test", base, Decimal(str(equity)), band)):
                found.append(active_return)
            values = {
                "run": "test",
                "bar": day,
                "strategy": "",
                "feed": "",
                "inputs": "{}",
                "outcome": "",
                "detail": "",
            }
            store.add(schema.decisions, now, **values, state=DecisionState(None, base).encode())
            store.add(schema.equity, now, session=day, equity=str(equity), cash="0", broker_equity="0")
    assert ledger.cash == -amount  # no dividends
    return found


def test_dividends_that_the_account_does_not_pay_raise_no_alarm(tmp_path: Path) -> None:
    """A year with dividends of 3%; the account and its base pay the same costs."""
    found = measured_year(tmp_path, 0.0, cost_rate=0.001)
    assert len(found) >= 9
    assert not any(active_return.left for active_return in found)
    assert max(abs(active_return.value) for active_return in found) < 1e-3


def test_account_that_loses_against_its_base_raises_an_alarm(tmp_path: Path) -> None:
    found = measured_year(tmp_path, 0.02 / 252)
    assert found[-1].left
    assert found[-1].value == pytest.approx(-0.02 * 250 / 252, abs=1e-3)


def test_base_that_cannot_be_computed_does_not_stop_the_trading(tmp_path: Path) -> None:
    class Broken(BasePortfolio):
        def target_weights(self, window: Any, positions: Any) -> Any:
            raise InputError("no base today")

    strategy = BasePortfolio(SLOW)
    sim = simulation(tmp_path, strategy, None)
    sim.source.loaded = LoadedStrategy(strategy, "synthetic", "", Broken(SLOW), None)
    sim.day(date(2024, 1, 12))
    assert sim.account.positions()
    assert ("warning", "stop_rule", "the active return is unknown: no base today") in sim.alerts
    assert status(sim.store, sim.config).active_return is None
