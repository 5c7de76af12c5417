"""The progress file of a training run, and detection of its process."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from finrl_pod_app.setup import progress_file

from finrl_pod.errors import RunError
from finrl_pod.tournament.progress import Progress


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A child process that sleeps."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def progress(stage: str = "training", samples: int = 10, best: float | None = 1.5) -> Progress:
    return Progress(stage, samples, 100, 50.0, best, 1.8)


def test_file_exists_during_the_run(tmp_path: Path) -> None:
    with progress_file.live_progress(tmp_path) as report:
        report(progress())
        content = progress_file.read(tmp_path / progress_file.FILE)
        assert content is not None
        assert content["progress"]["samples"] == 10
        assert content["progress"]["best"] == 1.5
        process = progress_file.process_of(content)
        assert process is not None
        assert process.pid == os.getpid()
    assert progress_file.read(tmp_path / progress_file.FILE) is None


def test_file_is_removed_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), progress_file.live_progress(tmp_path):
        raise KeyboardInterrupt
    assert not (tmp_path / progress_file.FILE).exists()


def test_file_is_written_once_a_second_and_at_every_new_stage(tmp_path: Path) -> None:
    with progress_file.live_progress(tmp_path) as report:
        report(progress(samples=1))
        report(progress(samples=2))
        assert json.loads((tmp_path / progress_file.FILE).read_text())["progress"]["samples"] == 1
        report(progress(stage="auditing", samples=3))
        assert json.loads((tmp_path / progress_file.FILE).read_text())["progress"]["samples"] == 3


def test_nan_is_written_as_null(tmp_path: Path) -> None:
    with progress_file.live_progress(tmp_path) as report:
        report(progress(best=math.nan))
        assert json.loads((tmp_path / progress_file.FILE).read_text())["progress"]["best"] is None


def test_unwritable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot write"), progress_file.live_progress(tmp_path / "file"):
        pass


def test_reused_pid_is_not_the_process(sleeper: subprocess.Popen[bytes]) -> None:
    identity = progress_file.identity(sleeper.pid)
    assert progress_file.process_of({"process": identity}) is not None
    assert progress_file.process_of({"process": {**identity, "began": identity["began"] - 60}}) is None


def test_exited_process_is_not_found(sleeper: subprocess.Popen[bytes]) -> None:
    identity = progress_file.identity(sleeper.pid)
    sleeper.kill()
    end = time.monotonic() + 10
    while psutil.Process(sleeper.pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < end:
        time.sleep(0.02)
    assert progress_file.process_of({"process": identity}) is None  # a zombie until its exit code is read
    sleeper.wait()
    assert progress_file.process_of({"process": identity}) is None


def test_paused_process_is_recognised(sleeper: subprocess.Popen[bytes]) -> None:
    process = progress_file.process_of({"process": progress_file.identity(sleeper.pid)})
    assert process is not None
    assert not progress_file.is_paused(process)
    sleeper.send_signal(signal.SIGSTOP)
    end = time.monotonic() + 10
    while not progress_file.is_paused(process) and time.monotonic() < end:
        time.sleep(0.02)
    assert progress_file.is_paused(process)


@pytest.mark.parametrize(
    "damaged", [None, {}, {"process": 3}, {"process": {"pid": "x", "began": 1}}, {"process": {"pid": -1, "began": 0}}]
)
def test_file_without_a_process_gives_none(damaged: dict[str, object] | None) -> None:
    assert progress_file.process_of(damaged) is None
