"""Backtest with paper execution and the real daemon process over HTTP give the same result to the cent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from finrl_pod_app.paper.backtest_difference import compare_journal
from finrl_pod_strategies import baselines

from finrl_pod.data.store import Store
from finrl_pod.paper.settings import load
from finrl_pod.types import Panel
from tests.paper.factories import prices
from tests.paper.process.daemon_main import RandomWeights
from tests.paper.process.harness import KEYS, DaemonHarness

pytestmark = pytest.mark.slow

SESSIONS = 12
MADE: dict[str, Any] = {"symbols": ["AA", "BB", "CC"]}


@pytest.mark.parametrize(
    ("panel", "start", "config"),
    [
        (lambda: Store().load("sample"), date(2019, 1, 2), {"schedule": {"mode": "close"}}),
        (prices, date(2024, 2, 12), {"": MADE, "schedule": {"mode": "open"}}),
        (prices, date(2024, 2, 12), {"": MADE, "orders": {"fractional": True, "collar": 0.0}}),
    ],
    ids=["at the close", "at the open", "fractions at market"],
)
def test_orders_fills_and_equity_equal_the_backtest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, panel: Callable[[], Panel], start: date, config: dict[str, Any]
) -> None:
    monkeypatch.setitem(baselines.BASELINES, "random_daily", RandomWeights())
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with DaemonHarness(tmp_path, config=config, panel=panel(), start=start) as harness:
        harness.launch()
        harness.wait_until_recovered()
        harness.run_clock()
        harness.run_until(harness.days[SESSIONS].close + 1200, harness.slow_clock)
        assert harness.stop() == 0
        found = compare_journal(load(harness.toml))
        assert found.differences == []
        assert found.same
        assert len(found.sessions) >= SESSIONS
        assert [round(e, 2) for e in found.equity] == [round(e, 2) for e in found.backtest]
        assert len(harness.orders()) >= 2 * SESSIONS
        assert {o.side for o in harness.orders()} == {"buy", "sell"}
