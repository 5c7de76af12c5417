"""Trainings as processes: start, pause, resume, stop, and resumption after an interruption."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from finrl_pod_app.dashboard.actions import jobs
from finrl_pod_app.dashboard.queries import runs
from finrl_pod_app.training.tournaments import run_tournament

from finrl_pod.errors import InputError, RunError
from finrl_pod.settings.run import RunConfig, load
from tests.app.small_run import small_config


@pytest.fixture(autouse=True)
def _isolated_folders(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINRL_POD_DATA", str(store))
    monkeypatch.setenv("FINRL_POD_HOME", str(tmp_path / "home"))


def wait_for(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)


def reopened(run: runs.RunFiles) -> runs.RunFiles:
    return runs.open_run(run.path.parent, run.name)


def long_config() -> RunConfig:
    """A config with enough generations to run until it is stopped."""
    return small_config(generations=400)


@pytest.mark.parametrize("name", ["", "../up", "a b", "x" * 41, "-x", "a/b", ".hidden"])
def test_invalid_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="invalid run name"):
        jobs.start(small_config(), tmp_path, name)
    assert not list(tmp_path.glob("**/settings.toml"))


@pytest.mark.slow
def test_pause_resume_and_stop(tmp_path: Path) -> None:
    run = jobs.start(long_config(), tmp_path / "runs", "mine")
    assert load(run.path / jobs.SETTINGS) == long_config()
    try:
        wait_for(lambda: reopened(run).has_champion)
        assert runs.status_of(run) == "running"
        progress = runs.progress_of(run)
        assert progress is not None
        assert progress.total_samples > 0
        jobs.pause(run)
        wait_for(lambda: runs.status_of(run) == "paused")
        held = reopened(run).stamp
        time.sleep(0.5)
        assert reopened(run).stamp == held, "a paused training writes nothing"
        jobs.resume(run)
        wait_for(lambda: reopened(run).stamp != held)
        assert runs.status_of(run) == "running"
        jobs.pause(run)
        jobs.stop(run)  # also while it is paused
        wait_for(lambda: runs.status_of(run) == "interrupted")
    finally:
        _end(run)
    assert "--resume" in runs.log_tail(run)
    done = runs.summarise(reopened(run)).generation
    assert done >= 1
    with pytest.raises(RunError, match="no training is running in"):
        jobs.stop(run)
    jobs.resume(run)
    try:
        wait_for(lambda: runs.summarise(reopened(run)).generation > done)
    finally:
        _end(run)


@pytest.mark.slow
def test_resumed_training_equals_an_uninterrupted_one(finished: Path, tmp_path: Path) -> None:
    """A training started by the command line and stopped after a generation is resumed by the page."""

    class Stop(Exception):
        pass

    def stop(progress: object) -> None:
        if "generation 2" in str(progress):
            raise Stop

    with pytest.raises(Stop):
        run_tournament(small_config(), tmp_path / "runs" / "mine", device="cpu", progress=stop)
    run = runs.open_run(tmp_path / "runs", "mine")
    assert runs.status_of(run) == "interrupted"
    jobs.resume(run)
    try:
        wait_for(lambda: runs.status_of(run) == "finished")
    finally:
        _end(run)
    boards = [json.loads((folder / "report.json").read_text())["leaderboard"] for folder in (finished, run.path)]
    assert boards[0] == boards[1]


@pytest.mark.slow
def test_failed_start_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINRL_POD_DATA", str(tmp_path / "empty"))
    run = jobs.start(small_config(), tmp_path / "runs", "mine")
    wait_for(lambda: runs.status_of(run) == "failed")
    _end(run)
    assert "there is no panel 'main'" in runs.log_tail(run)
    assert [found.name for found in runs.find_runs(tmp_path / "runs")] == [run.name]


def _end(run: runs.RunFiles) -> None:
    process = runs.process_of(run)
    if process is not None:
        process.kill()
        wait_for(lambda: runs.process_of(run) is None)
    jobs.reap()
