"""The asynchronous scheduler: counting, order of results, replay from the log, resuming, budgets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.cluster import RandomTrainer, VirtualExecutor
from finrl_pod.errors import RunError
from finrl_pod.settings.algorithm_configs import SACConfig
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.assignment import Assignment, groups_of_slots, make_groups
from finrl_pod.tournament.cohort import CohortTrainer
from finrl_pod.tournament.event_log import read_events, read_run
from finrl_pod.tournament.executor import Event, Finished, Lost, NodeLost, ReplayExecutor, ReportSamples
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.types import Score
from tests.tournament.small_tournament import SAMPLES, small_config, tournament, trainer

SAC = SACConfig(hidden=(4, 4), batch_size=16, learning_starts=32, buffer_size=256)


class ShuffledExecutor:
    """Trains in this process, in an order drawn from a seed; loses assignments with a probability."""

    def __init__(self, config: RunConfig, shards: int, seed: int = 0, loss: float = 0.0) -> None:
        self.shards, self._trainer, self._loss = shards, trainer(config), loss
        self._random, self._running = np.random.default_rng(seed), list[Assignment]()

    @property
    def free(self) -> int:
        return self.shards - len(self._running)

    def submit(self, assignment: Assignment) -> str:
        self._running.append(assignment)
        return "shuffled"

    def wait(self, report: ReportSamples) -> Sequence[Event]:
        chosen = self._running.pop(int(self._random.integers(len(self._running))))
        if self._random.random() < self._loss:
            return [Lost(chosen.key, "lost by the test"), NodeLost("shuffled")]
        result = Finished(self._trainer.run(chosen), "shuffled")
        return [result, result]  # the second one must not count

    def close(self) -> None:
        pass


def async_config(**changes: Any) -> RunConfig:
    settings: dict[str, Any] = {
        "pods": 6, "generations": 3, "leaderboard": 8, "scheduler": "asynchronous", "batch_pods": 1,
    }  # fmt: skip
    return small_config(**{**settings, **changes})


def board(folder: Path) -> list[tuple[Any, ...]]:
    state = json.loads((folder / "state.json").read_text())
    return [(row["id"], row["parent"], row["score"], row["samples"]) for row in state["leaderboard"]]


def replayed(config: RunConfig, log: Path, folder: Path) -> list[tuple[Any, ...]]:
    logged = read_run(log)
    executor = ReplayExecutor(trainer(config), logged)
    groups = groups_of_slots(config, logged.groups)
    tournament(config, folder, executor=executor, groups=groups, clock=lambda: 0.0).run()
    return board(folder)


@pytest.mark.slow
def test_every_assignment_has_one_result_whatever_is_lost(tmp_path: Path) -> None:
    config = async_config()
    tournament(config, tmp_path, executor=ShuffledExecutor(config, 3, seed=1, loss=0.2)).run()
    events = read_events(tmp_path / "events.jsonl")
    assigned = [(e["slot"], e["assignment"]) for e in events if e["event"] == "assigned"]
    results = [(e["slot"], e["assignment"]) for e in events if e["event"] == "result"]
    assert len(results) == len(set(results)) == 6 * 3
    assert sorted(assigned) == sorted(results)
    assert any(e["event"] == "restarted" for e in events)
    scores = {(e["slot"], e["assignment"]): e["score"] for e in events if e["event"] == "result"}
    state = json.loads((tmp_path / "state.json").read_text())
    assert all(scores[row["slot"], row["generation"]] == row["score"] for row in state["leaderboard"])
    assert len(state["history"]) == 18
    assert state.get("pending", []) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_replay_of_the_log_reaches_the_same_leaderboard(seed: int, tmp_path: Path) -> None:
    config = async_config(cohorts=(SAC,))
    tournament(config, tmp_path / "run", executor=ShuffledExecutor(config, 4, seed=seed, loss=0.1)).run()
    log = tmp_path / "run" / "events.jsonl"
    assert replayed(config, log, tmp_path / "again") == board(tmp_path / "run")
    assert read_run(tmp_path / "again" / "events.jsonl") == read_run(log)


@pytest.mark.slow
def test_order_of_results_matters(tmp_path: Path) -> None:
    """Otherwise the replay above would show nothing."""
    config = async_config()
    boards = []
    for seed in (2, 3, 4):
        tournament(config, tmp_path / f"{seed}", executor=ShuffledExecutor(config, 4, seed=seed)).run()
        boards.append(board(tmp_path / f"{seed}"))
    assert boards[0] != boards[1] or boards[1] != boards[2]


class Crash(BaseException):
    """Simulated power loss."""


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 4])
def test_interrupted_run_loses_nothing_and_resumes_on_other_shards(
    shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = async_config(cohorts=(SAC,))
    saves = 0
    save = RunDirectory.save_generation

    def crashing(self: RunDirectory, *arguments: Any) -> None:
        nonlocal saves
        saves += 1
        if saves == 5:  # after the log has the result, before the state has
            raise Crash
        save(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "save_generation", crashing)
        with pytest.raises(Crash):
            tournament(config, tmp_path / "run", executor=ShuffledExecutor(config, 2, seed=5)).run()
    resumed = ShuffledExecutor(config, shards, seed=6, loss=0.1)
    tournament(config, tmp_path / "run", resume=True, executor=resumed).run()
    log = tmp_path / "run" / "events.jsonl"
    results = [(e["slot"], e["assignment"]) for e in read_events(log) if e["event"] == "result"]
    assert len(results) == len(set(results)) == 18
    assert replayed(config, log, tmp_path / "again") == board(tmp_path / "run")


class SimultaneousExecutor(ShuffledExecutor):
    """Finishes all assignments at the same moment."""

    def wait(self, report: ReportSamples) -> Sequence[Event]:
        assignments = list(self._running)
        self._running.clear()
        return [Finished(self._trainer.run(assignment), "simultaneous") for assignment in assignments]


@pytest.mark.slow
def test_results_that_arrive_together_survive_a_kill_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = async_config(pods=2, generations=2)
    save = RunDirectory.save_generation

    def save_and_crash(self: RunDirectory, *arguments: Any) -> None:
        save(self, *arguments)
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "save_generation", save_and_crash)
        with pytest.raises(Crash):
            tournament(config, tmp_path / "run", executor=SimultaneousExecutor(config, 2)).run()
    tournament(config, tmp_path / "run", resume=True, executor=SimultaneousExecutor(config, 2)).run()
    log = tmp_path / "run" / "events.jsonl"
    events = [e["event"] for e in read_events(log)]
    assert (events.count("result"), events.count("restarted")) == (4, 0)
    assert replayed(config, log, tmp_path / "again") == board(tmp_path / "run")


def test_an_assignment_that_always_loses_its_shard_ends_the_run(tmp_path: Path) -> None:
    config = async_config()
    with pytest.raises(RunError, match="has lost its shard 6 times: lost by the test"):
        tournament(config, tmp_path, executor=ShuffledExecutor(config, 1, loss=1.0)).run()


@pytest.mark.slow
def test_agents_are_not_trained_beyond_the_length_of_a_tournament(tmp_path: Path) -> None:
    """Two groups, one of which gets most of the assignments."""

    class Favouring(ShuffledExecutor):
        def wait(self, report: ReportSamples) -> Sequence[Event]:
            self._running.sort(key=lambda assignment: assignment.group.number)
            return [Finished(self._trainer.run(self._running.pop(0)), "favouring")]

    config = async_config(pods=2, generations=4, reinit_fraction=0.0, exploit_fraction=0.0)
    tournament(config, tmp_path, executor=Favouring(config, 2)).run()
    history = json.loads((tmp_path / "state.json").read_text())["history"].values()
    ages = [past["samples"] for past in history if past["slot"] == 0]
    assert len(ages) == 7
    assert ages == [2 * SAMPLES * n for n in (1, 2, 3, 4, 1, 2, 3)]


def test_groups_follow_the_setting_or_the_shards() -> None:
    config = small_config(pods=5, cohorts=(SAC,))
    assert [group.slots for group in make_groups(config)] == [(0, 2, 4), (1, 3)]
    assert [group.slots for group in make_groups(config, 4)] == [(0,), (2, 4), (1,), (3,)]
    single = small_config(pods=5, batch_pods=2)
    assert [group.slots for group in make_groups(single, 8)] == [(0,), (1, 2), (3, 4)]
    assert [group.cohort for group in make_groups(config, 4)] == [0, 0, 1, 1]


def test_a_scheduler_counts_a_score_once() -> None:
    from finrl_pod.tournament.leaderboard import Leaderboard

    one = Score("g00s00", None, 0, 0, 10, 1.0, {})
    once = Leaderboard(4).insert([one])
    assert once.insert([one]) == once


@pytest.mark.slow
def test_trainer_is_stateless(tmp_path: Path) -> None:
    """The same assignment gives the same result whatever a shard trained before."""
    config = async_config()
    seen: list[Assignment] = []

    class Recording(ShuffledExecutor):
        def submit(self, assignment: Assignment) -> str:
            seen.append(assignment)
            return super().submit(assignment)

    tournament(config, tmp_path, executor=Recording(config, 2, seed=8)).run()
    used: CohortTrainer = trainer(config)
    used.run(seen[0])
    one, two = used.run(seen[-1]), trainer(config).run(seen[-1])
    assert [score.score for score in one.scores] == [score.score for score in two.scores]


@pytest.mark.slow
@pytest.mark.parametrize(("scheduler", "low", "high"), [("asynchronous", 0.95, 1.0), ("generational", 0.6, 0.65)])
def test_a_slow_shard_keeps_only_a_generation_waiting(scheduler: str, low: float, high: float, tmp_path: Path) -> None:
    """Four shards, one half as fast, on virtual time: share of it in which they train."""
    config = small_config(pods=4, generations=20, batch_pods=1, scheduler=scheduler)
    executor = VirtualExecutor(RandomTrainer(), (1.0, 1.0, 1.0, 0.5))
    tournament(config, tmp_path / "run", executor=executor).run()
    assert low <= executor.busy_share <= high
