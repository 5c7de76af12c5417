"""The intraday study: a comparison on the same sessions, against plain numpy, and training before it."""

from __future__ import annotations

import numpy as np
import pytest
from finrl_pod_app.bench import intraday

from finrl_pod.market.intraday import SCHEDULES, execute, simulated_sessions
from finrl_pod.settings.intraday import IntradayExecutionConfig

CONFIG = IntradayExecutionConfig()


def test_summaries_are_means_over_purchases_and_sales_of_the_same_sessions() -> None:
    sessions = simulated_sessions(60)
    found = intraday.compare(sessions, SCHEDULES, CONFIG)
    assert found["twap"].difference == found["twap"].difference_low == 0
    for name, schedule in SCHEDULES.items():
        each = [execute(sessions, schedule, CONFIG, side=side).shortfall.numpy() for side in (1, -1)]
        assert found[name].mean == pytest.approx(float(np.mean(each)))
        assert found[name].low < found[name].mean < found[name].high


def test_the_agent_is_judged_on_later_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, ...]] = []
    train, compare = intraday.train_execution, intraday.compare
    monkeypatch.setattr(intraday, "TRAIN", 20)
    monkeypatch.setattr(intraday, "TEST", 10)
    monkeypatch.setattr(intraday, "train_execution", lambda s, *a, **k: (seen.append(s.dates), train(s, *a, **k))[1])
    monkeypatch.setattr(intraday, "compare", lambda s, *a: (seen.append(s.dates), compare(s, *a))[1])
    results = intraday.simulated_study(0, samples=4000)
    assert set(results) == {*SCHEDULES, "ppo"}
    assert seen[0][-1] < seen[1][0]
    assert not set(seen[0]) & set(seen[1])
