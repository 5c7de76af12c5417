"""Shortfall of schedules on the same sessions, against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
from finrl_pod_app.multi_agent import intraday

from finrl_pod.market.intraday import SCHEDULES, execute, simulated_sessions
from finrl_pod.settings.multi_agent import IntradayExecutionConfig

CONFIG = IntradayExecutionConfig()


def test_summaries_are_means_over_purchases_and_sales_of_the_same_sessions() -> None:
    sessions = simulated_sessions(60)
    found = intraday.compare(sessions, SCHEDULES, CONFIG)
    assert found["twap"].difference == found["twap"].difference_low == 0
    for name, schedule in SCHEDULES.items():
        each = [execute(sessions, schedule, CONFIG, side=side).shortfall.numpy() for side in (1, -1)]
        assert found[name].mean == pytest.approx(float(np.mean(each)))
        assert found[name].low < found[name].mean < found[name].high


def test_interval_covers_the_mean() -> None:
    low, high = intraday.mean_interval(np.array([0.1, 0.2, 0.3]))
    assert low < 0.2 < high
    assert intraday.mean_interval(np.array([0.1, 0.1])) == pytest.approx((0.1, 0.1))
