"""The daemon measures its active return over the mandate's base and warns when it leaves the backtest's band."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finrl_pod_app.paper.status_view import show_status
from finrl_pod_strategies.mandate_account import BasePortfolio

from finrl_pod.errors import InputError
from finrl_pod.evaluate.active_management import ActiveBand
from finrl_pod.paper.execution.trader import LoadedStrategy
from finrl_pod.paper.journal import schema
from finrl_pod.paper.monitoring.status import ActiveReturnStatus, status
from finrl_pod.paper.settings import OrderSettings, ScheduleSettings
from finrl_pod.settings.run import MandateConfig
from tests.paper.factories import FixedSource, FunctionStrategy, SimulatedDaemon, config

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
