"""Decision speed for a large universe, and imports of the commands."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np

from finrl_pod.paper.brokers.simulated import SimulatedBroker
from finrl_pod.paper.execution.decision import Holdings, decide, fetch_checked_prices
from finrl_pod.paper.runtime.clocks import ManualClock
from finrl_pod.paper.settings import DataSettings
from finrl_pod.settings.run import FeatureConfig
from tests.paper.factories import FunctionStrategy, prices

SECONDS = 2.0  # of CPU time


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


def test_status_and_commands_import_no_heavy_modules() -> None:
    modules = "finrl_pod.paper.monitoring.status, finrl_pod.paper.journal.commands, finrl_pod.paper.settings"
    code = f"import sys, {modules}; print([m for m in ('torch', 'numpy', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
