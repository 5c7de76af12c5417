"""Shards in child processes: the same leaderboard as in this process, whatever happens to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from finrl_pod.errors import RunError, SetupError
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.event_log import read_events
from finrl_pod.tournament.executors.processes import ProcessExecutor
from tests.tournament import shard_faults
from tests.tournament.shard_faults import FaultyTrainer
from tests.tournament.small_tournament import small_config, tournament

ROOT = Path(__file__).parents[2]
CONFIG = small_config(pods=4, batch_pods=2)

pytestmark = pytest.mark.slow


def board(folder: Path) -> list[tuple[Any, ...]]:
    state = json.loads((folder / "state.json").read_text())
    return [(row["id"], row["parent"], row["score"], row["samples"]) for row in state["leaderboard"]]


def run(folder: Path, fault: Callable[..., None], shards: int = 2, timeout: float = 600.0, **options: Any) -> list[Any]:
    executor = ProcessExecutor(partial(FaultyTrainer, CONFIG, folder.parent, fault), shards, timeout)
    pids = executor.pids
    try:
        tournament(CONFIG, folder, executor=executor, **options).run()
    finally:
        executor.close()
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    return board(folder)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The leaderboard of a run in this process."""
    folder = tmp_path_factory.mktemp("local") / "run"
    tournament(CONFIG, folder).run()
    return board(folder)


def test_two_processes_give_the_leaderboard_of_one(expected: list[Any], tmp_path: Path) -> None:
    assert run(tmp_path / "run", shard_faults.healthy) == expected


@pytest.mark.parametrize(("fault", "timeout"), [(shard_faults.kill_once, 600.0), (shard_faults.hang_once, 20.0)])
def test_a_killed_or_hanging_shard_is_replaced(
    fault: Callable[..., None], timeout: float, expected: list[Any], tmp_path: Path
) -> None:
    assert run(tmp_path / "run", fault, timeout=timeout) == expected
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert [e["slot"] for e in events if e["event"] == "restarted"] == [0, 1]
    assert len([e for e in events if e["event"] == "result"]) == 4 * 3


def test_a_full_disk_under_one_shard_leaves_the_work_to_the_other(expected: list[Any], tmp_path: Path) -> None:
    assert run(tmp_path / "run", shard_faults.full_disk) == expected
    assert (tmp_path / "full").exists()


def test_errors_of_the_program_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="the parent does not fit this agent"):
        run(tmp_path / "run", shard_faults.reject, shards=1)


def test_shards_that_never_start_are_reported(tmp_path: Path) -> None:
    executor = ProcessExecutor(shard_faults.no_trainer, 1)
    try:
        with pytest.raises(SetupError, match=r"no shard starts: OSError: .* No space left on device; use --engine"):
            tournament(CONFIG, tmp_path / "run", executor=executor).run()
    finally:
        executor.close()


def test_a_killed_driver_leaves_no_process_and_loses_nothing(expected: list[Any], tmp_path: Path) -> None:
    """SIGKILL to the driver after the first generation; resumed on another number of shards."""
    code = "import sys; from tests.tournament.test_processes import drive; drive(sys.argv[1])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    children = psutil.Process(process.pid).children() if process.stdout.readline() else []
    assert len(children) >= 2
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    gone, alive = psutil.wait_procs(children, timeout=60)
    assert gone
    assert not alive
    assert run(tmp_path / "run", shard_faults.healthy, shards=1, resume=True) == expected


def drive(folder: str) -> None:
    """Run with two shards; print a line when the first generation is saved and the second one trains."""

    def report(progress: Any) -> None:
        if "generation 2" in progress.stage:
            sys.stdout.write("second\n")
            sys.stdout.flush()

    config: RunConfig = CONFIG
    executor = ProcessExecutor(partial(FaultyTrainer, config, Path(folder).parent, shard_faults.healthy), 2)
    tournament(config, Path(folder), report=report, executor=executor).run()
