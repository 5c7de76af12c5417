"""Decision speed for a large universe, and imports of the commands."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pytest

from finrl_pod.paper.brokers.simulated import SimulatedBroker
from finrl_pod.paper.domain.clocks import ManualClock
from finrl_pod.paper.execution.decision import Holdings, StrategyFailed, decide
from finrl_pod.paper.execution.price_check import fetch_checked_prices
from finrl_pod.paper.settings import DataSettings
from finrl_pod.settings.run import FeatureConfig
from finrl_pod.types import Window
from tests.paper.factories import FunctionStrategy, prices

SECONDS = 2.0  # of CPU time


@pytest.mark.slow
def test_decision_for_500_symbols_takes_at_most_two_seconds() -> None:
    symbols = tuple(f"S{i:03d}" for i in range(500))
    panel = prices(date(2021, 1, 4), date(2024, 1, 31), symbols=symbols)
    broker = SimulatedBroker(panel, ManualClock(datetime(2024, 1, 31, 23, tzinfo=UTC)), Decimal(1_000_000))
    strategy = FunctionStrategy(lambda window: np.full(500, 1 / 500), feature_names=FeatureConfig().names)
    start = time.process_time()
    bar = date(2024, 1, 31)
    checked = fetch_checked_prices(broker, symbols, bar, (), DataSettings(window=600), lambda *_: None)
    decision = decide(strategy, checked, Holdings({}, Decimal(1_000_000), checked.closes))
    assert time.process_time() - start < SECONDS
    assert decision.weights is not None
    assert not checked.problems


def test_a_strategy_that_reads_past_features_gets_them_or_fails() -> None:
    """As many bars as it asks for; the journal keeps those of the decision bar."""
    panel = prices(date(2023, 10, 2), date(2024, 1, 31))
    broker = SimulatedBroker(panel, ManualClock(datetime(2024, 1, 31, 23, tzinfo=UTC)), Decimal(1_000_000))
    seen = []

    @dataclass
    class Reader(FunctionStrategy):
        feature_lookback: int = 12

    def read(window: Window) -> None:
        seen.append(window.features)

    strategy = Reader(read, feature_names=("return_1", "return_5"))
    checked = fetch_checked_prices(
        broker, panel.symbols, date(2024, 1, 31), (), DataSettings(window=40), lambda *_: None
    )
    decision = decide(strategy, checked, Holdings({}, Decimal(1_000_000), checked.closes))
    (features,) = seen
    assert features is not None
    assert features.shape == (12, len(panel.symbols), 2)
    np.testing.assert_array_equal(json.loads(decision.inputs)["features"], features[-1])
    strategy.feature_lookback = 41
    with pytest.raises(StrategyFailed, match=r"reads features of 41 bars and got 40; raise data.window"):
        decide(strategy, checked, Holdings({}, Decimal(1_000_000), checked.closes))


@pytest.mark.slow
def test_status_and_commands_import_no_heavy_modules() -> None:
    modules = "finrl_pod.paper.monitoring.status, finrl_pod.paper.journal.commands, finrl_pod.paper.settings"
    code = f"import sys, {modules}; print([m for m in ('torch', 'numpy', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
