"""Tournaments on real Ray clusters on loopback: equal leaderboards, and nothing lost or counted twice after kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from finrl_pod.tournament.assignment import groups_of_slots
from finrl_pod.tournament.event_log import read_events, read_run
from finrl_pod.tournament.executor import ReplayExecutor
from tests.tournament import ray_faults
from tests.tournament.small_tournament import tournament, trainer

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def scenario(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.tournament.ray_faults", name, str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=540, check=False)


def board(folder: Path) -> list[tuple[Any, ...]]:
    state = json.loads((folder / "state.json").read_text())
    return [(row["id"], row["parent"], row["score"], row["samples"]) for row in state["leaderboard"]]


def check_log(folder: Path, assignments: int) -> list[Any]:
    """Every assignment has one result, and a replay of the log reaches the same leaderboard; returns the events."""
    events = read_events(folder / "run" / "events.jsonl")
    results = Counter((e["slot"], e["assignment"]) for e in events if e["event"] == "result")
    assigned = Counter((e["slot"], e["assignment"]) for e in events if e["event"] == "assigned")
    assert len(results) == assignments
    assert results == assigned
    assert set(results.values()) == {1}
    logged = read_run(folder / "run" / "events.jsonl")
    config = ray_faults.config(generations=assignments // 4)
    groups = groups_of_slots(config, logged.groups)
    executor = ReplayExecutor(trainer(config), logged)
    tournament(config, folder / "again", executor=executor, groups=groups, clock=lambda: 0.0).run()
    assert board(folder / "again") == board(folder / "run")
    return list(events)


def test_one_shard_gives_the_leaderboard_of_this_process(tmp_path: Path) -> None:
    """Although the control process is killed after the last result."""
    done = scenario("equal", tmp_path)
    assert done.returncode == 0, done.stderr
    tournament(ray_faults.config(scheduler="generational", batch_pods=0), tmp_path / "local").run()
    assert board(tmp_path / "run") == board(tmp_path / "local")


def test_killed_workers_and_nodes_and_a_full_disk_lose_nothing(tmp_path: Path) -> None:
    done = scenario("faults", tmp_path)
    assert done.returncode == 0, done.stderr
    events = check_log(tmp_path, 4 * 6)
    joined = [e["node"] for e in events if e["event"] == "node_joined"]
    lost = [e["node"] for e in events if e["event"] == "node_lost"]
    assert len(lost) == 1
    assert lost[0] in joined
    after = [e["node"] for e in events[[e["event"] for e in events].index("node_lost") :] if e["event"] == "result"]
    assert after
    assert lost[0] not in after
    assert any(e["event"] == "restarted" for e in events)
    assert (tmp_path / "full").exists()
    assert not [pid for pid in json.loads(done.stdout)["dead"] if psutil.pid_exists(pid)]


def test_a_killed_driver_resumes_on_another_number_of_shards(tmp_path: Path) -> None:
    done = scenario("driver", tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    done = scenario("driver", tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"resumed": True}
    assert [e["shards"] for e in check_log(tmp_path, 4 * 4) if e["event"] == "resumed"] == [1]


def test_a_killed_control_process_is_named_and_the_run_resumes(tmp_path: Path) -> None:
    done = scenario("control", tmp_path)
    assert done.returncode == 2, done.stderr
    assert "control process (GCS)" in done.stderr
    assert "--resume" in done.stderr
    tournament(ray_faults.config(), tmp_path / "run", resume=True).run()  # in this process; a killed driver's on Ray
    check_log(tmp_path, 4 * 4)
