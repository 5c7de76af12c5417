"""A short soak; `make soak` runs a whole year."""

from __future__ import annotations

from pathlib import Path

import pytest
from finrl_pod_strategies import baselines

from tests.paper.process.daemon_main import RandomWeights, SwappingStrategy
from tests.soak.consistency import check_run
from tests.soak.run import MAX_LATENCY, Soak, soak, track


@pytest.mark.slow
def test_eight_sessions_with_faults_and_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # `track` adds the strategies to this process; they are removed at the end.
    for strategy in (RandomWeights(), SwappingStrategy()):
        monkeypatch.setitem(baselines.BASELINES, strategy.name, strategy)
    plan = soak(Soak(tmp_path, sessions=8, fault_rate=0.04, kills=1, seed=3))
    verdict = check_run(tmp_path / "server.jsonl", tmp_path / "journal.sqlite", MAX_LATENCY)
    assert verdict.faults == []
    faults, difference = track(plan)
    assert faults == []
    assert difference["dividends"] < 0  # of two dividends, which paper accounts are not paid
    assert verdict.facts["sessions"] >= 8
    assert verdict.facts["fills"] > 20
    assert sum(verdict.facts["faults_injected"].values()) > 3
    assert "soak-secret" not in (tmp_path / "daemon.log").read_text() + (tmp_path / "server.jsonl").read_text()
