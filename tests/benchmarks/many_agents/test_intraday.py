"""The intraday study: training on earlier sessions than those of the comparison."""

from __future__ import annotations

import pytest

from benchmarks.many_agents import intraday
from finrl_pod.market.intraday import SCHEDULES


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
