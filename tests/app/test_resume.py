"""A real `finrl-pod tournament`, killed or interrupted again and again, ends as one that nobody disturbed."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from finrl_pod_app.services.presets import config_text
from finrl_pod_app.services.training import run_tournament

from finrl_pod.settings.run import load
from tests.app.command import call, start
from tests.app.small_run import fill_store, small_config

# Long enough that a generation can be seen to end before the next one does.
SAMPLES, GENERATIONS = 1_280, 3
PATIENCE = 60.0

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store and a config."""
    folder = tmp_path_factory.mktemp("room")
    fill_store(folder / "store")
    (folder / "tiny.toml").write_text(
        config_text(small_config(samples_per_generation=SAMPLES, generations=GENERATIONS))
    )
    return folder


@pytest.fixture(scope="module")
def whole(room: Path) -> Path:
    """An undisturbed run, in this process."""
    here(room, room / "whole")
    return room / "whole"


def here(room: Path, out: Path, *, resume: bool = False) -> None:
    """Run it in this process."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FINRL_POD_DATA", str(room / "store"))
        run_tournament(load(room / "tiny.toml"), out, resume=resume, device="cpu")
    torch.set_num_threads(threads)


def begin(room: Path, out: Path) -> subprocess.Popen[str]:
    """Start the run, or go on with what there is."""
    resume = ["--resume"] if (out / "config.json").exists() else []
    return start(room / "store", "tournament", room / "tiny.toml", "--out", out, "--device", "cpu", *resume, "--json")


def finish(room: Path, out: Path) -> tuple[int, str, str]:
    """Go on to the end."""
    return call(room / "store", "tournament", room / "tiny.toml", "--out", out, "--device", "cpu", "--resume", "--json")


def generation(out: Path) -> int:
    """The last finished one, -1 before there is one."""
    file = out / "state.json"
    return int(json.loads(file.read_text())["generation"]) if file.exists() else -1


def wait(process: subprocess.Popen[str], until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not until():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the run is too slow"
        time.sleep(0.005)


def timeless(out: Path) -> tuple[Any, Any]:
    """What a run says, seconds and rates apart."""
    state, report = (json.loads((out / name).read_text()) for name in ("state.json", "report.json"))
    state.pop("train_seconds")
    for clock in ("train_seconds", "samples_per_second", "total_seconds"):
        report["timing"].pop(clock)
    return state, report


def test_a_run_killed_after_every_generation_equals_an_uninterrupted_one(room: Path, whole: Path) -> None:
    out = room / "killed"
    process = begin(room, out)  # killed at once, before there is anything
    process.kill()
    process.communicate()
    reached = []
    while (reached or [-1])[-1] < GENERATIONS - 2:
        before = generation(out)
        process = begin(room, out)
        wait(process, lambda before=before: generation(out) > before)  # type: ignore[misc]
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not (out / "report.json").exists()
        reached.append(generation(out))
    assert reached == sorted(set(reached))
    code, _, err = finish(room, out)
    assert (code, err) == (0, "")
    assert timeless(out) == timeless(whole)
    for file in (whole / "snapshots").iterdir():
        assert (out / "snapshots" / file.name).read_bytes() == file.read_bytes(), file.name


def test_ctrl_c_prints_one_line_and_the_run_can_be_resumed(room: Path, whole: Path) -> None:
    out = room / "interrupted"
    process = begin(room, out)
    wait(process, lambda: generation(out) >= 0)
    process.send_signal(signal.SIGINT)
    shown, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert shown == ""
    sentence = f"interrupted; finished generations are kept in {out}. Resume with --resume --out {out}"
    assert err == f"finrl-pod: {sentence}\n"
    assert generation(out) < GENERATIONS - 1
    here(room, out, resume=True)
    assert timeless(out) == timeless(whole)
